//! Results of a run of the load client.

use crate::prompt::PromptForm;
use serde::{Deserialize, Serialize};
use tiercel_workload::{Compliance, Summary, Workload};

/// Result of a run of the load client. Latencies and counts of the tiers cover the requests that were due in the
/// workload's measured window (the time between warm-up and cool-down). Throughput covers all tokens that arrived
/// within that window, also tokens of requests due outside of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the load client that made the report.
    pub client_version: String,
    /// `Server` header of the server's responses, if there is one.
    pub server: Option<String>,
    /// Base URL of the server.
    pub url: String,
    /// Name of the model that requests asked for.
    pub model: String,
    /// Form in which prompts were sent: token ids or words.
    pub prompt_form: PromptForm,
    /// Start time of the run, seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// Salt of the prompts: a number that makes the prompts of this run differ from those of other runs, so that no
    /// cached prefix is reused. Lengths and arrival times do not depend on it.
    pub salt: u64,
    /// Length of the measured window (the run without warm-up and cool-down), s.
    pub window_s: f64,
    /// Time from the start of the run until no request was running or left to send, s.
    pub elapsed_s: f64,
    /// Whether the client stopped sending before the end of the workload because it reached
    /// [`tiercel_workload::MAX_REQUESTS`].
    pub truncated: bool,
    /// Results per tier of the workload, the highest tier first.
    pub tiers: Vec<TierReport>,
    /// Results of the requests of all tiers together.
    pub total: TierReport,
    /// Reasons for which requests failed, with counts of all requests of the run, also of those due outside of the
    /// measured window. Only the first few distinct reasons are listed; the others are summed up as `other reasons`.
    pub failures: Vec<FailureCount>,
    /// Workload that the load client sent.
    pub workload: Workload,
}

/// Counts and latencies of the requests of one tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierReport {
    /// Name of the tier, or `total`.
    pub tier: String,
    /// Number of requests sent: `completed + refused + failed + unfinished`.
    pub sent: u64,
    /// Number of completed requests: those whose response stream ended with `[DONE]`.
    pub completed: u64,
    /// Number of refused requests: those that the server answered with 429 or 503.
    pub refused: u64,
    /// Number of failed requests: those that ended with an error or a timeout, neither completed nor refused.
    pub failed: u64,
    /// Number of requests that failed by timeout, because the server sent nothing for the idle timeout; a part of
    /// `failed`.
    #[serde(default)]
    pub timed_out: u64,
    /// Number of unfinished requests: those still running when the run ended.
    pub unfinished: u64,
    /// Number of requests that were due but not sent because the client had too many in flight; not part of `sent`.
    pub not_sent: u64,
    /// Number of requests that, according to the server, were served in another tier than the one they asked for.
    pub other_tier: u64,
    /// TTFT summary, counted from the time at which a request was due. A request that was cut short (it timed out, or
    /// was unfinished when the run ended) before its first token counts with the time until then, a lower bound of its
    /// TTFT.
    pub ttft_ms: Option<Summary>,
    /// TPOT summary. For a completed request of at least two tokens: (last - first token time) / (tokens - 1). For a
    /// request cut short (timed out or unfinished) after its first token: (end - first token time) / tokens, a lower
    /// bound.
    pub tpot_ms: Option<Summary>,
    /// Summary of end-to-end times, counted from the time at which a request was due. A request cut short (timed out or
    /// unfinished) counts with the time until then, a lower bound.
    pub e2e_ms: Option<Summary>,
    /// Summary of the largest gap between two arrivals of text in a request's stream. For a request cut short (timed
    /// out or unfinished), the time from the last text to the end also counts as a gap.
    pub max_gap_ms: Option<Summary>,
    /// Summary of the delay between the time at which a request was due and the time it was sent. A large delay means
    /// that the load client, not the server, was too slow.
    pub send_lag_ms: Option<Summary>,
    /// Prefill throughput, tokens per second: prompt tokens of requests whose first token arrived in the measured
    /// window, divided by the window's length.
    pub prompt_tokens_per_s: f64,
    /// Decode throughput: output tokens per second that arrived in the measured window. The number of a request's
    /// tokens that arrived in the window is estimated from the arrival times of its response events.
    pub output_tokens_per_s: f64,
    /// Number of requests that met their latency targets. Present if a request of the tier that was due in the measured
    /// window had targets.
    pub compliance: Option<Compliance>,
}

/// A failure reason and the number of requests that failed for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// Text of the failure reason.
    pub reason: String,
    /// Number of requests that failed for the reason.
    pub count: u64,
}
