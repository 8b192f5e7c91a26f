//! The surface of the scheduler: events in, actions out.
//!
//! After an event, call [`Scheduler::next_action`] until it returns `None`, and carry out each action before the next
//! call: an action may cause events, such as a client that is found gone when its token is delivered.

use crate::admission::Capacity;
use crate::protocol::{StepGrant, StepRequest, StoreEvent};
use crate::scheduler::cost::CostError;
use crate::scheduler::counters::{Census, Counters};
use crate::scheduler::outcome::{Effect, PreemptDecision, RequestFault};
use crate::scheduler::queue::length_predictor::PredictionError;
use crate::scheduler::sequence::{Hold, NewSequence, Phase};
use crate::scheduler::state::State;
use crate::slo::{Promise, Targets};
use std::collections::VecDeque;
use tiercel_config::{EngineSettings, Policy};
use tiercel_device::{
    DeviceInfo, DeviceProfile, SeqId, StepBatch, StepDone, StepId, Tier, Timestamp,
};

/// Action that the owner of a scheduler must carry out next.
#[derive(Debug)]
#[must_use]
pub enum Action {
    /// Submit a batch to the device, and report its end with [`Scheduler::step_done`].
    Submit(StepBatch),
    /// Deliver tokens and ends of requests to the clients.
    Deliver(Vec<Effect>),
    /// Send a request to the block store, and report the answer with [`Scheduler::granted`]. Tell admission the
    /// capacity.
    Reserve {
        /// The request to the block store.
        request: StepRequest,
        /// Time for prompts and backlog of prompts, for admission.
        capacity: Capacity,
    },
    /// Call [`Scheduler::wake`] at this time.
    WakeAt(Timestamp),
    /// Tell the block store that this step and every step before it have completed: copies wait for that.
    Completed(StepId),
    /// Tell admission and clients' promises of new targets.
    Retarget(Targets),
}

/// The scheduler: every live sequence, and the actions that are due.
#[derive(Debug)]
pub struct Scheduler {
    /// Sequences, queue, memory and steps, and the decisions about them.
    state: State,
    /// Actions that are due, in order.
    actions: VecDeque<Action>,
    /// Whether an event came that a new plan could respond to.
    plan_due: bool,
    /// The last time that [`Action::WakeAt`] named.
    wakes_at: Timestamp,
}

impl Scheduler {
    /// Creates a scheduler without sequences for a device.
    pub fn new(settings: &EngineSettings, info: &DeviceInfo, profile: DeviceProfile) -> Scheduler {
        Scheduler {
            state: State::new(settings, info, profile),
            actions: VecDeque::new(),
            plan_due: false,
            wakes_at: Timestamp(0),
        }
    }

    /// Returns the next action; `None` if there is none before the next event.
    pub fn next_action(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if std::mem::take(&mut self.plan_due) {
            let request = self.state.plan(now);
            let at = self.state.next_plan().filter(|at| *at > now && *at != self.wakes_at);
            if let Some(at) = at {
                self.wakes_at = at;
                self.actions.push_back(Action::WakeAt(at));
            }
            if let Some(request) = request {
                return Some(Action::Reserve { request, capacity: self.state.capacity(now) });
            }
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
        }
        self.state.take_completed().map(Action::Completed)
    }

    /// Adds a sequence, which waits for its start.
    pub fn enqueue(&mut self, new: NewSequence) {
        self.state.enqueue(new);
        self.plan_due = true;
    }

    /// Ends a sequence whose client has gone. Its [`Effect::Ended`] has no outcome.
    pub fn cancel(&mut self, seq: SeqId) {
        let ended = self.state.cancel(seq).map(Effect::Ended);
        self.deliver(ended.into_iter().collect());
    }

    /// Ends a sequence whose output is complete for a reason that only the client's side knows, such as a stop string.
    pub fn stop(&mut self, seq: SeqId) {
        let ended = self.state.stop(seq);
        self.deliver(ended.into_iter().collect());
    }

