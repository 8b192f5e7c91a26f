//! What happened to each request.

use tiercel_device::{Tier, Timestamp};
use tiercel_workload::{Latencies, Planned};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its output is complete.
    Completed,
    /// It was turned away.
    Refused,
    /// It was accepted and then ended with an error.
    Failed,
    /// The run was over first.
    Unfinished,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// What it was to be.
    pub planned: Planned,
    /// Its tier.
    pub tier: Tier,
    /// When it was due; that is also when it was sent.
    pub due: Timestamp,
    /// When its first token came.
    pub first: Option<Timestamp>,
    /// When its last token so far came, or `due`.
    pub last: Timestamp,
    /// Its tokens so far, the one that ended it included.
    pub tokens: u32,
    /// Longest time between two tokens, us.
    pub max_gap_us: u64,
    /// How often it was preempted, known at its end.
    pub preemptions: u32,
    /// How it ended.
    pub ending: Ending,
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

    pub(crate) fn token(&mut self, now: Timestamp) {
        if self.first.is_none() {
            self.first = Some(now);
        } else {
            self.max_gap_us = self.max_gap_us.max(now.since_us(self.last));
        }
        self.last = now;
        self.tokens += 1;
    }

    /// Its latencies. Those of a request that the run left unfinished are what it had waited at the
    /// `end`, a lower bound; a refused or failed one has none.
    pub fn latencies(&self, end: Timestamp) -> Latencies {
        let (until, cut_short) = match self.ending {
            Ending::Completed => (self.last, false),
            Ending::Unfinished => (end, true),
            Ending::Refused | Ending::Failed => return Latencies::default(),
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
