//! The pipeline: steps in flight, and when the next step may be planned.
//!
//! A device that takes two steps need not wait for the host between them: the second step is at the device when the
//! first ends. The second step is planned a short time, the lead, before the first ends, and not as early as possible,
//! because a request that comes after that plan waits for the end of the second step. The lead is learned: it grows
//! with each step that was planned too late and shrinks with each that was not, by amounts that leave one late step for
//! [`STEPS_PER_LATE_PLAN`] steps in time (stochastic approximation of a quantile: Robbins and Monro, 1951). The lead is
//! at most [`LEAD_MAX`] times the host's time for a step, because that time is all that can be gained. Where steps are
//! not as long as predicted, a longer lead would make more steps follow without a gap, but every request that arrives
//! would wait longer.

pub(crate) mod progress;

use crate::accounting::StepShares;
use crate::ewma::Ewma;
use crate::scheduler::cost::StepWork;
use tiercel_device::{SeqId, StepId, Tier, Timestamp};

/// Upper bound of the number of steps in flight, whatever a device allows.
pub(crate) const MAX_DEPTH: usize = 2;
/// Number of steps planned in time for each step that may be planned too late, so that the device idles before the late
/// one: the increase of the planning lead after a late step / the decrease after a step in time.
const STEPS_PER_LATE_PLAN: f64 = 20.0;
/// Increase of the planning lead after a step at whose end no other step was in flight (the next step was planned too
/// late), as a share of the predicted duration of the step that ended.
const LEARNING: f64 = 0.02;
/// Longest planning lead (time before the end of a step at which the next is planned), in multiples of the host's time
/// for a step.
const LEAD_MAX: f64 = 2.0;
/// Least host time per step, as a share of the step's duration, with which two steps are kept in flight; below it the
/// gain is too small.
const WORTH_WHILE: f64 = 0.005;
/// Weight of a new observation in the mean host times for planning a step and for starting it.
const SMOOTHING: f64 = 0.1;

/// The pipeline: steps that the device has, and the step that is being planned.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Most steps in flight at a time on this device.
    depth: usize,
    /// Step that is being planned: the block store was asked for its blocks and has not answered yet.
    reserving: Option<Reserving>,
    /// Steps that were submitted to the device and have not ended, in order.
    in_flight: Vec<InFlight>,
    /// Number of the step that was planned last.
    last: StepId,
    /// Whether a step has ended and the block store has not been told yet; copies may wait for that.
    unreported: bool,
    /// Learned planning lead: time before the end of a step in flight at which the next one is planned, us.
    lead_us: f64,
    /// Mean host time for planning a step, us.
    planning_us: Ewma,
    /// Mean host time for starting a step on the device, us.
    starting_us: Ewma,
}

/// A step that is being planned: the block store was asked for its blocks and has not answered yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserving {
    step: StepId,
    /// Time at which the planned step is expected to begin.
    pub(crate) begins: Timestamp,
    /// Whether a step in flight on which the planned step relies has failed, so that the plan is void.
    pub(crate) invalidated: bool,
}

/// A step in flight: it was submitted to the device and has not ended.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    /// Sequences that the step computes.
    pub(crate) members: Vec<SeqId>,
    pub(crate) work: StepWork,
    /// Predicted time that the sequences of each tier add to the step, us.
    pub(crate) time_us: [f64; Tier::ALL.len()],
    /// Parts of the step's time that tiers and tenants have, and are due.
    pub(crate) shares: StepShares,
    /// Time at which the step began, or is expected to begin.
    pub(crate) begins: Timestamp,
    /// Predicted duration of the step, us.
    pub(crate) expected_us: f64,
    /// Whether an earlier step failed while this step was in flight, so that results that rely on the earlier step do
    /// not count.
    pub(crate) invalidated: bool,
    /// Whether the device leaves out a sequence of the step, because an earlier step drew no token for the sequence.
    /// The step's time then says nothing about costs.
    pub(crate) partial: bool,
}

impl InFlight {
    fn ends(&self) -> Timestamp {
        self.begins + self.expected_us as u64
    }
}

impl Pipeline {
    /// Creates an empty pipeline for at most `depth` steps in flight, and never more than [`MAX_DEPTH`].
    pub(crate) fn new(depth: u32) -> Pipeline {
        Pipeline {
            depth: (depth as usize).clamp(1, MAX_DEPTH),
            reserving: None,
            in_flight: Vec::with_capacity(MAX_DEPTH),
            last: StepId(0),
            unreported: false,
            // Start with an unlimited planning lead, which `lead_of` cuts to the longest allowed one until the lead is
            // learned.
            lead_us: f64::INFINITY,
            planning_us: Ewma::starting_at(0.0, SMOOTHING),
            starting_us: Ewma::starting_at(0.0, SMOOTHING),
        }
    }

    /// Whether no step is in flight or being planned.
    pub(crate) fn is_idle(&self) -> bool {
        self.reserving.is_none() && self.in_flight.is_empty()
    }

    /// Returns the step that was planned last.
    pub(crate) fn last(&self) -> StepId {
        self.last
    }

