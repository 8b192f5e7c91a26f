//! Sequences as they enter the scheduler, and the phases and holds that other parts of the engine see.

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
    /// Importance of the request.
    pub tier: Tier,
    /// Priority: order within the tier. The lower number is served first.
    pub priority: i32,
    /// Namespace of the sequence's block names.
    pub salt: Salt,
    /// Prompt, not empty.
    pub prompt: Arc<[TokenId]>,
    /// Most output tokens, at least 1.
    pub max_tokens: u32,
    /// Tokens that end the output.
    pub stop_tokens: Arc<[TokenId]>,
    /// Parameters by which output tokens are sampled.
    pub sampling: Arc<SamplingParams>,
    /// Targets that the request states instead of its tier's.
    pub targets: SloTargets,
    /// Patience: longest wait for the first token.
    pub patience: Patience,
    /// Time at which the request arrived.
    pub arrival: Timestamp,
}

/// State of a sequence's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The sequence holds no blocks but retained ones: it is new, or its preemption is committed. A step in flight may
    /// still sample a token for it.
    Waiting,
    /// The sequence holds blocks and may be in a step.
    Running,
    /// Blocks of the sequence are being copied in.
    Opening,
    /// Blocks of the sequence are being copied out. No new step includes it, but a step in flight may still compute it.
    Preempting,
}

/// Reason for which a sequence is not scheduled although it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// An operator paused the request.
    Operator,
    /// The client reads its response stream too slowly.
    Stream,
}
