//! How results are counted, for the load client and the simulator alike.

use crate::file::Targets;
use serde::{Deserialize, Serialize};

/// The latencies that have targets, of one request. `None`: it has none of that kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latencies {
    /// Time to first token.
    pub ttft_ms: Option<f64>,
    /// (last - first token) / (tokens - 1).
    pub tpot_ms: Option<f64>,
    /// Whole request.
    pub e2e_ms: Option<f64>,
}

/// How many requests met their targets, of all that were due: what was refused, failed, did not finish
/// or could not be sent met none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compliance {
    /// Requests with targets.
    pub requests: u64,
    /// Met TTFT.
    pub ttft_met: u64,
    /// Met TPOT.
    pub tpot_met: u64,
    /// Met end-to-end time.
    pub e2e_met: u64,
    /// Met all of them.
    pub all_met: u64,
}

impl Compliance {
    /// Adds a request; one that did not complete met nothing.
    pub fn add(&mut self, completed: bool, latencies: &Latencies, targets: &Targets) {
        let met = |value: Option<f64>, target: Option<f64>| match (value, target) {
            (Some(value), Some(target)) => completed && value <= target,
            // One token has no time per output token: nothing to miss.
            (None, _) | (_, None) => completed,
        };
        let ttft = met(latencies.ttft_ms, targets.ttft_ms);
        let tpot = met(latencies.tpot_ms, targets.tpot_ms);
        let e2e = met(latencies.e2e_ms, targets.e2e_ms);
        self.requests += 1;
        self.ttft_met += u64::from(ttft);
        self.tpot_met += u64::from(tpot);
        self.e2e_met += u64::from(e2e);
        self.all_met += u64::from(ttft && tpot && e2e);
    }

    /// Adds the requests of another.
    pub fn merge(&mut self, other: Compliance) {
        self.requests += other.requests;
        self.ttft_met += other.ttft_met;
        self.tpot_met += other.tpot_met;
        self.e2e_met += other.e2e_met;
        self.all_met += other.all_met;
    }
}

/// Distribution of a latency, ms. A percentile is the smallest sample that at least this share of the
/// samples does not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Samples.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Summary {
    /// Summarizes samples; `None` if there are none.
    pub fn of(mut samples: Vec<f64>) -> Option<Summary> {
        samples.sort_unstable_by(f64::total_cmp);
        let max = *samples.last()?;
        let count = samples.len();
        let rank = |share: f64| ((share * count as f64).ceil() as usize).clamp(1, count);
        Some(Summary {
            count: count as u64,
            mean: samples.iter().sum::<f64>() / count as f64,
            p50: samples[rank(0.5) - 1],
            p90: samples[rank(0.9) - 1],
            p99: samples[rank(0.99) - 1],
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let summary = Summary::of((1..=200).rev().map(f64::from).collect()).unwrap();
        assert_eq!((summary.count, summary.mean), (200, 100.5));
        assert_eq!(
            (summary.p50, summary.p90, summary.p99, summary.max),
            (100.0, 180.0, 198.0, 200.0)
        );
        let one = Summary::of(vec![7.0]).unwrap();
        assert_eq!((one.p50, one.p99, one.max), (7.0, 7.0, 7.0));
        assert_eq!(Summary::of(vec![]), None);
    }
}
