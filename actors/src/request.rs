//! Types of a request, of the events on its response stream, of its refusal and of the engine's status.

use std::sync::Arc;
use tiercel_config::{Policy, SloTargets};
use tiercel_device::{SamplingParams, SeqId, Tier, TokenId, TokenLogprobs};
pub use tiercel_policy::admission::Refusal;
use tiercel_policy::blocks::Salt;
pub use tiercel_policy::pressure::{Level, Resource};
pub use tiercel_policy::scheduler::{
    CostError, Counters, FinishReason, PredictionError, RequestFault, Usage,
};

/// One sequence to generate. An HTTP request with `n = 2` becomes two values of this type.
#[derive(Debug, Clone)]
pub struct Request {
    /// Tier of the request: its importance.
    pub tier: Tier,
    /// Priority within the tier: the lower value is served first. Equal values are ordered by the rest of the rank,
    /// such as the arrival.
    pub priority: i32,
    /// Salt of the request's tenant: namespace of the prefix cache.
    pub salt: Salt,
    /// Prompt tokens; not empty.
    pub prompt: Arc<[TokenId]>,
    /// Limit of the output, tokens; at least 1.
    pub max_tokens: u32,
    /// Tokens that end the output and are not part of it. Empty with `ignore_eos`.
    pub stop_tokens: Arc<[TokenId]>,
    /// Sampling parameters: how output tokens are chosen.
    pub sampling: Arc<SamplingParams>,
    /// Latency targets that the request states instead of its tier's.
    pub targets: SloTargets,
    /// Patience that the request states, ms: the longest wait for its first token. `None` stands for the patience of
    /// its tier.
    pub max_wait_ms: Option<u64>,
    /// Whether the client says that it was refused or turned away before. The claim is believed only as far as clients
    /// of the same tenant were told to come back by now.
    pub returning: bool,
}

/// Event on the response stream of a request. Exactly one of `Finished` and `Failed` comes last, unless the client
/// cancels first.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// One output token.
    Token {
        /// Id of the token.
        token: TokenId,
        /// Log probabilities of the token, if the request asked for them.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The output is complete.
    Finished {
        /// Why the output ended.
        reason: FinishReason,
        /// Numbers of tokens and preemptions of the request.
        usage: Usage,
    },
    /// The request ended without a complete output.
    Failed(RequestFault),
}

/// Operator commands on a live sequence or on the engine. A command takes effect by the next step that is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Change the tier of a sequence and its priority within the tier.
    Reprioritize {
        /// Sequence to change.
        seq: SeqId,
        /// New tier of the sequence.
        tier: Tier,
        /// New priority of the sequence within its tier.
        priority: i32,
    },
    /// Stop scheduling the sequence. It keeps its blocks until they are needed.
    Pause(SeqId),
    /// Schedule a paused sequence again.
    Resume(SeqId),
    /// Switch the engine to another policy.
    SetPolicy(Policy),
}

/// A snapshot of the engine for `/health`, tests and operators.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineStatus {
    /// Sequences that wait for their first start, by tier.
    pub waiting: [u32; 4],
    /// Sequences that hold blocks and may be in a step.
    pub running: u32,
    /// Preempted sequences, including those whose blocks are being copied.
    pub preempted: u32,
    /// Requests that hold a permit. The engine's back-pressure counts them.
    pub places: u32,
    /// Requests in the queues of admission, by tier.
    pub queued: [u32; 4],
    /// Number of blocks in the device pool.
    pub device_blocks: u32,
    /// Device blocks that no sequence references.
    pub device_blocks_free: u32,
    /// Number of blocks in the host pool.
    pub host_blocks: u32,
    /// Host blocks that are not in use.
    pub host_blocks_free: u32,
    /// Pressure levels, which tell how near resources are to their limits, in the order of [`Resource::ALL`].
    pub pressure: [Level; Resource::ALL.len()],
    /// Totals since the start of the engine.
    pub counters: Counters,
    /// Error of the predicted output lengths.
    pub prediction_error: PredictionError,
    /// Error of the predicted times of steps and copies.
    pub cost_error: CostError,
}
