//! The interface of the scheduler: events in, actions out.
//!
//! After an event, call [`Scheduler::next_action`] until it returns `None`, and carry out each action before the next
//! call: an action may cause events, such as a client that is found gone when its token is delivered.

use crate::accounting::UsageReport;
use crate::admission::Capacity;
use crate::protocol::{StepGrant, StepRequest, StoreEvent};
use crate::scheduler::cost::CostError;
use crate::scheduler::counters::{Census, Counters};
use crate::scheduler::inspect::SequenceView;
use crate::scheduler::outcome::{Effect, PreemptDecision, RequestFault};
use crate::scheduler::queue::length_predictor::PredictionError;
use crate::scheduler::sequence::{Hold, NewSequence, Phase};
use crate::scheduler::state::State;
use crate::slo::{Promise, Retargeted, Targets};
use std::collections::VecDeque;
use tiercel_config::{EngineSettings, Policy};
use tiercel_device::{
    DeviceInfo, DeviceProfile, SeqId, StepBatch, StepDone, StepId, Tier, Timestamp,
};

/// Action that a scheduler, which does no I/O itself, asks its caller to carry out next.
#[derive(Debug)]
#[must_use]
pub enum Action {
    /// Submit a batch to the device, and report its end with [`Scheduler::step_done`].
    Submit(StepBatch),
    /// Deliver tokens and ends of requests to the clients.
    Deliver(Vec<Effect>),
    /// Send a step request to the block store, and report the answer with [`Scheduler::granted`]. Send `capacity` to
    /// admission.
    Reserve {
        /// Step request to the block store.
        request: StepRequest,
        /// Report for admission: device time that is available to prompts, and the backlog of prompts.
        capacity: Capacity,
    },
    /// Call [`Scheduler::wake`] at this time, because the next step may be planned then.
    WakeAt(Timestamp),
    /// Tell the block store that this step and every step before it have completed, because copies may wait for them.
    Completed(StepId),
    /// Tell admission the new latency targets, which new requests are promised from now on.
    Retarget(Retargeted),
}

/// The scheduler: every live sequence, and the actions that its owner must carry out.
#[derive(Debug)]
pub struct Scheduler {
    /// Live sequences, memory and steps, with the decisions about them.
    state: State,
    /// Actions that the owner must carry out, in order.
    actions: VecDeque<Action>,
    /// Whether an event came to which a new plan could respond.
    must_plan: bool,
    /// Time in the latest [`Action::WakeAt`], so that it is not repeated.
    wakes_at: Timestamp,
}

impl Scheduler {
    /// Creates a scheduler without sequences for a device.
    pub fn new(settings: &EngineSettings, info: &DeviceInfo, profile: DeviceProfile) -> Scheduler {
        Scheduler {
            state: State::new(settings, info, profile),
            actions: VecDeque::new(),
            must_plan: false,
            wakes_at: Timestamp(0),
        }
    }

