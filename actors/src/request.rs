//! What a client's request is to the engine, and what comes back on its stream.

use std::sync::Arc;
use tiercel_config::{Policy, SloTargets};
use tiercel_device::{SamplingParams, SeqId, Tier, TokenId, TokenLogprobs};
use tiercel_policy::blocks::Salt;
pub use tiercel_policy::pressure::{Level, Resource};
pub use tiercel_policy::scheduler::{
    CostError, Counters, FinishReason, PredictionError, RequestFault, Usage,
};

/// One sequence to generate. A request with `n = 2` is two of these.
#[derive(Debug, Clone)]
pub struct Request {
    /// Importance.
    pub tier: Tier,
    /// Order within the tier: lower first; equal values by arrival.
    pub priority: i32,
    /// Namespace of the prefix cache, one per tenant.
    pub salt: Salt,
    /// Prompt tokens; not empty.
    pub prompt: Arc<[TokenId]>,
    /// Most tokens to generate; at least 1.
    pub max_tokens: u32,
    /// Tokens that end the output (they are not part of it). Empty with `ignore_eos`.
    pub stop_tokens: Arc<[TokenId]>,
    /// How tokens are chosen.
    pub sampling: Arc<SamplingParams>,
    /// Latency targets instead of its tier's, where it states any.
    pub targets: SloTargets,
    /// Patience that the request states, ms: the longest wait for its first token; `None` for its tier's patience.
    pub max_wait_ms: Option<u64>,
    /// Whether its client says that it was turned away before. It is believed as far as somebody of its tenant was told
    /// to come back by now.
    pub returning: bool,
}

/// What arrives on a request's stream, in order. Exactly one of `Finished` and `Failed` comes last,
/// unless the client cancels first.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// One output token.
    Token {
        /// The token.
        token: TokenId,
        /// Present if asked for.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The output is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The request ended without a complete output.
    Failed(RequestFault),
}

/// A request that was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It can never run here: a client error.
    #[error("{0}")]
    NeverFits(String),
    /// A queue is full: try again later.
    #[error("the {tier} queue is full ({limit}); retry in {} s", retry_after_ms.div_ceil(1000))]
    QueueFull {
        /// The tier.
        tier: Tier,
        /// Which limit was reached, for people.
        limit: String,
        /// Estimated time until there is room, ms.
        retry_after_ms: u64,
    },
    /// It would come too late to be of use: try again later.
    #[error(
        "overloaded: a {tier} request that comes now would have its first token after {expected_ms} ms, \
         more than {limit_ms} ms; retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    Late {
        /// The tier.
        tier: Tier,
        /// Estimated time to its first token, ms.
        expected_ms: u64,
        /// The longest with which it would be let in, ms.
        limit_ms: u64,
        /// Estimated time until it would be let in, ms.
        retry_after_ms: u64,
    },
    /// It would wait longer for its first token than its patience: try again later.
    #[error(
        "overloaded: a {tier} request that comes now would wait about {} s for its first token, longer than {}",
        expected_ms.div_ceil(1000),
        if *stated {
            format!("the {patience_ms} ms that this one would (max_wait_ms)")
        } else {
            format!(
                "patience.{tier}_s ({} s); retry in {} s",
                patience_ms.div_ceil(1000),
                retry_after_ms.div_ceil(1000)
            )
        }
    )]
    OutOfPatience {
        /// The tier.
        tier: Tier,
        /// Estimated time to its first token, ms.
        expected_ms: u64,
        /// How long it would wait, ms.
        patience_ms: u64,
        /// Whether the request said so itself.
        stated: bool,
        /// When to come back, ms.
        retry_after_ms: u64,
    },
    /// Its tier has more of the device's time than it is due, and the lot fell on it: try again later.
    #[error(
        "overloaded: the {tier} tier has {had_percent} % of the device's time and is due {due_percent} %; \
         retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    OverShare {
        /// The tier.
        tier: Tier,
        /// What it had lately, percent.
        had_percent: u32,
        /// What it is due beside the others that had any, percent.
        due_percent: u32,
        /// When to come back, ms.
        retry_after_ms: u64,
    },
    /// The whole server is full: try again later.
    #[error(
        "the server holds its {limit} requests ({kept} places are kept for tiers above {tier}); \
         retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    ServerFull {
        /// Most requests in the server.
        limit: u32,
        /// The tier that asked.
        tier: Tier,
        /// Places it may not have.
        kept: u32,
        /// Estimated time until there is room, ms.
        retry_after_ms: u64,
    },
    /// The server is draining.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine has stopped.
    #[error("the engine has stopped")]
    EngineStopped,
}

impl Refusal {
    /// The time told to come back after, ms; `None` if coming back does not help.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Refusal::QueueFull { retry_after_ms, .. }
            | Refusal::Late { retry_after_ms, .. }
            | Refusal::OverShare { retry_after_ms, .. }
            | Refusal::OutOfPatience { retry_after_ms, stated: false, .. }
            | Refusal::ServerFull { retry_after_ms, .. } => Some(*retry_after_ms),
            Refusal::OutOfPatience { stated: true, .. } => None,
            Refusal::NeverFits(_) | Refusal::ShuttingDown | Refusal::EngineStopped => None,
        }
    }
}

/// Operator commands on a running sequence or the engine; they take effect by the next step planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Change tier and in-tier priority.
    Reprioritize {
        /// The sequence.
        seq: SeqId,
        /// New tier.
        tier: Tier,
        /// New priority within the tier.
        priority: i32,
    },
    /// Stop scheduling it; it keeps its blocks until they are needed.
    Pause(SeqId),
    /// Schedule it again.
    Resume(SeqId),
    /// Switch the policy.
    SetPolicy(Policy),
}

/// A snapshot of the engine for `/health`, tests and operators.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineStatus {
    /// Sequences by tier that wait for their first start.
    pub waiting: [u32; 4],
    /// Sequences in the running set (holding blocks).
    pub running: u32,
    /// Preempted sequences, copies under way included.
    pub preempted: u32,
    /// Requests that hold a place in the engine: its back-pressure counts them.
    pub places: u32,
    /// Places taken in the queues of admission, by tier.
    pub queued: [u32; 4],
    /// Device blocks: total and not referenced by any sequence.
    pub device_blocks: u32,
    /// See `device_blocks`.
    pub device_blocks_free: u32,
    /// Host blocks: total and not in use.
    pub host_blocks: u32,
    /// See `host_blocks`.
    pub host_blocks_free: u32,
    /// How near resources are to their limits, in the order of [`Resource::ALL`].
    pub pressure: [Level; Resource::ALL.len()],
    /// Totals since the start.
    pub counters: Counters,
    /// How far predicted output lengths were off.
    pub prediction_error: PredictionError,
    /// How far predicted step and copy times are off.
    pub cost_error: CostError,
}
