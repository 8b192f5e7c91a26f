//! One planning cycle: when the next step may be planned, and the step request to the block store.

use crate::protocol::StepRequest;
use crate::scheduler::plan::plan_step;
use crate::scheduler::plan::retry::RetryScope;
use crate::scheduler::plan::view::View;
use crate::scheduler::state::State;
use tiercel_config::{PreemptionMode, VictimRule};
use tiercel_device::{StepId, Timestamp};

impl State {
    /// Plans the next step and returns the step request to the block store; `None` if it is not time to plan or there
    /// is nothing to request or report. The block store's answer must be given to `granted`.
    pub(crate) fn plan(&mut self, now: Timestamp) -> Option<StepRequest> {
        if self.next_plan()? > now {
            return None;
        }
        let begins = self.pipeline.begins(now);
        self.retry.again = false;
        self.queue.age(now, &self.basis);
        self.deadlines.judge(&mut self.queue, &self.basis, begins);
        if self.basis.rules.tiers_are_fair() {
            self.queue.note_waiting_tiers();
        }
        let others_first = self.suspects.take_denied() || self.retry.scope != RetryScope::All;
        let view = self.view(begins);
        let mut plan = plan_step(&view, self.retry.scope, others_first);
        if plan.wants.is_empty() && self.retry.scope != RetryScope::All {
            // No sequence in the narrowed scope of the plan can run, so plan all sequences. If there are suspects of a
            // failed step, the new plan tries one suspect alone, because the other sequences had their turn in the
            // narrowed plan.
            plan = plan_step(&view, RetryScope::All, false);
            plan.skips_running = false;
            self.retry.scope = RetryScope::All;
        }
        // Do not count running sequences as skipped while one suspect of a failed step is tried alone.
        let on_purpose = !self.suspects.is_empty() && !others_first;
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
            lends: self.memory.reservations.lends(),
        })
    }

    /// Returns the time at which the next step may be planned; `None` if a step must end or the block store must answer
    /// first.
    pub(crate) fn next_plan(&self) -> Option<Timestamp> {
        // A suspect of a failed step runs alone, with no other step in flight.
        let alone = !self.suspects.is_empty() && !self.pipeline.is_dry();
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
