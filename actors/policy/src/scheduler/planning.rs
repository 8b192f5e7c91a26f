//! One planning cycle: when the next step may be planned, and the step request to the block store.

use crate::protocol::StepRequest;
use crate::scheduler::plan::plan_step;
use crate::scheduler::plan::retry::RetryScope;
use crate::scheduler::plan::view::View;
use crate::scheduler::state::State;
use tiercel_config::{PreemptionMode, VictimRule};
use tiercel_device::{SeqId, StepId, Timestamp};

impl State {
    /// Plans the next step and returns the step request to the block store; `None` if it is not time to plan or there
    /// is nothing to request or report. The block store's answer must be given to `granted`.
    pub(crate) fn plan(&mut self, now: Timestamp) -> Option<StepRequest> {
        if self.next_plan()? > now {
            return None;
        }
        let begins = self.pipeline.begins(now);
        self.retry.may_replan = false;
        self.queue.age(now, &self.basis);
        self.deadlines.judge(&mut self.queue, &self.basis, begins);
        if self.basis.rules.tiers_are_fair() {
            self.queue.note_waiting_tiers();
        }
        let leave_out_suspects = self.suspects.take_denied() || self.retry.scope != RetryScope::All;
        let view = self.view(begins);
        let mut plan = plan_step(&view, self.retry.scope, leave_out_suspects);
        if plan.wants.is_empty() && self.retry.scope != RetryScope::All {
            // No sequence in the narrowed scope of the plan can run, so plan all sequences. If there are suspects of a
            // failed step, the new plan tries one suspect alone, because the other sequences had their turn in the
            // narrowed plan.
            plan = plan_step(&view, RetryScope::All, false);
            plan.skips_running = false;
            self.retry.scope = RetryScope::All;
        }
        // Do not count running sequences as skipped if the plan tries one suspect of a failed step alone. Suspects that
        // cannot run now, because they are on hold for example, are in no plan.
        let tries_suspect = plan.wants.iter().any(|want| self.suspects.contains(want.ticket.seq));
        let on_purpose = tries_suspect && !leave_out_suspects;
        self.retry.skipped_running = plan.skips_running && !on_purpose;
        let news = !self.outbox.progress.is_empty() || !self.outbox.released.is_empty();
        if plan.wants.is_empty() && !news {
            return None;
        }
        let rules = &self.basis.rules;
        let completed_step = self.pipeline.completed();
        Some(StepRequest {
            step: self.pipeline.reserve(now),
            completed_step,
            progress: std::mem::take(&mut self.outbox.progress),
            released: std::mem::take(&mut self.outbox.released),
            wants: plan.wants,
            victims: plan.victims,
            costs: self.basis.cost.resume_costs(),
            victims_by_cost: rules.preemption.victim == VictimRule::ResumeCost,
            resumes_by_cost: rules.preemption.mode == PreemptionMode::Auto,
            release: rules.release(),
            mirror: self.memory.mirroring.blocks(
                rules.preemption.mirror_percent,
                self.basis.cost.copy_us(1),
                now,
            ),
            mirrors: rules.preemption.mirror_percent > 0,
            lends: self.memory.reservations.lends(),
        })
    }

    /// Returns the time at which the next step may be planned; `None` if a step must end or the block store must answer
    /// first.
    pub(crate) fn next_plan(&self) -> Option<Timestamp> {
        // A suspect of a failed step runs alone, with no other step in flight. A suspect on hold does not run.
        let table = &self.queue.table;
        let runs = |seq: &SeqId| table.get(*seq).is_some_and(|sequence| !sequence.held());
        let alone = !self.pipeline.none_in_flight() && self.suspects.members().iter().any(runs);
        self.pipeline.next_plan().filter(|_| !alone)
    }

    /// Returns the last completed step, if no step request has told the block store of it yet. Copies may wait for this
    /// news.
    pub(crate) fn take_completed(&mut self) -> Option<StepId> {
        self.pipeline.take_completed()
    }

