//! Figures of a server at one moment, as the control API tells them.

use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use tiercel_device::{Tier, Timestamp};

/// Number of samples over which rates are computed, so that a rate is a mean over some seconds.
const SAMPLES: usize = 6;

/// Figures of a server at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Time at which the figures were read, by the clock of this program.
    pub(super) at: Timestamp,
    /// Stage of the server's life: `ready` or `draining`.
    pub(super) stage: String,
    pub(super) requests: u64,
    pub(super) max_requests: u64,
    /// Device pool, then host pool.
    pub(super) pools: [Pool; 2],
    pub(super) tiers: Vec<TierRow>,
    pub(super) counters: Counters,
    /// Number of requests that match the filter; the rows may be fewer.
    pub(super) total: usize,
    pub(super) rows: Vec<RequestRow>,
}

/// Blocks of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) used: u64,
    pub(super) all: u64,
}

/// Figures of one tier. What the server does not tell is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TierRow {
    pub(super) tier: Tier,
    pub(super) queued: u64,
    pub(super) running: Option<u64>,
    pub(super) preempted: Option<u64>,
    /// Latencies that have a target: TTFT, TPOT and E2E.
    pub(super) latencies: Vec<Latency>,
}

/// A latency of a tier's requests over the window of the SloMonitor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Latency {
    /// Name of the latency, such as `TTFT`.
    pub(super) name: &'static str,
    pub(super) p99_ms: Option<f64>,
    pub(super) target_ms: f64,
    /// Share of the requests that met their target, 0 to 1.
    pub(super) compliance: Option<f64>,
    /// Share of the target that the 99th percentile leaves; negative above the target.
    pub(super) headroom: Option<f64>,
}

/// Totals since the start of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counters {
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) preemptions: u64,
}

/// One choice of a live request.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RequestRow {
    pub(super) id: String,
    pub(super) request_id: String,
    pub(super) seq: u64,
    pub(super) tenant: String,
    pub(super) tier: Tier,
    pub(super) state: String,
    pub(super) paused: bool,
    pub(super) slow_reader: bool,
    pub(super) late: bool,
    pub(super) position: Option<u64>,
    pub(super) age_ms: u64,
    pub(super) prompt_tokens: u64,
    pub(super) computed_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) max_tokens: u64,
    pub(super) device_blocks: u64,
    pub(super) host_blocks: u64,
    pub(super) preemptions: u64,
    pub(super) slack_ms: Option<f64>,
}

/// A page of the listing of live requests.
#[derive(Debug, Default, Deserialize)]
struct Listing {
    total: usize,
    requests: Vec<RequestRow>,
}

impl Sample {
    /// Reads the figures out of the answers of the control API: the status, and a page of the listing.
    ///
    /// # Errors
    /// If an answer does not have the form of this version's.
    pub(super) fn read(at: Timestamp, status: &Value, listing: Value) -> Result<Sample, String> {
        let listing: Listing = serde_json::from_value(listing).map_err(|error| {
            format!("the server's listing has another form than this version's: {error}")
        })?;
        let number = |name: &str| status[name].as_u64().unwrap_or(0);
        let pool = |name: &str| {
            let all = number(name);
            Pool { used: all.saturating_sub(number(&format!("{name}_free"))), all }
        };
        let row = |tier: Tier| TierRow {
            tier,
            queued: status["queued"][tier.name()].as_u64().unwrap_or(0),
            ..TierRow::default()
        };
        Ok(Sample {
            at,
            stage: status["stage"].as_str().unwrap_or("?").to_owned(),
            requests: number("requests"),
            max_requests: number("max_requests"),
            pools: [pool("device_blocks"), pool("host_blocks")],
            tiers: [Tier::Premium, Tier::Standard, Tier::Background].map(row).into(),
            counters: Counters { steps: number("steps"), ..Counters::default() },
            total: listing.total,
            rows: listing.requests,
        })
    }
}

/// Rates over the last samples; absent where they are not known yet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) tokens_per_s: Option<f64>,
    /// Mean time from the end of a step to the end of the next, ms.
    pub(super) step_ms: Option<f64>,
    pub(super) preemptions_per_min: Option<f64>,
}

/// Counters of the last samples.
#[derive(Debug, Default)]
pub(super) struct History {
    kept: VecDeque<(Timestamp, Counters)>,
}

impl History {
    /// Adds the counters of a sample. Counters that became smaller are those of a server that was started anew.
    pub(super) fn add(&mut self, at: Timestamp, counters: Counters) {
        if self.kept.back().is_some_and(|(_, last)| counters.steps < last.steps) {
            self.kept.clear();
        }
        if self.kept.len() == SAMPLES {
            self.kept.pop_front();
        }
        self.kept.push_back((at, counters));
    }

    /// Returns the rates from the oldest kept sample to the newest.
    pub(super) fn rates(&self) -> Rates {
        let (Some((from, first)), Some((to, last))) = (self.kept.front(), self.kept.back()) else {
            return Rates::default();
        };
        let seconds = to.since_us(*from) as f64 / 1e6;
        if seconds <= 0.0 {
            return Rates::default();
        }
        let steps = last.steps - first.steps;
        let more = |of: fn(&Counters) -> u64| of(last).saturating_sub(of(first)) as f64;
        Rates {
            tokens_per_s: Some(more(|counters| counters.tokens) / seconds),
            step_ms: (steps > 0).then(|| seconds * 1e3 / steps as f64),
            preemptions_per_min: Some(more(|counters| counters.preemptions) / seconds * 60.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_means_over_the_last_samples_and_begin_anew_with_the_server() {
        let mut history = History::default();
        assert_eq!(history.rates(), Rates::default());
        for second in 0..10 {
            let counters =
                Counters { steps: second * 20, tokens: second * 100, preemptions: second };
            history.add(Timestamp(second * 1_000_000), counters);
        }
        let rates = history.rates();
        assert_eq!(rates.tokens_per_s, Some(100.0));
        assert_eq!((rates.step_ms, rates.preemptions_per_min), (Some(50.0), Some(60.0)));
        history.add(Timestamp(10_000_000), Counters::default());
        assert_eq!(history.rates(), Rates::default(), "one sample has no rate");
    }

    #[test]
    fn an_answer_of_another_form_is_an_error_that_says_so() {
        let error = Sample::read(Timestamp(0), &json!({}), json!({"rows": []})).unwrap_err();
        assert!(error.contains("another form"), "{error}");
    }
}
