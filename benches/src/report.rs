//! What a run measured.

use crate::prompt::PromptForm;
use serde::{Deserialize, Serialize};
use tiercel_workload::{Compliance, Summary, Workload};

/// The result of a run. Counted are the requests due in the workload's measured window; throughput is what came within that window, whoever asked for it.
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
    /// The run stopped sending early because it reached [`tiercel_workload::MAX_REQUESTS`].
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

/// Failed requests with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// The reason.
    pub reason: String,
    /// How many.
    pub count: u64,
}
