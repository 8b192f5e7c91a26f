//! The pipeline: steps in flight, and when the next step may be planned.
//!
//! A device that takes two steps need not wait for the host between them: the second step is at the device when the
//! first ends. The second step is planned a lead before the first ends, and not as early as possible, because a request
//! that comes after that plan waits for the end of the second step. The lead is learned: it grows with each step that
//! was planned too late and shrinks with each that was not, by amounts that leave one step in [`IN_TIME`] too late
//! (stochastic approximation of a quantile: Robbins and Monro, 1951). The lead is never much longer than the host's
//! time for a step, because that time is all that can be gained. Where steps are not as long as predicted, a longer
//! lead would make more steps follow at once, but all requests that come wait longer.

pub(crate) mod progress;

use crate::ewma::Ewma;
use crate::scheduler::cost::StepWork;
use tiercel_device::{SeqId, StepId, Tier, Timestamp};

/// Most steps in flight, whatever a device allows.
pub(crate) const MAX_DEPTH: usize = 2;
/// One step in this many may be planned too late to follow the step before it at once.
const IN_TIME: f64 = 20.0;
/// Growth of the lead with a step that was planned too late, as a share of the step's duration.
const LEARNING: f64 = 0.02;
/// Longest lead, in multiples of the host's time for a step.
const LEAD_MAX: f64 = 2.0;
/// Host time, as a share of a step's duration, from which on two steps in flight are worth while.
const WORTH_WHILE: f64 = 0.005;
/// Weight of a new observation in the mean times that the host takes to plan and to start a step.
const SMOOTHING: f64 = 0.1;

/// Steps at the device, and the step that is being planned.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Most steps in flight at a time.
    depth: usize,
    /// The step that the block store was asked for and has not answered yet.
    reserving: Option<Reserving>,
    /// Steps at the device, in order.
    in_flight: Vec<InFlight>,
    /// Number of the step that was planned last.
    last: StepId,
    /// Whether the block store has yet to be told that a step has ended: copies may wait for that.
    unreported: bool,
    /// Learned lead: time before the end of a step in flight at which the next one is planned, us.
    lead_us: f64,
    /// Mean time in which the host plans a step, us.
    planning_us: Ewma,
    /// Mean time in which the device's host side starts a step, us.
    starting_us: Ewma,
}

/// A step that the block store was asked for and has not answered yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserving {
    step: StepId,
    /// When the step is expected to begin.
    pub(crate) begins: Timestamp,
    /// Whether a step that was in flight when this one was planned has failed since.
    pub(crate) invalidated: bool,
}

/// A step at the device.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    /// Sequences in the step.
    pub(crate) slices: Vec<SeqId>,
    pub(crate) work: StepWork,
    /// Time that the sequences of each tier add to the step, us.
    pub(crate) time_us: [f64; Tier::ALL.len()],
    /// When the step began, or is expected to begin.
    pub(crate) begins: Timestamp,
    /// Expected duration of the step, us.
    pub(crate) expected_us: f64,
    /// Whether a step before this one failed while this one was in flight.
    pub(crate) invalidated: bool,
}

impl InFlight {
    fn ends(&self) -> Timestamp {
        self.begins + self.expected_us as u64
    }
}

impl Pipeline {
    /// Creates a pipeline of at most `depth` steps in flight.
    pub(crate) fn new(depth: u32) -> Pipeline {
        Pipeline {
            depth: (depth as usize).clamp(1, MAX_DEPTH),
            reserving: None,
            in_flight: Vec::with_capacity(MAX_DEPTH),
            last: StepId(0),
            unreported: false,
            // Until the lead is learned, it is as long as allowed.
            lead_us: f64::INFINITY,
            planning_us: Ewma::starting_at(0.0, SMOOTHING),
            starting_us: Ewma::starting_at(0.0, SMOOTHING),
        }
    }

    /// Whether no step is at the device or being planned.
    pub(crate) fn is_idle(&self) -> bool {
        self.reserving.is_none() && self.in_flight.is_empty()
    }

