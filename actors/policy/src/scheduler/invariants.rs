//! Checks that the scheduler's state fulfils its invariants.

use crate::scheduler::pipeline::InFlight;
use crate::scheduler::sequence::Phase;
use crate::scheduler::state::State;
use std::collections::BTreeMap;
use tiercel_device::Tier;

impl State {
    /// Checks the invariants of the scheduler's state.
    ///
    /// # Errors
    /// Returns a text that says which invariant does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        for sequence in self.queue.table.iter() {
            if let Some(violation) = sequence.violation(self.basis.rules.limits.block_size) {
                return Err(violation);
            }
        }
        if let Some(violation) = self.queue.table.violation() {
            return Err(violation);
        }
        let in_flight = self.pipeline.in_flight();
        if in_flight.len() > self.pipeline.depth() {
            return Err(format!("{} steps are in flight, more than allowed", in_flight.len()));
        }
        for step in in_flight {
            self.check_step(step)?;
        }
        for sequence in self.queue.table.iter() {
            let steps = in_flight.iter().map(|step| step.step);
            if let Some(violation) = sequence.kv.in_flight.violation(steps) {
                return Err(format!("{}: {violation}", sequence.id));
            }
        }
        self.check_ledger()?;
        for seq in &self.outbox.released {
            if self.queue.table.contains(*seq) {
                return Err(format!("{seq} is released and live"));
            }
        }
        Ok(())
    }

    /// Checks that the ledger counts each sequence that is not on hold once, in its tier and in its tenant's account.
    fn check_ledger(&self) -> Result<(), String> {
        let mut counts = BTreeMap::new();
        for sequence in self.queue.table.iter().filter(|sequence| !sequence.held()) {
            *counts.entry(sequence.party()).or_insert(0) += 1;
        }
        counts.retain(|(tier, _), _| *tier != Tier::System);
        if self.ledger.working() != counts {
            return Err("the ledger counts other sequences than those that are live".into());
        }
        Ok(())
    }

    fn check_step(&self, step: &InFlight) -> Result<(), String> {
        if step.members.is_empty() {
            return Err("an empty step is in flight".into());
        }
        for seq in &step.members {
            // A sequence of a step in flight may be preempted meanwhile, but it must not be copied in again before that
            // step has ended.
            if self.phase(*seq) == Some(Phase::Opening) {
                return Err(format!("{seq} is in {}, but opens", step.step));
            }
        }
        let tokens = step.work.decode_tokens + step.work.prefill_tokens;
        if tokens > self.basis.rules.limits.step_tokens {
            return Err(format!("a step of {tokens} tokens exceeds max_num_batched_tokens"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::StepShares;
    use crate::scheduler::cost::StepWork;
    use crate::scheduler::pipeline::progress::Part;
    use crate::scheduler::tests::{scheduler, sequence, submit};
    use tiercel_config::EngineSettings;
    use tiercel_device::{SeqId, StepId, Tier, Timestamp};

    /// Returns a state with the running sequence 1, and with a step of this sequence that has the work `work`.
    fn with_step(members: Vec<SeqId>, work: StepWork) -> State {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 8));
        s.open(SeqId(1), 0);
        s.pipeline.submit(InFlight {
            step: StepId(1),
            members,
            work,
            time_us: [0.0; Tier::ALL.len()],
            shares: StepShares::default(),
            begins: Timestamp(0),
            expected_us: 100.0,
            invalidated: false,
            partial: false,
        });
        s
    }

    /// Checks that the text of the violation ends as expected.
    fn assert_violation(s: &State, end: &str) {
        let violation = s.check().expect_err(end);
        assert!(violation.ends_with(end), "{violation}");
    }

    #[test]
    fn a_step_in_flight_has_sequences_and_no_more_tokens_than_a_step_may_have() {
        let work = |decodes, prefill| StepWork {
            decode_tokens: decodes,
            prefill_tokens: prefill,
            ..StepWork::default()
        };
        assert_eq!(with_step(vec![SeqId(1)], work(31, 1)).check(), Ok(()));
        let mut lowered = with_step(vec![SeqId(1)], work(31, 1));
        let mut settings = EngineSettings::default();
        (settings.scheduler.max_num_seqs, settings.scheduler.max_num_batched_tokens) = (1, 1);
        lowered.adjust(&settings);
        assert_eq!(lowered.check(), Ok(()), "the step was planned before");
        let s = with_step(vec![SeqId(1)], work(32, 1));
        assert_violation(&s, "a step of 33 tokens exceeds max_num_batched_tokens");
        assert_violation(&with_step(Vec::new(), work(1, 1)), "an empty step is in flight");
    }

    #[test]
    fn a_sequence_in_a_step_does_not_open() {
        let mut s = with_step(vec![SeqId(1)], StepWork::default());
        s.queue.table.change(SeqId(1), |sequence| sequence.phase = Phase::Opening);
        assert_violation(&s, "but opens");
    }

    #[test]
    fn a_sequence_does_not_wait_for_a_step_that_is_not_in_flight() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 8));
        submit(&mut s);
        assert_eq!(s.check(), Ok(()));
        let part = Part { step: StepId(9), computed: None, samples: false, void: false };
        s.queue.table.update(SeqId(1), |sequence| sequence.kv.in_flight.submit(part));
        assert_violation(&s, "which is not in flight");
    }

    #[test]
    fn the_numbers_of_each_sequence_agree() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 8));
        assert_eq!(s.check(), Ok(()));
        s.queue.table.update(SeqId(1), |sequence| sequence.kv.computed = 1);
        assert_violation(&s, "waiting, but holds blocks");
    }
}
