//! Lanes of the HTML page of a simulation: each shows the states of one request over time, within a window of the run.

use crate::trace::{Ending, Event, Slice};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Room for lanes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Maximum number of requests that have a lane (line of states over time).
    pub(crate) lanes: usize,
    /// Maximum number of spans (times in which a request stays in one state) of all lanes together. Spans that have
    /// begun when the limit is reached are still added.
    pub(crate) spans: usize,
}

/// Number of different states that a lane shows.
pub(super) const STATES: usize = 7;
/// Names of the states, in the order of [`State`].
pub(crate) const STATE_NAMES: [&str; STATES] =
    ["waiting", "prefill", "decode", "not in the step", "copying out", "preempted", "copying in"];

/// State of a request as its lane shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The request waits for its first step.
    Waiting,
    /// A step computes prompt tokens of the request, or known tokens again after a preemption (prefill).
    Prefill,
    /// A step computes the next output token of the request (decode).
    Decode,
    /// The request holds blocks, but is not in the current step.
    Idle,
    /// The blocks of the request are copied to the host pool, to preempt it by swap.
    CopyingOut,
    /// The request was preempted and waits to resume.
    Preempted,
    /// The blocks of the preempted request are copied back to the device pool.
    CopyingIn,
}

/// Lane: data and states of one request; times in us.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Lane {
    pub(crate) seq: u64,
    pub(crate) tier: usize,
    pub(crate) prompt: u32,
    pub(crate) max_tokens: u32,
    pub(crate) arrived: u64,
    pub(crate) first_token: Option<u64>,
    pub(crate) ended: Option<u64>,
    pub(crate) ending: Option<&'static str>,
    pub(crate) tokens: Option<u32>,
    pub(crate) preemptions: u32,
    /// Times that the request spent in one state each, as triples of numbers: state, begin, end.
    pub(crate) spans: Vec<u64>,
    #[serde(skip)]
    state: State,
    #[serde(skip)]
    since: Timestamp,
}

/// Lanes (states over time) of the requests that were alive in a window of time.
pub(crate) struct Lanes {
    window: Range<Timestamp>,
    room: Room,
    lanes: BTreeMap<SeqId, Lane>,
    /// Requests that have a lane and are in the current step.
    in_step: BTreeSet<SeqId>,
    spans: usize,
    /// Number of requests without a lane, because there were already as many lanes as the page may have.
    left_out: u64,
    /// Time at which the lanes together reached their maximum number of spans (times of a request in one state); `None`
    /// if they did not. Later states are not shown.
    cut: Option<Timestamp>,
}

impl Lanes {
    pub(crate) fn new(window: Range<Timestamp>, room: Room) -> Lanes {
        let (lanes, in_step) = (BTreeMap::new(), BTreeSet::new());
        Lanes { window, room, lanes, in_step, spans: 0, left_out: 0, cut: None }
    }

    /// Takes over an event of the engine.
    pub(crate) fn record(&mut self, at: Timestamp, event: &Event) {
        match event {
            Event::Arrived { seq, tier, prompt, max_tokens } => {
                self.arrived(*seq, *tier, *prompt, *max_tokens, at);
            }
            Event::StepSubmitted { slices, .. } => self.step(at, slices),
            Event::FirstToken { seq } => self.first_token(*seq, at),
            Event::PreemptFreed { seq, .. } | Event::PreemptCommitted { seq, .. } => {
                self.changes(*seq, State::Preempted, at);
            }
            Event::PreemptCopying { seq, .. } => self.changes(*seq, State::CopyingOut, at),
            Event::ResumeCopying { seq, .. } => self.changes(*seq, State::CopyingIn, at),
            Event::PreemptAborted { seq, .. } | Event::Resumed { seq, .. } => {
                self.changes(*seq, State::Idle, at);
            }
            Event::Ended { seq, ending, tokens, .. } => {
                self.in_step.remove(seq);
                self.ended(*seq, *ending, *tokens, at);
            }
            _ => {}
        }
    }