    /// Whether no step is in flight at the device.
    pub(crate) fn none_in_flight(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn in_flight(&self) -> &[InFlight] {
        &self.in_flight
    }

    /// Returns the last completed step, if the block store has not been told of it yet, and marks it as told.
    pub(crate) fn take_completed(&mut self) -> Option<StepId> {
        std::mem::take(&mut self.unreported).then(|| self.completed())
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the time at which the next step may be planned: at once if no step is in flight, or shortly before the
    /// last step in flight ends. `None` if a step must end or the block store must answer first.
    pub(crate) fn next_plan(&self) -> Option<Timestamp> {
        if self.reserving.is_some() || self.in_flight.len() >= self.depth {
            return None;
        }
        let Some(last) = self.in_flight.last() else { return Some(Timestamp(0)) };
        // After a failed step, plan only when the steps in flight behind it, which are invalidated, have ended.
        if last.invalidated {
            return None;
        }
        let worth_while = self.host_us() >= last.expected_us * WORTH_WHILE;
        worth_while.then(|| last.ends() - self.lead_of(last.expected_us) as u64)
    }

    /// Returns the number of the last step such that it and all earlier steps have completed, or were never submitted.
    pub(crate) fn completed(&self) -> StepId {
        let in_flight = self.in_flight.first().map(|first| first.step);
        // A step that is being planned may still be submitted, so it does not count as completed.
        let ahead = in_flight.or(self.reserving.map(|reserving| reserving.step));
        ahead.map_or(self.last, |step| StepId(step.0 - 1))
    }

    /// Returns when a step that is planned now will begin: at the expected end of the last step in flight, or now.
    pub(crate) fn begins(&self, now: Timestamp) -> Timestamp {
        self.in_flight.last().map_or(now, |last| last.ends().max(now))
    }

    /// Gives the next step its number and returns it. From now on the step counts as being planned.
    pub(crate) fn reserve(&mut self, now: Timestamp) -> StepId {
        let begins = self.begins(now);
        self.last = StepId(self.last.0 + 1);
        self.unreported = false;
        self.reserving = Some(Reserving { step: self.last, begins, invalidated: false });
        self.last
    }

    /// Ends the planning of the step for which the block store has answered, and returns it; `None` if no such step is
    /// being planned.
    pub(crate) fn reserved(&mut self, step: StepId) -> Option<Reserving> {
        self.reserving.take_if(|reserving| reserving.step == step)
    }

    /// Adds a step to those in flight, because it was submitted to the device.
    pub(crate) fn submit(&mut self, step: InFlight) {
        self.in_flight.push(step);
    }

    /// Removes from the steps in flight the one that has ended; `None` if it is not the first, because steps end in
    /// order.
    pub(crate) fn ended(&mut self, step: StepId, now: Timestamp) -> Option<InFlight> {
        self.in_flight.first().filter(|first| first.step == step)?;
        let ended = self.in_flight.remove(0);
        self.unreported = true;
        if let Some(next) = self.in_flight.first_mut() {
            next.begins = now;
        }
        Some(ended)
    }

    /// Updates the mean planning time by one step. `us` is the time from when the plan was due until the step was
    /// submitted: the measured time since planning began, plus the most by which the timer of the plan may be late.
    pub(crate) fn observe_planning(&mut self, us: u64) {
        self.planning_us.observe(us as f64);
    }

    /// Updates the mean starting time: the host took `us` microseconds to start a step on the device.
    pub(crate) fn observe_starting(&mut self, us: u64) {
        self.starting_us.observe(us as f64);
    }

    /// Returns the mean host time for a step, us: planning it and starting it on the device.
    fn host_us(&self) -> f64 {
        self.planning_us.mean() + self.starting_us.mean()
    }

    /// Adjusts the planning lead after a step has ended: longer if no other step is in flight (the next one was planned
    /// too late), a little shorter otherwise.
    pub(crate) fn learn_lead(&mut self, ended: &InFlight) {
        let step_us = ended.expected_us * LEARNING;
        let change =
            if self.in_flight.is_empty() { step_us } else { -step_us / STEPS_PER_LATE_PLAN };
        self.lead_us = (self.lead_of(ended.expected_us) + change).max(0.0);
    }

    /// Invalidates all steps in flight behind a failed one, and the step that is being planned.
    pub(crate) fn invalidate(&mut self) {
        self.in_flight.iter_mut().for_each(|step| step.invalidated = true);
        if let Some(reserving) = &mut self.reserving {
            reserving.invalidated = true;
        }
    }

    /// Records that a step that has ended drew no token for a sequence, so that the device leaves the sequence out of
    /// later steps in flight.
    pub(crate) fn leave_out(&mut self, seq: SeqId) {
        let later = self.in_flight.iter_mut().filter(|step| step.members.contains(&seq));
        later.for_each(|step| step.partial = true);
    }

    fn lead_of(&self, step_us: f64) -> f64 {
        self.lead_us.min(self.host_us() * LEAD_MAX).min(step_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a step that takes 150 us.
    fn step(number: u64) -> InFlight {
        InFlight {
            step: StepId(number),
            members: Vec::new(),
            work: StepWork::default(),
            time_us: [0.0; Tier::ALL.len()],
            shares: StepShares::default(),
            begins: Timestamp(1000),
            expected_us: 150.0,
            invalidated: false,
            partial: false,
        }
    }

    #[test]
    fn the_pipeline_is_idle_while_no_step_is_planned_or_in_flight() {
        let mut pipeline = Pipeline::new(1);
        assert!(pipeline.is_idle());
        let number = pipeline.reserve(Timestamp(0));
        assert!(!pipeline.is_idle(), "a step is being planned");
        assert!(pipeline.reserved(number).is_some() && pipeline.is_idle());
        pipeline.submit(step(number.0));
        assert!(!pipeline.is_idle(), "a step is in flight");
        assert!(pipeline.ended(number, Timestamp(1200)).is_some() && pipeline.is_idle());
    }

    #[test]
    fn a_step_is_planned_twice_the_hosts_time_before_the_one_in_flight_ends() {
        let mut pipeline = Pipeline::new(2);
        // Both means start at 0 us, and one observation counts a tenth: planning takes 10 us, and starting 5 us.
        pipeline.observe_planning(100);
        pipeline.observe_starting(50);
        pipeline.submit(step(1));
        assert_eq!(pipeline.next_plan(), Some(Timestamp(1000 + 150 - 2 * 15)));
    }
}
