//! What one step of the engine asks of a device, and what comes back.

use crate::{BlockId, SamplingParams, SeqId, StepId, TokenId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Sizes and limits of a device, fixed for its life.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DeviceInfo {
    /// What `/metrics` and logs call it.
    pub name: String,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Blocks of the device tier.
    pub device_blocks: u32,
    /// Blocks of the host tier; 0 means there is none.
    pub host_blocks: u32,
    /// Bytes of one block, all layers, K and V.
    pub block_bytes: u64,
    /// Steps that may be in flight at once (2 on CUDA, 1 on the CPU).
    pub max_steps_in_flight: u32,
    /// Longest sequence (prompt + output) the model supports, in tokens.
    pub max_model_len: u32,
    /// Size of the vocabulary.
    pub vocab_size: u32,
}

/// How fast a device is: the step model of the workloads page, used to choose between copying and
/// recomputing and to predict step times. A first measurement; the engine corrects it online.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DeviceProfile {
    /// Fixed cost of a step, us.
    pub step_base_us: f64,
    /// Cost of one decode token, us.
    pub decode_token_us: f64,
    /// Cost of one prefill token, us.
    pub prefill_token_us: f64,
    /// Cost of reading one token of KV context, us.
    pub kv_token_us: f64,
    /// Cost of one prefill token for each token of context before it, us.
    pub prefill_context_us: f64,
    /// One-way bandwidth between the device and the host tier, bytes per second; 0 if no host tier.
    pub link_bytes_per_s: f64,
}

/// One step: a mixed batch of decode tokens and prefill chunks that share every matrix product.
#[derive(Debug, Clone)]
pub struct StepBatch {
    /// Number of the step; strictly increasing.
    pub id: StepId,
    /// Sequences the device has not seen: it creates their sampler state before the step.
    pub starts: Vec<SeqStart>,
    /// Sequences that ended: their sampler state is dropped before the step. Unknown ids are ignored.
    pub ends: Vec<SeqId>,
    /// The work. At most one slice per sequence.
    pub slices: Vec<SeqSlice>,
}

/// Creates the sampler state of a sequence. Survives preemption; dropped by `StepBatch::ends`.
#[derive(Debug, Clone)]
pub struct SeqStart {
    /// The sequence.
    pub seq: SeqId,
    /// How to sample it.
    pub sampling: Arc<SamplingParams>,
    /// Prompt tokens (penalties look at them).
    pub prompt: Arc<[TokenId]>,
}

/// Consecutive tokens of one sequence to run through the model in this step.
#[derive(Debug, Clone)]
pub struct SeqSlice {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first input token, which equals the number of tokens whose KV is already valid.
    pub first_pos: u32,
    /// The input tokens.
    pub input: SliceInput,
    /// The block table: entry `i` holds positions `i * block_size ..`. Covers at least
    /// `first_pos + input.len()` positions.
    pub table: Arc<[BlockId]>,
    /// `Some(i)`: sample output token number `i` (from 0) from the logits of the last input token.
    /// `None`: a prefill chunk that does not end its prompt.
    pub sample: Option<u32>,
}

/// Tokens in place up to a few: most slices are decodes of one token, hundreds of them in every step.
pub type Tokens = SmallVec<[TokenId; 4]>;

/// Input tokens of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SliceInput {
    /// Tokens the engine knows.
    Known(Tokens),
    /// One token: the one sampled for this sequence by an earlier step still in flight.
    SampledBy(StepId),
}

impl SliceInput {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            SliceInput::Known(tokens) => tokens.len(),
            SliceInput::SampledBy(_) => 1,
        }
    }

    /// Whether there is nothing to run; never true in a valid batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Answer to one [`StepBatch`].
#[derive(Debug)]
pub struct StepDone {
    /// Which step.
    pub id: StepId,
    /// Its outcome. On `Err` nothing the step wrote may be believed.
    pub result: Result<StepOutput, StepError>,
}

/// What a step produced.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// One entry per slice with `sample`, in the order of the slices. A fault ends that sequence only.
    pub sampled: Vec<(SeqId, Result<Sampled, SeqFault>)>,
    /// Where the time went.
    pub timing: StepTiming,
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Present if the sequence asked for log-probabilities.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// Log-probabilities of one output token, natural logarithm, of the distribution before temperature
/// and truncation but after penalties and bias.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The best tokens, most likely first.
    pub top: Vec<(TokenId, f32)>,
}

/// Parts of a step's duration, us.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTiming {
    /// Forward pass.
    pub forward_us: u64,
    /// Sampling.
    pub sampling_us: u64,
    /// What the host did before the device could begin; no part of the step's duration on a device that computes beside
    /// its host.
    pub host_us: u64,
}

/// A fault that costs one sequence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeqFault {
    /// The logits held NaN or only infinities.
    #[error("the model produced no usable probabilities (NaN or infinite logits)")]
    BadLogits,
    /// The device does not know the sequence: an engine bug, reported instead of hidden.
    #[error("the device has no state for {0}")]
    UnknownSequence(SeqId),
}

/// A fault that costs the whole step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// This step failed; the device is usable. Nothing it wrote may be believed.
    #[error("step failed: {0}")]
    Failed(String),
    /// The device is gone; no step or copy will ever succeed again.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// Why a step could not be submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// More than `max_steps_in_flight` steps.
    #[error("too many steps in flight")]
    Full,
    /// The device's thread has ended.
    #[error("the device has stopped")]
    Stopped,
}

/// The compute side of a device: runs steps in order, one at a time, without blocking the caller.
pub trait StepRunner: Send {
    /// Starts a step. `done` is called exactly once, from any thread, in order of submission.
    ///
    /// # Errors
    /// [`SubmitError`] if the step was not accepted; `done` is then not called.
    fn submit(
        &mut self,
        batch: StepBatch,
        done: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError>;
}