    /// Returns the read-only state from which a step that begins at `begins` is planned.
    fn view(&self, begins: Timestamp) -> View<'_> {
        View {
            basis: &self.basis,
            queue: &self.queue,
            memory: &self.memory,
            reserve: &self.reserve,
            retry: &self.retry,
            suspects: self.suspects.members(),
            may_start: self.basis.rules.may_start(self.batch_closed),
            traffic: self.queue.traffic(begins),
            begins,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::scheduler::plan::retry::RetryScope;
    use crate::scheduler::tests::{NOW, scheduler, sequence, step, submit};
    use crate::scheduler::{Hold, State};
    use tiercel_config::StepMix;
    use tiercel_device::{SeqId, StepDone, StepError, Tier, Timestamp};

    /// Creates a scheduler whose running sequences 1 and 2 are suspects of a failed step.
    fn suspecting() -> State {
        let mut s = scheduler(|_| ());
        for id in 1..=2 {
            s.enqueue(sequence(id, Tier::Standard, 4));
        }
        step(&mut s);
        let batch = submit(&mut s);
        let result = Err(StepError::Failed("kernel".into()));
        s.step_done(StepDone { id: batch.id, result }, Timestamp(600));
        s
    }

    #[test]
    fn a_suspect_runs_alone_before_sequences_that_are_not_suspects() {
        let mut s = suspecting();
        s.enqueue(sequence(3, Tier::Premium, 4));
        let request = s.plan(NOW).expect("a step");
        let planned: Vec<SeqId> = request.wants.iter().map(|want| want.ticket.seq).collect();
        assert_eq!(planned, [SeqId(1)]);
    }

    #[test]
    fn all_sequences_are_planned_if_none_that_runs_can_go_on() {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 4));
        s.retry.scope = RetryScope::Running;
        let request = s.plan(NOW).expect("a sequence waits");
        assert_eq!((request.wants.len(), s.retry.scope), (1, RetryScope::All));
    }

    #[test]
    fn sequences_are_not_skipped_while_one_suspect_runs_alone() {
        let mut s = suspecting();
        assert_eq!(s.plan(NOW).expect("a step").wants.len(), 1);
        assert!(!s.retry.skipped_running, "sequence 2 is left out on purpose");
    }

    #[test]
    fn sequences_are_skipped_although_a_suspect_is_on_hold() {
        let skipped = |held: bool| {
            let mut s = scheduler(|settings| settings.scheduler.mix = StepMix::PromptsAlone);
            for id in 1..=2 {
                s.enqueue(sequence(id, Tier::Standard, 4));
            }
            step(&mut s);
            s.suspects.extend([SeqId(1)].into_iter());
            s.set_hold(SeqId(1), Hold::Operator, held);
            s.enqueue(sequence(3, Tier::Standard, 4));
            let request = s.plan(NOW).expect("a sequence waits");
            (request.wants[0].ticket.seq, s.retry.skipped_running)
        };
        assert_eq!(skipped(false), (SeqId(1), false), "sequence 2 is left out on purpose");
        assert_eq!(skipped(true), (SeqId(3), true), "sequence 2 is left out for a prompt");
    }

    #[test]
    fn the_running_sequences_that_a_plan_leaves_out_for_one_suspect_do_not_count_as_skipped() {
        let skipped = |suspect_denied: bool| {
            let mut s = scheduler(|_| ());
            for id in 1..=2 {
                s.enqueue(sequence(id, Tier::Standard, 4));
            }
            step(&mut s);
            s.suspects.extend([SeqId(1)].into_iter());
            if suspect_denied {
                s.suspects.deny();
            }
            let request = s.plan(NOW).expect("both run");
            let ids: Vec<SeqId> = request.wants.iter().map(|want| want.ticket.seq).collect();
            (ids, s.retry.skipped_running)
        };
        assert_eq!(skipped(false), (vec![SeqId(1)], false));
        assert_eq!(skipped(true), (vec![SeqId(2)], true));
    }
}
