//! Checks that the scheduler's state fulfils its invariants.

use crate::scheduler::pipeline::InFlight;
use crate::scheduler::sequence::Phase;
use crate::scheduler::state::State;

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
        for seq in &self.outbox.released {
            if self.queue.table.contains(*seq) {
                return Err(format!("{seq} is released and live"));
            }
        }
        Ok(())
    }

    fn check_step(&self, step: &InFlight) -> Result<(), String> {
        if step.slices.is_empty() {
            return Err("an empty step is in flight".into());
        }
        for seq in &step.slices {
            // A sequence of a step in flight may be preempted meanwhile, but it must not be copied in again before that
            // step has ended.
            if self.phase(*seq) == Some(Phase::Opening) {
                return Err(format!("{seq} is in {}, but opens", step.step));
            }
        }
        let tokens = step.work.decode_tokens + step.work.prefill_tokens;
        if tokens > self.basis.rules.scheduling.max_num_batched_tokens {
            return Err(format!("a step of {tokens} tokens exceeds max_num_batched_tokens"));
        }
        Ok(())
    }
}