    /// Returns the next action to carry out; `None` if there is none before the next event.
    pub fn next_action(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if std::mem::take(&mut self.must_plan) {
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

    /// Whether the caller has taken all actions, and the scheduler has planned since the last event that asks for it.
    pub fn is_settled(&self) -> bool {
        self.actions.is_empty() && !self.must_plan
    }

    /// Adds a new sequence, which waits for KV blocks.
    pub fn enqueue(&mut self, new: NewSequence) {
        self.state.enqueue(new);
        self.must_plan = true;
    }

    /// Ends a sequence whose client has gone. Its [`Effect::Ended`] has no outcome.
    pub fn cancel(&mut self, seq: SeqId) {
        let ended = self.state.cancel(seq).map(Effect::Ended);
        self.deliver(ended.into_iter().collect());
    }

    /// Ends a sequence whose output is complete for a reason that only the HTTP side knows, such as a stop string.
    pub fn stop(&mut self, seq: SeqId) {
        let ended = self.state.stop(seq);
        self.deliver(ended.into_iter().collect());
    }

    /// Ends a sequence with an error.
    pub fn fail(&mut self, seq: SeqId, fault: RequestFault) {
        let ended = self.state.fail(seq, fault);
        self.deliver(ended.into_iter().collect());
    }

    /// Of the waiting sequences of tiers below `tier` that have not started and are not on hold, ends the one last in
    /// rank, so that a request of `tier` can have its permit; returns whether one was ended. `choices` is the number of
    /// permits that the request needs; no sequence is ended if these tiers have fewer waiting sequences (sequences on
    /// hold count too).
    pub fn displace(&mut self, tier: Tier, choices: u32, now: Timestamp) -> bool {
        let ended = self.state.displace(tier, choices, now);
        let found = ended.is_some();
        self.deliver(ended.into_iter().collect());
        found
    }

    /// Puts a sequence on hold (an operator paused it, or its client reads too slowly), or ends the hold; returns
    /// whether the sequence is known.
    pub fn set_hold(&mut self, seq: SeqId, hold: Hold, held: bool) -> bool {
        self.must_plan = true;
        self.state.set_hold(seq, hold, held)
    }

    /// Changes the tier and the priority of a sequence from the next plan on; returns whether the sequence is known.
    pub fn reprioritize(&mut self, seq: SeqId, tier: Tier, priority: i32) -> bool {
        self.must_plan = true;
        self.state.reprioritize(seq, tier, priority)
    }

    /// Switches to a named policy, which the next plan follows. The largest numbers of sequences and of tokens in a
    /// step, the number of steps in flight, the limit on copies in transit, shares, reservations, latency targets and
    /// the prefix cache stay as they are.
    pub fn set_policy(&mut self, policy: Policy) {
        self.must_plan = true;
        self.state.set_policy(policy);
    }

    /// Switches to other settings of scheduling, preemption, shedding, shares, reservations and latency targets, which
    /// the next plan follows. The number of steps in flight, the limit on copies in transit and the prefix cache stay
    /// as they are, and live sequences keep the targets that they were promised.
    pub fn adjust(&mut self, settings: &EngineSettings) {
        self.must_plan = true;
        let retarget = self.state.adjust(settings).map(Action::Retarget);
        self.actions.extend(retarget);
    }

    /// Periodic work: ends requests that have waited for their first token longer than their patience, and derives
    /// latency targets again if the mean correction of step times has changed by a tenth.
    pub fn tick(&mut self, now: Timestamp) {
        let expired = self.state.expire(now);
        if !expired.is_empty() {
            self.deliver(expired);
        }
        let retarget = self.state.derive_targets_anew().map(Action::Retarget);
        self.actions.extend(retarget);
    }

    /// Makes the scheduler plan although no event came, because the time in [`Action::WakeAt`] has come.
    pub fn wake(&mut self) {
        self.must_plan = true;
    }

    /// Applies the block store's answer to a step request.
    pub fn granted(&mut self, grant: StepGrant) {
        let (batch, effects) = self.state.granted(grant);
        // Plan again if a batch is submitted, because another step may follow it. After an empty plan, plan again only
        // if something happened meanwhile or the next plan considers other sequences.
        self.must_plan |= batch.is_some() || self.state.may_replan();
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

    /// Corrects the cost model by a copy of `blocks` blocks that took `duration_us`, and counts the blocks.
    pub fn copied(&mut self, blocks: u32, duration_us: u64) {
        self.state.copied(blocks, duration_us);
        self.must_plan = true;
    }

    /// Applies an event of the block store. If the copies of a prepared preemption ended, returns whether the store
    /// shall commit or abort it.
    #[must_use]
    pub fn store_event(&mut self, event: StoreEvent) -> PreemptDecision {
        self.must_plan = true;
        self.state.store_event(event)
    }

    /// Records that planning a step took `us` microseconds, from when the plan was due until the step was submitted to
    /// the device.
    pub fn observe_planning(&mut self, us: u64) {
        self.state.observe_planning(us);
    }

    fn deliver(&mut self, effects: Vec<Effect>) {
        self.must_plan = true;
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

    /// Returns the latency targets in effect.
    pub fn targets(&self) -> Targets {
        self.state.targets()
    }

    /// Returns what a live sequence was promised: its tier, tenant, arrival and latency targets.
    pub fn promise(&self, seq: SeqId) -> Option<Promise> {
        self.state.promise(seq)
    }

    /// Returns the phase of a live sequence; `None` if the sequence is unknown.
    pub fn phase(&self, seq: SeqId) -> Option<Phase> {
        self.state.phase(seq)
    }

    /// Returns a view of a live sequence for operators; `None` if the sequence is unknown.
    pub fn inspect(&self, seq: SeqId, now: Timestamp) -> Option<SequenceView> {
        self.state.inspect(seq, now)
    }

    /// Returns the time in which the queue of a tier drains, us, by Little's law from the length of the queue and the
    /// rate at which requests leave the queue; `None` if the rate is unknown.
    pub fn drain_us(&self, tier: Tier, now: Timestamp) -> Option<f64> {
        self.state.queue.drain[tier.index()].wait_us(now)
    }

    /// Returns the step that was planned last.
    pub fn last_step(&self) -> StepId {
        self.state.pipeline.last()
    }

    /// Returns the ids of all live sequences: first active ones (which hold KV blocks), then waiting ones, each group
    /// oldest first.
    pub fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.state.live()
    }

    /// Whether any live sequence is not on hold.
    pub fn has_work(&self) -> bool {
        self.state.has_work()
    }

    /// Whether the scheduler has nothing left to do: no sequence is live, no action is due, and nothing must still be
    /// reported or awaited.
    pub fn is_drained(&self) -> bool {
        self.actions.is_empty() && self.state.is_drained()
    }

    /// Counts the sequences that wait for their start, those that run and those that are preempted.
    pub fn census(&self) -> Census {
        self.state.census()
    }

    /// Returns the totals of steps, preemptions, copies and tokens since the start of the scheduler.
    pub fn counters(&self) -> Counters {
        self.state.counters()
    }

    /// Returns the tokens and the device time that each tier and each tenant had, and the device time that was due to
    /// them.
    pub fn usage(&self, now: Timestamp) -> UsageReport {
        self.state.usage_report(now)
    }

    /// Returns the largest number of sequences that a step may have.
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
mod tests;
