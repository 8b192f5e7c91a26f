//! Computes latencies, latency percentiles and the number of requests in target, in the same way for the load client
//! and the simulator.

use crate::file::Targets;
use serde::{Deserialize, Serialize};

/// Latencies of one request that can have a target. `None` means that the request has no such latency, as an output of
/// one token has no TPOT.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latencies {
    /// Time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// TPOT, ms. For a completed request: (time of the last token - time of the first) / (tokens - 1).
    pub tpot_ms: Option<f64>,
    /// End-to-end time of the request, ms.
    pub e2e_ms: Option<f64>,
}

/// Number of requests that met their latency targets. A request that was refused, failed, did not finish or could not
/// be sent met none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compliance {
    /// Number of requests that were compared with latency targets; requests that could not be sent count too.
    pub requests: u64,
    /// Number of completed requests that met their TTFT target or had none.
    pub ttft_met: u64,
    /// Number of completed requests that met their TPOT target or had no target or no TPOT.
    pub tpot_met: u64,
    /// Number of completed requests that met their target for the end-to-end time or had none.
    pub e2e_met: u64,
    /// Number of requests that met all of their latency targets.
    pub all_met: u64,
}

impl Compliance {
    /// Counts a request and checks its latencies against its targets. A request that did not complete met no target.
    pub fn add(&mut self, completed: bool, latencies: &Latencies, targets: &Targets) {
        let met = |value: Option<f64>, target: Option<f64>| match (value, target) {
            (Some(value), Some(target)) => completed && value <= target,
            // A completed request without a latency, or without a target for it, counts as in target: for example, an
            // output of one token has no TPOT.
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

    /// Adds another tier's or another run's counts of requests that met their latency targets to these counts.
    pub fn merge(&mut self, other: Compliance) {
        self.requests += other.requests;
        self.ttft_met += other.ttft_met;
        self.tpot_met += other.tpot_met;
        self.e2e_met += other.e2e_met;
        self.all_met += other.all_met;
    }
}

/// Summary of latency samples, ms. The p-th percentile is the smallest sample that is at least as large as p % of the
/// samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of latency samples.
    pub count: u64,
    /// Mean of the latency samples, ms.
    pub mean: f64,
    /// Median of the latency samples, ms.
    pub p50: f64,
    /// 90th percentile of the latency samples, ms.
    pub p90: f64,
    /// 99th percentile of the latency samples, ms.
    pub p99: f64,
    /// Largest latency sample, ms.
    pub max: f64,
}

impl Summary {
    /// Summarizes latency samples, ms; `None` if there are none.
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
