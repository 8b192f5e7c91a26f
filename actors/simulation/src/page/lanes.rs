//! Lanes of the HTML page of a simulation: each shows the states of one request over time, within a window of the run.

use crate::trace::Ending;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Maximum number of requests that the page shows with a lane (line of states over time), per policy.
pub(super) const MAX_LANES: usize = 500;
/// Maximum number of spans (times in which a request stays in one state) of all lanes together. Spans that have begun
/// when the limit is reached are still added.
pub(super) const MAX_SPANS: usize = 30_000;
/// Number of different states that the page shows for a request.
pub(super) const STATES: usize = 7;
/// Names of the request states on the page, in the order of [`State`].
pub(super) const STATE_NAMES: [&str; STATES] =
    ["waiting", "prefill", "decode", "not in the step", "copying out", "preempted", "copying in"];

/// State of a request as shown on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
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

/// Lane of the page: data and states of one request; times in us.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Lane {
    seq: u64,
    tier: usize,
    prompt: u32,
    max_tokens: u32,
    arrived: u64,
    first_token: Option<u64>,
    ended: Option<u64>,
    ending: Option<&'static str>,
    tokens: Option<u32>,
    preemptions: u32,
    /// Times that the request spent in one state each, as triples of numbers: state, begin, end.
    spans: Vec<u64>,
    #[serde(skip)]
    state: State,
    #[serde(skip)]
    since: Timestamp,
}

/// Lanes (states over time) of the requests that were alive in the page's window.
pub(super) struct Lanes {
    window: Range<Timestamp>,
    lanes: BTreeMap<SeqId, Lane>,
    spans: usize,
    /// Number of requests without a lane, because there were already as many lanes as the page may have.
    left_out: u64,
    /// Time at which the lanes together reached their maximum number of spans (times of a request in one state); `None`
    /// if they did not. Later states are not shown.
    cut: Option<Timestamp>,
}

impl Lanes {
    pub(super) fn new(window: Range<Timestamp>) -> Lanes {
        Lanes { window, lanes: BTreeMap::new(), spans: 0, left_out: 0, cut: None }
    }

    pub(super) fn arrived(&mut self, seq: SeqId, tier: Tier, prompt: u32, max: u32, at: Timestamp) {
        if at >= self.last() {
            return;
        }
        if self.lanes.len() >= MAX_LANES {
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

    /// Whether the request has a lane (line of states over time) on the page.
    pub(super) fn has(&self, seq: SeqId) -> bool {
        self.lanes.contains_key(&seq)
    }

    pub(super) fn first_token(&mut self, seq: SeqId, at: Timestamp) {
        if let Some(lane) = self.lanes.get_mut(&seq) {
            lane.first_token = Some(at.0);
        }
    }

    pub(super) fn becomes(&mut self, seq: SeqId, state: State, at: Timestamp) {
        let last = self.last();
        let Some(lane) = self.lanes.get_mut(&seq) else { return };
        if lane.state == state {
            return;
        }
        self.spans += usize::from(lane.close(&self.window, last.min(at)));
        lane.state = state;
        lane.since = at;
        lane.preemptions += u32::from(state == State::Preempted);
        if self.spans >= MAX_SPANS && self.cut.is_none() {
            self.cut = Some(at);
        }
    }

    /// Records the end of a request. A request that ended before the page's window loses its lane and so makes room for
    /// another.
    pub(super) fn ended(&mut self, seq: SeqId, ending: Ending, tokens: u32, at: Timestamp) {
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
    pub(super) fn finish(mut self, end: Timestamp) -> (Vec<Lane>, u64, Option<u64>) {
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
