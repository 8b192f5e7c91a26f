//! Errors for step batches that cannot be run. Each is a bug of the engine, which is reported instead of hidden.

use tiercel_device::{BlockId, SeqId, StepError};

/// Reason why the runner refuses a step batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("the step has {tokens} tokens; this device was set up for {limit}")]
    TooManyTokens { tokens: usize, limit: usize },
    #[error("the step samples {rows} sequences; this device was set up for {limit}")]
    TooManySamples { rows: usize, limit: usize },
    #[error("the step computes no token of {0}, which it lists")]
    EmptySlice(SeqId),
    #[error("the step lists {0} twice")]
    TwoSlices(SeqId),
    #[error("{seq} has token {token}, but the vocabulary ends at {vocab}")]
    Token { seq: SeqId, token: u32, vocab: usize },
    #[error("{seq} would reach position {end}; this device was set up for {limit}")]
    TooLong { seq: SeqId, end: u64, limit: usize },
    #[error("the block table of {seq} has {blocks} blocks; its {end} positions need {needed}")]
    ShortTable { seq: SeqId, blocks: usize, end: u64, needed: usize },
    #[error("{seq} names {block} but the device has {blocks} blocks")]
    Block { seq: SeqId, block: BlockId, blocks: u32 },
    #[error("{writer} writes {block}, which {reader} uses in the same step")]
    SharedWrite { writer: SeqId, reader: SeqId, block: BlockId },
    #[error("{0} continues from a token that this device has not sampled")]
    NoToken(SeqId),
}

impl From<BatchError> for StepError {
    fn from(error: BatchError) -> StepError {
        StepError::Failed(error.to_string())
    }
}
