//! What the scheduler decides about a request: tokens to deliver, ends, and answers to the store.

use tiercel_device::{SeqId, Tier, Timestamp, TokenId, TokenLogprobs};

/// Why an output is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was sampled.
    Stop,
    /// `max_tokens` or the context is reached.
    Length,
}

/// What a request took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens whose KV was found in the prefix cache at the first start.
    pub cached_tokens: u32,
    /// Output tokens, a final stop token not counted.
    pub completion_tokens: u32,
    /// How often it was preempted.
    pub preemptions: u32,
}

/// A request that was accepted and then could not be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// Preempted under `preemption.mode = drop`.
    #[error("preempted by a more important request; retry when the server is less busy")]
    Dropped,
    /// It had not started when waiting was no use any more, or somebody better needed its place.
    #[error(
        "overloaded: this request could not be started; retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    TurnedAway {
        /// Estimated time until it could be, ms.
        retry_after_ms: u64,
    },
    /// It had no first token within its patience.
    #[error(
        "overloaded: this request had no first token within {patience_ms} ms, {}",
        if *stated {
            "the longest wait that it allows (max_wait_ms)".to_owned()
        } else {
            format!(
                "the longest wait of its tier (patience.*); retry in {} s",
                retry_after_ms.div_ceil(1000)
            )
        }
    )]
    OutOfPatience {
        /// How long it waited, ms.
        patience_ms: u64,
        /// Whether the request said so itself.
        stated: bool,
        /// When to come back, ms.
        retry_after_ms: u64,
    },
    /// The model's output for this request was unusable.
    #[error("the model failed on this request: {0}")]
    Model(String),
    /// The step that held it failed.
    #[error("the device failed on this request's step: {0}")]
    Step(String),
    /// The client read nothing for `stream.stall_timeout_ms`.
    #[error("the client stopped reading its stream")]
    Stalled,
    /// The server is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Something to tell the outside about a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Deliver a token.
    Token {
        /// The sequence.
        seq: SeqId,
        /// Its tier when the token was made.
        tier: Tier,
        /// The token.
        token: TokenId,
        /// Present if asked for.
        logprobs: Option<Box<TokenLogprobs>>,
        /// Microseconds since arrival, if this is the first token.
        ttft_us: Option<u64>,
    },
    /// The sequence ended; it is no longer in the scheduler.
    Ended(EndReport),
}

/// The end of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct EndReport {
    /// The sequence.
    pub seq: SeqId,
    /// Its tier at the end.
    pub tier: Tier,
    /// How it ended; `None` if it was cancelled.
    pub outcome: Option<Result<FinishReason, RequestFault>>,
    /// What it took.
    pub usage: Usage,
    /// When it arrived.
    pub arrival: Timestamp,
    /// When its first token was made.
    pub first_token_at: Option<Timestamp>,
    /// When its last token was made.
    pub last_token_at: Option<Timestamp>,
}

/// The scheduler's answer when the copies of a prepared preemption have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptDecision {
    /// Drop the references: somebody needs the blocks.
    Commit,
    /// Restore: nobody needs the blocks any more.
    Abort,
    /// The ticket is stale: nothing to do.
    Stale,
}
