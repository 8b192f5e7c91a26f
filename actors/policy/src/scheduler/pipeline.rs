//! Steps in flight, and when the next may be planned.
//!
//! A device that takes two steps need not wait for the host between them: the second is there when the first ends. It is
//! planned a lead before that, not as soon as there is a place, because whoever comes after it was planned waits for its
//! end. The lead is learned: it becomes longer with each step that was planned too late and shorter with each that was
//! not, by amounts that leave one in [`IN_TIME`] too late (a quantile followed by stochastic approximation: Robbins and
//! Monro, 1951). It is never much longer than what the host takes, since that is all there is to gain: where steps are
//! not as long as predicted, a longer one would make more of them follow at once, but everybody who comes wait longer.

use crate::scheduler::cost::StepWork;
use tiercel_device::{SeqId, StepId, Tier, Timestamp};

/// Most steps in flight, whatever a device allows.
pub(crate) const MAX_DEPTH: usize = 2;
/// Of so many steps that follow another at once, one may be planned too late for it.
const IN_TIME: f64 = 20.0;
/// How much of a step the lead grows with one that was planned too late.
const LEARNING: f64 = 0.02;
/// The longest lead, in times of what the host takes.
const MOST_LEADS: f64 = 2.0;
/// Share of a step that the host must take for two in flight to be worth while.
const WORTH_WHILE: f64 = 0.005;
/// Weight of a new observation of what the host takes.
const SMOOTHING: f64 = 0.1;

/// Steps at the device and the one that is being planned.
#[derive(Debug)]
pub(crate) struct Pipeline {
    depth: usize,
    /// The store was asked for this step.
    reserving: Option<Reserving>,
    /// At the device, in order.
    in_flight: Vec<InFlight>,
    /// The last one planned.
    last: StepId,
    /// Whether the store has yet to be told that a step has ended: copies may wait for it.
    unreported: bool,
    lead_us: f64,
    /// What the host takes to plan a step, and what the device's own part of it takes to start one; smoothed, us.
    planning_us: f64,
    starting_us: f64,
}

/// A step the store was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserving {
    step: StepId,
    /// When it is expected to begin.
    pub(crate) begins: Timestamp,
    /// Whether a step that it was planned on has failed.
    pub(crate) in_vain: bool,
}

/// A step at the device.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    /// Who is in it.
    pub(crate) slices: Vec<SeqId>,
    pub(crate) work: StepWork,
    /// What its members add to its length, by tier, us.
    pub(crate) time_us: [f64; Tier::ALL.len()],
    /// When it began, or is expected to.
    pub(crate) begins: Timestamp,
    /// How long it is expected to take, us.
    pub(crate) expected_us: f64,
    /// Whether a step before it failed while it was in flight.
    pub(crate) shaken: bool,
}

impl InFlight {
    fn ends(&self) -> Timestamp {
        self.begins + self.expected_us as u64
    }
}

impl Pipeline {
    /// Nothing in flight, and at most `depth` steps ever.
    pub(crate) fn new(depth: u32) -> Pipeline {
        Pipeline {
            depth: (depth as usize).clamp(1, MAX_DEPTH),
            reserving: None,
            in_flight: Vec::with_capacity(MAX_DEPTH),
            last: StepId(0),
            unreported: false,
            // As long as may be, until it is learned.
            lead_us: f64::INFINITY,
            planning_us: 0.0,
            starting_us: 0.0,
        }
    }

    /// Whether nothing is at the device or being planned.
    pub(crate) fn is_idle(&self) -> bool {
        self.reserving.is_none() && self.in_flight.is_empty()
    }

    /// Whether the device has nothing to do.
    pub(crate) fn is_dry(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn in_flight(&self) -> &[InFlight] {
        &self.in_flight
    }

    /// What the store has yet to be told: every step up to this one has completed.
    pub(crate) fn take_completed(&mut self) -> Option<StepId> {
        std::mem::take(&mut self.unreported).then(|| self.completed())
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// When the next step may be planned, if nothing else has to happen first: at once, or shortly before the step in
    /// flight ends.
    pub(crate) fn next_plan(&self) -> Option<Timestamp> {
        if self.reserving.is_some() || self.in_flight.len() >= self.depth {
            return None;
        }
        let Some(last) = self.in_flight.last() else { return Some(Timestamp(0)) };
        // What is done again after a failure does not follow what is in vain.
        if last.shaken {
            return None;
        }
        let worth_while = self.host_us() >= last.expected_us * WORTH_WHILE;
        worth_while.then(|| last.ends() - self.lead_of(last.expected_us) as u64)
    }

    /// Every step up to this one has completed, or never began.
    pub(crate) fn completed(&self) -> StepId {
        let in_flight = self.in_flight.first().map(|first| first.step);
        // What the store is asked for now may begin.
        let ahead = in_flight.or(self.reserving.map(|reserving| reserving.step));
        ahead.map_or(self.last, |step| StepId(step.0 - 1))
    }

    /// When a step that is planned now begins, unless it comes too late.
    pub(crate) fn begins(&self, now: Timestamp) -> Timestamp {
        self.in_flight.last().map_or(now, |last| last.ends().max(now))
    }

    /// The store is asked for the next step.
    pub(crate) fn reserve(&mut self, now: Timestamp) -> StepId {
        let begins = self.begins(now);
        self.last = StepId(self.last.0 + 1);
        self.unreported = false;
        self.reserving = Some(Reserving { step: self.last, begins, in_vain: false });
        self.last
    }

    /// The store has answered; `None` if it was not asked for this step.
    pub(crate) fn reserved(&mut self, step: StepId) -> Option<Reserving> {
        self.reserving.take_if(|reserving| reserving.step == step)
    }

    /// A step goes to the device.
    pub(crate) fn submit(&mut self, step: InFlight) {
        self.in_flight.push(step);
    }

    /// A step has come back; `None` if it is not the one that must.
    pub(crate) fn ended(&mut self, step: StepId, now: Timestamp) -> Option<InFlight> {
        self.in_flight.first().filter(|first| first.step == step)?;
        let ended = self.in_flight.remove(0);
        self.unreported = true;
        if let Some(next) = self.in_flight.first_mut() {
            next.begins = now;
        }
        Some(ended)
    }

    /// A step was planned, from when that was due, in so many us.
    pub(crate) fn planned_in(&mut self, us: u64) {
        self.planning_us += SMOOTHING * (us as f64 - self.planning_us);
    }

    /// The device's host needed so many us before the device could begin a step.
    pub(crate) fn starts_in(&mut self, us: u64) {
        self.starting_us += SMOOTHING * (us as f64 - self.starting_us);
    }

    /// What the host takes from one step to the next, us.
    fn host_us(&self) -> f64 {
        self.planning_us + self.starting_us
    }

    /// A step that could have been followed at once was, or was not, because the next one came too late.
    pub(crate) fn learn_lead(&mut self, ended: &InFlight) {
        let step_us = ended.expected_us * LEARNING;
        let change = if self.in_flight.is_empty() { step_us } else { -step_us / IN_TIME };
        self.lead_us = (self.lead_of(ended.expected_us) + change).max(0.0);
    }

    /// What follows a step that failed was computed in vain where it took up from there.
    pub(crate) fn shake(&mut self) {
        self.in_flight.iter_mut().for_each(|step| step.shaken = true);
        if let Some(reserving) = &mut self.reserving {
            reserving.in_vain = true;
        }
    }

    fn lead_of(&self, step_us: f64) -> f64 {
        self.lead_us.min(self.host_us() * MOST_LEADS).min(step_us)
    }
}