    /// Ends a sequence with a fault.
    pub fn fail(&mut self, seq: SeqId, fault: RequestFault) {
        let ended = self.state.fail(seq, fault);
        self.deliver(ended.into_iter().collect());
    }

    /// Turns away the sequence that would be served last, among the sequences of tiers below `tier` that have not
    /// started, so that a request of `tier` can have its permit; returns whether there was such a sequence.
    pub fn displace(&mut self, tier: Tier, now: Timestamp) -> bool {
        let ended = self.state.displace(tier, now);
        let found = ended.is_some();
        self.deliver(ended.into_iter().collect());
        found
    }

    /// Puts a sequence on hold or ends the hold; returns whether the sequence is live.
    pub fn set_hold(&mut self, seq: SeqId, hold: Hold, held: bool) -> bool {
        self.plan_due = true;
        self.state.set_hold(seq, hold, held)
    }

    /// Changes the tier and the priority of a sequence from the next plan on; returns whether the sequence is live.
    pub fn reprioritize(&mut self, seq: SeqId, tier: Tier, priority: i32) -> bool {
        self.plan_due = true;
        self.state.reprioritize(seq, tier, priority)
    }

    /// Switches to a named policy. Sizes and prefix cache stay as they are; the next plan follows the policy.
    pub fn set_policy(&mut self, policy: Policy) {
        self.plan_due = true;
        self.state.set_policy(policy);
    }

    /// Turns away requests whose patience is at an end, and derives targets again if the device is idle.
    pub fn tick(&mut self, now: Timestamp) {
        let expired = self.state.expire(now);
        if !expired.is_empty() {
            self.deliver(expired);
        }
        let retarget = self.state.derive_targets_anew().map(Action::Retarget);
        self.actions.extend(retarget);
    }

    /// Plans if it is time, although nothing happened: the time that [`Action::WakeAt`] named has come.
    pub fn wake(&mut self) {
        self.plan_due = true;
    }

    /// Applies the block store's answer to a request.
    pub fn granted(&mut self, grant: StepGrant) {
        let (batch, effects) = self.state.granted(grant);
        // After an empty plan, another plan is made only if something happened meanwhile. A step that runs may be
        // followed by another.
        self.plan_due |= batch.is_some() || self.state.must_replan();
        self.actions.extend(batch.map(Action::Submit));
        if !effects.is_empty() {
            self.actions.push_back(Action::Deliver(effects));
        }
    }

    /// Applies the result of a step that has ended at the device.
    pub fn step_done(&mut self, done: StepDone, now: Timestamp) {
        let effects = self.state.step_done(done, now);
        self.deliver(effects);
    }

    /// Learns that copying `blocks` blocks took `duration_us`, and counts the blocks.
    pub fn copied(&mut self, blocks: u32, duration_us: u64) {
        self.state.copied(blocks, duration_us);
        self.plan_due = true;
    }

    /// Applies an event of the block store. For a prepared preemption, returns what to tell the block store.
    #[must_use]
    pub fn store_event(&mut self, event: StoreEvent) -> PreemptDecision {
        self.plan_due = true;
        self.state.store_event(event)
    }

    /// Learns that planning a step took `us` microseconds, from when the plan was due until the step went to the
    /// device.
    pub fn planned_in(&mut self, us: u64) {
        self.state.planned_in(us);
    }

    fn deliver(&mut self, effects: Vec<Effect>) {
        self.plan_due = true;
        if !effects.is_empty() {
            self.actions.push_back(Action::Deliver(effects));
        }
    }

