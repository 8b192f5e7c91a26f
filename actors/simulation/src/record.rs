//! Measurements of each request of a simulation run: token times and how the request ended.

use std::ops::Range;
use tiercel_device::{Tier, Timestamp};
use tiercel_workload::{Latencies, Planned};

/// How a request of a simulation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The request completed: it got all of its output.
    Completed,
    /// The request was refused on arrival.
    Refused,
    /// The request was accepted, but ended before its first token with the same answer as a refused request.
    TurnedAway,
    /// The request was accepted and then ended with an error.
    Failed,
    /// The client left at this time, before its output was complete.
    Left(Timestamp),
    /// The request had not ended when the simulation run ended.
    Unfinished,
}

/// Measurements of one request of a simulation run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    /// Class, prompt and output length, and due time of the request, as the workload plans them.
    pub(crate) planned: Planned,
    /// Tier of the request.
    pub(crate) tier: Tier,
    /// Simulated time at which the request was due.
    pub(crate) due: Timestamp,
    /// Time of the request's first token; `None` until then.
    pub(crate) first: Option<Timestamp>,
    /// Time of the request's last token so far; its due time if there is none.
    pub(crate) last: Timestamp,
    /// Number of output tokens so far, a final stop token included.
    pub(crate) tokens: u32,
    /// Longest gap between two consecutive tokens of the request, us.
    pub(crate) max_gap_us: u64,
    /// Number of times that the request was preempted; 0 until the request completes, when the engine tells it.
    pub(crate) preemptions: u32,
    /// How the request ended; `Unfinished` while it has not.
    pub(crate) ending: Ending,
}

impl Record {
    pub(crate) fn new(planned: Planned, tier: Tier, due: Timestamp) -> Record {
        Record {
            planned,
            tier,
            due,
            first: None,
            last: due,
            tokens: 0,
            max_gap_us: 0,
            preemptions: 0,
            ending: Ending::Unfinished,
        }
    }

    /// Whether the request counts in the results of a run that measures requests due within `due`.
    pub(crate) fn counts(&self, due: &Range<Timestamp>) -> bool {
        due.contains(&self.due) && self.planned.counts()
    }

    /// Records an output token of the request. Returns the gap since its last token, us; `None` for the first token.
    pub(crate) fn token(&mut self, now: Timestamp) -> Option<u64> {
        let gap_us = self.first.is_some().then(|| now.since_us(self.last));
        self.first.get_or_insert(now);
        self.max_gap_us = self.max_gap_us.max(gap_us.unwrap_or(0));
        self.last = now;
        self.tokens += 1;
        gap_us
    }

    /// Returns the largest gap between two tokens of the request, ms. If the request is unfinished, the time from its
    /// last token to the `end` of the run counts as a gap too. `None` if there is no gap.
    pub(crate) fn max_gap_ms(&self, end: Timestamp) -> Option<f64> {
        let open = self.ending == Ending::Unfinished && self.tokens > 0;
        let waits_us = if open { end.since_us(self.last) } else { 0 };
        (open || self.tokens > 1).then(|| self.max_gap_us.max(waits_us) as f64 / 1000.0)
    }

    /// Returns TTFT, TPOT and E2E time of the request. For an unfinished request, the next token counts as if it came
    /// at the `end` of the run; for a request whose client left, as if it came when the client left. The E2E time, and
    /// the TTFT of a request without a token, are then lower bounds, and the TPOT is an estimate. A request that was
    /// refused, turned away or failed has no latencies.
    pub(crate) fn latencies(&self, end: Timestamp) -> Latencies {
        let (until, cut_short) = match self.ending {
            Ending::Completed => (self.last, false),
            Ending::Left(at) => (at, true),
            Ending::Unfinished => (end, true),
            Ending::Refused | Ending::TurnedAway | Ending::Failed => return Latencies::default(),
        };
        let tpot_ms = self.first.and_then(|first| match (cut_short, self.tokens) {
            (true, 0) => None,
            (true, tokens) => Some(until.since_ms(first) / f64::from(tokens)),
            (false, 0 | 1) => None,
            (false, tokens) => Some(until.since_ms(first) / f64::from(tokens - 1)),
        });
        Latencies {
            ttft_ms: Some(self.first.unwrap_or(until).since_ms(self.due)),
            tpot_ms,
            e2e_ms: Some(until.since_ms(self.due)),
        }
    }
}
