//! Sequences as they enter the scheduler, and the phases and holds that other parts of the engine see.

use crate::Weight;
use crate::admission::Patience;
use crate::blocks::Salt;
use std::sync::Arc;
use tiercel_config::SloTargets;
use tiercel_device::{SamplingParams, SeqId, Tier, Timestamp, TokenId};

/// A sequence that enters the scheduler.
#[derive(Debug, Clone)]
pub struct NewSequence {
    /// Id of the sequence, never used before.
    pub seq: SeqId,
    /// Tier (importance) of the request.
    pub tier: Tier,
    /// Priority: order within the tier. The lower number is served first.
    pub priority: i32,
    /// Salt of the tenant, by which the fair queues and the accounts know the tenant. With the prefix cache on, the
    /// salt is also the namespace of the sequence's block names; with the cache off, block names get a salt of the
    /// sequence.
    pub salt: Salt,
    /// Weight of the request's tenant in the fair queues.
    pub weight: Weight,
    /// Tokens of the prompt; at least one.
    pub prompt: Arc<[TokenId]>,
    /// Largest number of output tokens; at least 1.
    pub max_tokens: u32,
    /// Stop tokens: tokens that end the output.
    pub stop_tokens: Arc<[TokenId]>,
    /// Parameters by which output tokens are sampled.
    pub sampling: Arc<SamplingParams>,
    /// Latency targets that the request states instead of its tier's.
    pub targets: SloTargets,
    /// Whether the request may state tighter targets than those of its tier; `None` for what
    /// `slo.requests_may_tighten` says.
    pub may_tighten: Option<bool>,
    /// Patience: longest wait for the first token.
    pub patience: Patience,
    /// Whether the client has a retry credit: it came back at its retry time after an earlier refusal. If the request
    /// becomes late, it starves at once.
    pub has_retry_credit: bool,
    /// Salt of the block names, if it is another than the tenant's: a namespace within the tenant's part of the prefix
    /// cache.
    pub cache_salt: Option<Salt>,
    /// Time at which the request arrived.
    pub arrival: Timestamp,
}

/// Phase of a sequence: state of its KV blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The sequence waits for blocks, because it is new or its preemption is committed; it may retain some. A step in
    /// flight may still sample a token for it.
    Waiting,
    /// The sequence holds KV blocks and may be in a step.
    Running,
    /// The sequence was given blocks, and KV is being copied into them from the host; it cannot run yet.
    Opening,
    /// The sequence is being preempted: its blocks are being copied to the host. No new step includes it, but a step in
    /// flight may still compute it.
    Preempting,
}

/// Hold: reason for which a sequence is not scheduled although it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The sequence is on hold because an operator paused its request.
    Operator,
    /// The client reads its response stream too slowly.
    Stream,
}
