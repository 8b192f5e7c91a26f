//! What a run measured.

use crate::prompt::PromptForm;
use crate::workload::Workload;
use serde::{Deserialize, Serialize};

/// The result of a run. Counted are the requests due in the measured window, `warmup_s` to
/// `duration_s` of the workload; throughput is what came within that window, whoever asked for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this client.
    pub client_version: String,
    /// What the server calls itself (its `Server` header), if it does.
    pub server: Option<String>,
    /// Where it was.
    pub url: String,
    /// The model asked for.
    pub model: String,
    /// How prompts were sent.
    pub prompt_form: PromptForm,
    /// When the run started, seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// Makes the prompts of this run unlike those of others; lengths and times don't depend on it.
    pub salt: u64,
    /// Length of the measured window, s.
    pub window_s: f64,
    /// From the start to the end of the last request, s.
    pub elapsed_s: f64,
    /// The run stopped sending early because it reached [`crate::MAX_REQUESTS`].
    pub truncated: bool,
    /// Tiers of the workload, best first.
    pub tiers: Vec<TierReport>,
    /// All of them together.
    pub total: TierReport,
    /// Why requests failed: the first few different reasons, all others under `other reasons`.
    pub failures: Vec<FailureCount>,
    /// What was sent.
    pub workload: Workload,
}

/// What the requests of one tier saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierReport {
    /// Name of the tier, or `total`.
    pub tier: String,
    /// Requests sent: the sum of the next four.
    pub sent: u64,
    /// Ended with `[DONE]`.
    pub completed: u64,
    /// Answered 429 or 503.
    pub refused: u64,
    /// Ended in any other way.
    pub failed: u64,
    /// Those of the failed that got nothing from the server for the idle timeout.
    #[serde(default)]
    pub timed_out: u64,
    /// Still running when the run ended.
    pub unfinished: u64,
    /// Due, but the client had too many in flight; not part of `sent`.
    pub not_sent: u64,
    /// Served in another tier than asked for, by the server's word.
    pub other_tier: u64,
    /// Time to first token, from when the request was due. In this and the next three, unfinished and
    /// timed-out requests count with the time they had waited when they were given up, a lower bound.
    pub ttft_ms: Option<Summary>,
    /// (last - first token) / (tokens - 1), completed requests of two tokens or more; (end - first token) /
    /// tokens of those cut short.
    pub tpot_ms: Option<Summary>,
    /// Whole requests, from when they were due.
    pub e2e_ms: Option<Summary>,
    /// Largest gap between two pieces of text of a request; of those cut short, also since the last one.
    pub max_gap_ms: Option<Summary>,
    /// How late requests were sent: when this is large, the client was too slow.
    pub send_lag_ms: Option<Summary>,
    /// Prompt tokens of requests whose first token came in the window, per second.
    pub prompt_tokens_per_s: f64,
    /// Output tokens that came in the window, per second.
    pub output_tokens_per_s: f64,
    /// Present if the workload has targets for the tier.
    pub compliance: Option<Compliance>,
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

/// Failed requests with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// The reason.
    pub reason: String,
    /// How many.
    pub count: u64,
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