    /// Updates the states of requests when a step begins: its members are in prefill or decode, and a request that was
    /// in the step before but is not in this step becomes idle.
    fn step(&mut self, at: Timestamp, slices: &[Slice]) {
        let shown = slices.iter().filter(|slice| self.lanes.contains_key(&slice.seq));
        let now: BTreeMap<SeqId, State> = shown
            .map(|slice| {
                (slice.seq, if slice.is_decode() { State::Decode } else { State::Prefill })
            })
            .collect();
        for seq in std::mem::take(&mut self.in_step) {
            if !now.contains_key(&seq) {
                self.becomes(seq, State::Idle, at);
            }
        }
        for (seq, state) in now {
            self.becomes(seq, state, at);
            self.in_step.insert(seq);
        }
    }

    fn changes(&mut self, seq: SeqId, state: State, at: Timestamp) {
        self.in_step.remove(&seq);
        self.becomes(seq, state, at);
    }

    fn arrived(&mut self, seq: SeqId, tier: Tier, prompt: u32, max: u32, at: Timestamp) {
        if at >= self.last() {
            return;
        }
        if self.lanes.len() >= self.room.lanes {
            self.left_out += 1;
            return;
        }
        let lane = Lane {
            seq: seq.0,
            tier: tier.index(),
            prompt,
            max_tokens: max,
            arrived: at.0,
            first_token: None,
            ended: None,
            ending: None,
            tokens: None,
            preemptions: 0,
            spans: Vec::new(),
            state: State::Waiting,
            since: at,
        };
        self.lanes.insert(seq, lane);
    }

    fn first_token(&mut self, seq: SeqId, at: Timestamp) {
        if let Some(lane) = self.lanes.get_mut(&seq) {
            lane.first_token = Some(at.0);
        }
    }

    /// Records that a request changes its state.
    pub(crate) fn becomes(&mut self, seq: SeqId, state: State, at: Timestamp) {
        let last = self.last();
        let Some(lane) = self.lanes.get_mut(&seq) else { return };
        if lane.state == state {
            return;
        }
        self.spans += usize::from(lane.close(&self.window, last.min(at)));
        lane.state = state;
        lane.since = at;
        lane.preemptions += u32::from(state == State::Preempted);
        if self.spans >= self.room.spans && self.cut.is_none() {
            self.cut = Some(at);
        }
    }

    /// Records the end of a request. A request that ended before the page's window loses its lane and so makes room for
    /// another.
    fn ended(&mut self, seq: SeqId, ending: Ending, tokens: u32, at: Timestamp) {
        let last = self.last();
        let Some(lane) = self.lanes.get_mut(&seq) else {
            if at < self.window.start {
                self.left_out = self.left_out.saturating_sub(1);
            }
            return;
        };
        if at < self.window.start {
            self.lanes.remove(&seq);
            return;
        }
        self.spans += usize::from(lane.close(&self.window, last.min(at)));
        lane.since = Timestamp(u64::MAX);
        lane.ended = Some(at.0);
        lane.ending = Some(ending.name());
        lane.tokens = Some(tokens);
    }

    /// Returns the lanes, oldest request first, with their last spans ended at `end`; the number of requests without a
    /// lane; and the time at which the lanes reached their maximum number of spans.
    pub(crate) fn finish(mut self, end: Timestamp) -> (Vec<Lane>, u64, Option<u64>) {
        let last = self.last().min(end);
        for lane in self.lanes.values_mut() {
            lane.close(&self.window, last);
        }
        (self.lanes.into_values().collect(), self.left_out, self.cut.map(|at| at.0))
    }

    /// Returns the time at which lanes end: the end of the page's window, or earlier if the maximum number of spans was
    /// reached.
    fn last(&self) -> Timestamp {
        self.cut.map_or(self.window.end, |cut| cut.min(self.window.end))
    }
}

impl Lane {
    /// Adds the time that the request has spent in its current state, up to `at`, to its lane. Returns whether a new
    /// span was added, rather than the last one made longer.
    fn close(&mut self, window: &Range<Timestamp>, at: Timestamp) -> bool {
        let (begin, end) = (self.since.max(window.start), at.min(window.end));
        if begin >= end {
            return false;
        }
        let state = self.state as u64;
        if let [.., before, _, joint] = &mut self.spans[..]
            && (*before, *joint) == (state, begin.0)
        {
            *joint = end.0;
            return false;
        }
        self.spans.extend([state, begin.0, end.0]);
        true
    }
}
