//! One planning cycle: when the next step may be planned, and the request to the block store.

use crate::protocol::StepRequest;
use crate::scheduler::plan::plan_step;
use crate::scheduler::plan::retry::RetryScope;
use crate::scheduler::plan::view::View;
use crate::scheduler::state::Scheduler;
use tiercel_config::{PreemptionMode, VictimRule};
use tiercel_device::{StepId, Timestamp};

impl Scheduler {
    /// The request to the block store for the next step; `None` if it is not time for it or there is nothing to say. The
    /// answer must be given to [`Scheduler::granted`].
    pub fn plan(&mut self, now: Timestamp) -> Option<StepRequest> {
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
            // The sequences of the narrow scope are gone or on hold, or have no slot. In the whole scope the suspect is
            // first: the others were asked for before the scope was narrowed.
            plan = plan_step(&view, RetryScope::All, false);
            plan.skips_running = false;
            self.retry.scope = RetryScope::All;
        }
        // While a failed step is investigated most sequences are skipped on purpose.
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
            gives: rules.release(),
            mirror: self.memory.mirroring.blocks(
                rules.preemption.mirror_percent,
                self.basis.cost.copy_us(1),
                now,
            ),
            lends: self.memory.reservations.lends(),
        })
    }

    /// When the next step may be planned; `None` if something else has to happen first.
    pub fn next_plan(&self) -> Option<Timestamp> {
        // A suspect runs alone, with no other step in flight.
        let alone = !self.suspects.is_empty() && !self.pipeline.is_dry();
        self.pipeline.next_plan().filter(|_| !alone)
    }

    /// The last step that has completed, with all before it, if the block store was not told with a request: copies wait for
    /// it.
    pub fn take_completed(&mut self) -> Option<StepId> {
        self.pipeline.take_completed()
    }

    /// What planning a step that begins at `begins` reads.
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
