//! What happened to each request.

use tiercel_device::{Tier, Timestamp};
use tiercel_workload::{Latencies, Planned};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its output is complete.
    Completed,
    /// It was turned away when it came.
    Refused,
    /// It was let in and turned away before it had started.
    TurnedAway,
    /// It was accepted and then ended with an error.
    Failed,
    /// The run was over first.
    Unfinished,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    /// What it was to be.
    pub(crate) planned: Planned,
    /// Its tier.
    pub(crate) tier: Tier,
    /// When it was due; that is also when it was sent.
    pub(crate) due: Timestamp,
    /// When its first token came.
    pub(crate) first: Option<Timestamp>,
    /// When its last token so far came, or `due`.
    pub(crate) last: Timestamp,
    /// Its tokens so far, the one that ended it included.
    pub(crate) tokens: u32,
    /// Longest time between two tokens, us.
    pub(crate) max_gap_us: u64,
    /// How often it was preempted, known at its end.
    pub(crate) preemptions: u32,
    /// How it ended.
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

    /// A token came; says how long after the last one, us, if there was one.
    pub(crate) fn token(&mut self, now: Timestamp) -> Option<u64> {
        let gap_us = self.first.is_some().then(|| now.since_us(self.last));
        self.first.get_or_insert(now);
        self.max_gap_us = self.max_gap_us.max(gap_us.unwrap_or(0));
        self.last = now;
        self.tokens += 1;
        gap_us
    }

    /// Largest gap between two tokens; for one that the run left unfinished also from its last token to the
    /// `end`. `None` without two of these.
    pub(crate) fn max_gap_ms(&self, end: Timestamp) -> Option<f64> {
        let open = self.ending == Ending::Unfinished && self.tokens > 0;
        let waits_us = if open { end.since_us(self.last) } else { 0 };
        (open || self.tokens > 1).then(|| self.max_gap_us.max(waits_us) as f64 / 1000.0)
    }

    /// Its latencies. Those of a request that the run left unfinished are what it had waited at the
    /// `end`: a lower bound, of the time per token an estimate. A refused or failed one has none.
    pub(crate) fn latencies(&self, end: Timestamp) -> Latencies {
        let (until, cut_short) = match self.ending {
            Ending::Completed => (self.last, false),
            Ending::Unfinished => (end, true),
            Ending::Refused | Ending::TurnedAway | Ending::Failed => return Latencies::default(),
        };
        let tpot_ms = self.first.and_then(|first| match (cut_short, self.tokens) {
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