    /// Whether no step is at the device.
    pub(crate) fn is_dry(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn in_flight(&self) -> &[InFlight] {
        &self.in_flight
    }

    /// Returns the last completed step, if the block store has yet to be told of it.
    pub(crate) fn take_completed(&mut self) -> Option<StepId> {
        std::mem::take(&mut self.unreported).then(|| self.completed())
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns when the next step may be planned, if nothing else has to happen first: at once, or shortly before the
    /// step in flight ends.
    pub(crate) fn next_plan(&self) -> Option<Timestamp> {
        if self.reserving.is_some() || self.in_flight.len() >= self.depth {
            return None;
        }
        let Some(last) = self.in_flight.last() else { return Some(Timestamp(0)) };
        // After a failure, the next step waits until the invalidated ones have ended.
        if last.invalidated {
            return None;
        }
        let worth_while = self.host_us() >= last.expected_us * WORTH_WHILE;
        worth_while.then(|| last.ends() - self.lead_of(last.expected_us) as u64)
    }

    /// Returns the step up to which every step has completed, or never began.
    pub(crate) fn completed(&self) -> StepId {
        let in_flight = self.in_flight.first().map(|first| first.step);
        // The step that the block store is asked for may still begin, so it has not completed.
        let ahead = in_flight.or(self.reserving.map(|reserving| reserving.step));
        ahead.map_or(self.last, |step| StepId(step.0 - 1))
    }

    /// Returns when a step that is planned now begins, if it is planned early enough.
    pub(crate) fn begins(&self, now: Timestamp) -> Timestamp {
        self.in_flight.last().map_or(now, |last| last.ends().max(now))
    }

    /// Gives the next step its number and returns it. The block store is now asked for the step.
    pub(crate) fn reserve(&mut self, now: Timestamp) -> StepId {
        let begins = self.begins(now);
        self.last = StepId(self.last.0 + 1);
        self.unreported = false;
        self.reserving = Some(Reserving { step: self.last, begins, invalidated: false });
        self.last
    }

    /// Takes the step that the block store has answered for; `None` if the block store was not asked for it.
    pub(crate) fn reserved(&mut self, step: StepId) -> Option<Reserving> {
        self.reserving.take_if(|reserving| reserving.step == step)
    }

    /// Adds a step that goes to the device.
    pub(crate) fn submit(&mut self, step: InFlight) {
        self.in_flight.push(step);
    }

    /// Removes a step that has ended at the device; `None` if another step must end first.
    pub(crate) fn ended(&mut self, step: StepId, now: Timestamp) -> Option<InFlight> {
        self.in_flight.first().filter(|first| first.step == step)?;
        let ended = self.in_flight.remove(0);
        self.unreported = true;
        if let Some(next) = self.in_flight.first_mut() {
            next.begins = now;
        }
        Some(ended)
    }

    /// Learns that the host planned a step in `us` microseconds, from when the plan was due.
    pub(crate) fn planned_in(&mut self, us: u64) {
        self.planning_us.observe(us as f64);
    }

    /// Learns that the device's host side took `us` microseconds to start a step.
    pub(crate) fn starts_in(&mut self, us: u64) {
        self.starting_us.observe(us as f64);
    }

    /// Returns the mean time of the host from one step to the next, us.
    fn host_us(&self) -> f64 {
        self.planning_us.mean() + self.starting_us.mean()
    }

    /// Adjusts the lead by a step that has ended: the next step followed at once, or came too late.
    pub(crate) fn learn_lead(&mut self, ended: &InFlight) {
        let step_us = ended.expected_us * LEARNING;
        let change = if self.in_flight.is_empty() { step_us } else { -step_us / IN_TIME };
        self.lead_us = (self.lead_of(ended.expected_us) + change).max(0.0);
    }

    /// Invalidates all steps that follow a failed one.
    pub(crate) fn invalidate(&mut self) {
        self.in_flight.iter_mut().for_each(|step| step.invalidated = true);
        if let Some(reserving) = &mut self.reserving {
            reserving.invalidated = true;
        }
    }

    fn lead_of(&self, step_us: f64) -> f64 {
        self.lead_us.min(self.host_us() * LEAD_MAX).min(step_us)
    }
}