    /// Checks the invariants of the scheduler's state.
    ///
    /// # Errors
    /// Returns a text that says which invariant does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.state.check()
    }

    /// Returns the targets in effect.
    pub fn targets(&self) -> Targets {
        self.state.targets()
    }

    /// Returns the promise to a live sequence: its tier, tenant, arrival and targets.
    pub fn promise(&self, seq: SeqId) -> Option<Promise> {
        self.state.promise(seq)
    }

    /// Returns the phase of a live sequence.
    pub fn phase(&self, seq: SeqId) -> Option<Phase> {
        self.state.phase(seq)
    }

    /// Returns the ids of all live sequences: first active ones, then waiting ones, each oldest first.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.state.live()
    }

    /// Whether no sequence is live, no action is due, and the state has nothing left to report or to wait for.
    pub fn is_drained(&self) -> bool {
        self.actions.is_empty() && self.state.is_drained()
    }

    /// Counts the sequences that wait for their start, that run, and that are preempted.
    pub fn census(&self) -> Census {
        self.state.census()
    }

    /// Returns the totals since the start.
    pub fn counters(&self) -> Counters {
        self.state.counters()
    }

    /// Returns the most sequences that a step can hold.
    pub fn max_num_seqs(&self) -> u32 {
        self.state.max_num_seqs()
    }

    /// Returns the errors of predicted output lengths.
    pub fn prediction_error(&self) -> PredictionError {
        self.state.prediction_error()
    }

    /// Returns the errors of predicted step and copy times.
    pub fn cost_error(&self) -> CostError {
        self.state.cost_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::{all_sample, grant_all, scheduler, sequence};

    /// Creates a scheduler without sequences and without actions.
    fn surface() -> Scheduler {
        Scheduler {
            state: scheduler(|_| ()),
            actions: VecDeque::new(),
            plan_due: false,
            wakes_at: Timestamp(0),
        }
    }

    fn reserve(s: &mut Scheduler, now: u64) -> StepRequest {
        match s.next_action(Timestamp(now)) {
            Some(Action::Reserve { request, .. }) => request,
            other => panic!("{other:?}"),
        }
    }

    fn submit(s: &mut Scheduler, now: u64) -> StepBatch {
        match s.next_action(Timestamp(now)) {
            Some(Action::Submit(batch)) => batch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cycle_is_reserve_submit_deliver_and_the_completion_is_told_in_any_case() {
        let mut s = surface();
        assert!(s.next_action(Timestamp(0)).is_none(), "nothing happened");
        s.enqueue(NewSequence { max_tokens: 2, ..sequence(1, Tier::Standard, 5) });
        let request = reserve(&mut s, 10);
        assert!(s.next_action(Timestamp(10)).is_none(), "the block store has yet to answer");
        s.granted(grant_all(&request));
        let batch = submit(&mut s, 20);
        s.step_done(all_sample(&batch, 1), Timestamp(30));
        let delivered = s.next_action(Timestamp(30));
        assert!(
            matches!(&delivered, Some(Action::Deliver(effects)) if effects.len() == 1),
            "{delivered:?}"
        );
        let request = reserve(&mut s, 30);
        assert_eq!(request.completed_step, batch.id, "the request tells that the step completed");
        assert!(s.next_action(Timestamp(30)).is_none());
        s.set_hold(SeqId(1), Hold::Operator, true);
        s.granted(grant_all(&request));
        let batch = submit(&mut s, 40);
        s.cancel(SeqId(1));
        assert!(matches!(s.next_action(Timestamp(41)), Some(Action::Deliver(_))));
        s.step_done(all_sample(&batch, 1), Timestamp(50));
        let released = reserve(&mut s, 50);
        assert_eq!(released.released, [SeqId(1)]);
        s.granted(grant_all(&released));
        assert!(s.next_action(Timestamp(51)).is_none() && s.is_drained());
    }

    #[test]
    fn an_empty_grant_is_no_reason_to_plan_again() {
        let mut s = surface();
        s.enqueue(sequence(1, Tier::Standard, 5));
        let request = reserve(&mut s, 10);
        s.granted(StepGrant { step: request.step, ..StepGrant::default() });
        assert!(s.next_action(Timestamp(20)).is_none());
        s.wake();
        reserve(&mut s, 30);
    }
}
