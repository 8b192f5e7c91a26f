//! Steps: the batch of work that the engine gives to a device, and the answer of the device.

use crate::{BlockId, NoToken, SamplingParams, SeqId, StepId, TokenId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Sizes and limits of a device that do not change while it serves.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DeviceInfo {
    /// Name of the device in `/metrics` and logs; that of the CPU begins with [`DeviceInfo::CPU`].
    pub name: String,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Number of KV blocks in the device pool.
    pub device_blocks: u32,
    /// Number of KV blocks in the host pool; 0 means that there is no host pool. Some may become usable only while the
    /// engine runs ([`HostGrowth`](crate::HostGrowth)).
    pub host_blocks: u32,
    /// Size of one KV block, bytes: keys and values of all layers.
    pub block_bytes: u64,
    /// Most steps that may be in flight at once (2 on CUDA, 1 on the CPU).
    pub max_steps_in_flight: u32,
    /// Longest sequence (prompt + output) the model supports, in tokens.
    pub max_model_len: u32,
    /// Size of the model's vocabulary, tokens.
    pub vocab_size: u32,
}

impl DeviceInfo {
    /// Beginning of the CPU's name; names of GPUs and mock devices begin otherwise.
    pub const CPU: &str = "cpu, ";

    /// Returns whether the device is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.name.starts_with(DeviceInfo::CPU)
    }
}

/// Speed of a device: the coefficients of the linear model of step times, and the bandwidth of copies. The engine
/// predicts step times with them and chooses between copying and recomputing. The values are a first measurement (those
/// of a mock device are set by its profile), which the engine corrects while it runs.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DeviceProfile {
    /// Fixed cost of a step, us.
    pub step_base_us: f64,
    /// Cost of one decode token, us.
    pub decode_token_us: f64,
    /// Cost of one prefill token, us.
    pub prefill_token_us: f64,
    /// Cost of reading the KV of one context token in a decode, us.
    pub kv_token_us: f64,
    /// Cost of each pair of a prefill token and a context token before it, us.
    pub prefill_context_us: f64,
    /// Bandwidth between the device pool and the host pool in one direction, bytes per second; 0 if there is no host
    /// pool.
    pub link_bytes_per_s: f64,
}

/// One step: a mixed batch of decode tokens and prefill chunks that share every matrix product.
#[derive(Debug, Clone)]
pub struct StepBatch {
    /// Number of the step, higher than that of every earlier step.
    pub id: StepId,
    /// Sequences that are new to the device. The device creates their sampler state before the step.
    pub starts: Vec<SeqStart>,
    /// Sequences that have ended. The device discards their sampler state before the step; it ignores unknown ids.
    pub ends: Vec<SeqId>,
    /// Slices of sequences that the step computes, at most one for each sequence.
    pub slices: Vec<SeqSlice>,
}

/// Instruction to create the sampler state of a sequence. The state survives preemptions; it is discarded when
/// `StepBatch::ends` names the sequence.
#[derive(Debug, Clone)]
pub struct SeqStart {
    /// Sequence whose sampler state is created.
    pub seq: SeqId,
    /// Sampling settings of the sequence.
    pub sampling: Arc<SamplingParams>,
    /// Prompt tokens of the sequence, which the repetition penalty needs.
    pub prompt: Arc<[TokenId]>,
}

/// Slice: consecutive tokens of one sequence that a step runs through the model.
#[derive(Debug, Clone)]
pub struct SeqSlice {
    /// Sequence that the tokens of the slice belong to.
    pub seq: SeqId,
    /// Position of the first input token, which equals the number of tokens of the sequence whose KV is valid when the
    /// step begins.
    pub first_pos: u32,
    /// Input tokens of the slice.
    pub input: SliceInput,
    /// Block table of the sequence: entry `i` holds the positions from `i * block_size` on. The table covers at least
    /// `first_pos + input.len()` positions.
    pub table: Arc<[BlockId]>,
    /// `Some(i)`: the step samples output token number `i` (from 0) from the logits of the last input token. `None`:
    /// the slice ends before the newest token of the sequence (a chunk of a prompt, or of a recomputation after a
    /// preemption), so nothing is sampled.
    pub sample: Option<u32>,
}

/// List of tokens that holds up to four tokens without a heap allocation, because most of the hundreds of slices of a
/// step are decodes of one token.
pub type Tokens = SmallVec<[TokenId; 4]>;

/// Input tokens of a slice, which a step runs through the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SliceInput {
    /// Input tokens whose ids the engine knows when it submits the step.
    Known(Tokens),
    /// One input token: the token that the named step samples for the same sequence. That step may still be in flight.
    SampledBy(StepId),
}

impl SliceInput {
    /// Returns the number of input tokens of the slice.
    pub fn len(&self) -> usize {
        match self {
            SliceInput::Known(tokens) => tokens.len(),
            SliceInput::SampledBy(_) => 1,
        }
    }

    /// Whether the slice has no input tokens; never true in a valid batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Answer of the device to one [`StepBatch`].
#[derive(Debug)]
pub struct StepDone {
    /// Number of the step whose outcome this answer reports.
    pub id: StepId,
    /// Outcome of the step: its output, or the error for which it failed. After an error nothing that the step wrote is
    /// valid.
    pub result: Result<StepOutput, StepError>,
}

/// Results of a step that succeeded.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// For each slice of the step that samples, in the order of the slices: the sampled token, or the reason for which
    /// there is none.
    pub sampled: Vec<(SeqId, Result<Sampled, NotSampled>)>,
    /// Times of the step: forward pass, sampling on the host, and preparation by the host.
    pub timing: StepTiming,
}

/// A token that was sampled for a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Id of the sampled token.
    pub token: TokenId,
    /// Log-probabilities for the sampled token; present if the sequence asked for them.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// Log-probabilities of one output token, natural logarithm, of the distribution after biases, penalties, the mask of
/// the sequence's constraint and the least number of output tokens, but before temperature and truncation.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the token that was chosen.
    pub chosen: f32,
    /// Most likely tokens with their log-probabilities, the most likely first.
    pub top: Vec<(TokenId, f32)>,
}

/// Times that a step took, us.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTiming {
    /// Time from the beginning of the step (or from the end of the step before, if that is later) to its end, without
    /// `sampling_us`, us: mostly the forward pass. A GPU measures it by its own time, which begins after `host_us`;
    /// other devices by the host's clock when the results are taken, and their time includes `host_us` (the mock
    /// device's does not).
    pub forward_us: u64,
    /// Time of sampling on the host, us. Sampling on the device counts as forward pass.
    pub sampling_us: u64,
    /// Time that the host worked before the device could begin the step, us. If the device computes a step while the
    /// host prepares the next one, this time does not lengthen the step.
    pub host_us: u64,
}

/// Reason for which a step sampled no token for one of its sequences. Every reason but [`NotSampled::MaskLate`] ends
/// the sequence. The other sequences of the step go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSampled {
    /// The mask of the sequence was not ready when the step had to sample. A later step has to compute the last input
    /// token again and sample from it.
    #[error("the mask of the next token was late")]
    MaskLate,
    /// The logits of the sequence held NaN or +inf, or no finite value.
    #[error("the model produced no usable probabilities (NaN or infinite logits)")]
    BadLogits,
    /// The device has no sampler state for the sequence. This is a bug of the engine.
    #[error("the device has no state for {0}")]
    UnknownSequence(SeqId),
    /// The constraint of the sequence leaves no token for this position of the output.
    #[error(transparent)]
    NoToken(#[from] NoToken),
}

/// Error that makes a whole step fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The step failed, but the device is still usable. Nothing that the step wrote is valid.
    #[error("step failed: {0}")]
    Failed(String),
    /// The device is lost: no step or copy on it ever succeeds again.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// Reason for which a device did not accept a step or a batch of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The device holds as many unfinished steps (at least `max_steps_in_flight`), or batches of copies, as it can.
    #[error("too many steps in flight")]
    Full,
    /// The thread or task that runs the device's steps or copies has ended.
    #[error("the device has stopped")]
    Stopped,
}

/// Compute side of a device: runs steps in order of submission, one at a time, without blocking the caller.
pub trait StepRunner: Send {
    /// Submits a step. When it has ended, the device calls the callback `done` exactly once, from any thread; callbacks
    /// come in the order of submission.
    ///
    /// # Errors
    /// [`SubmitError`] if the step was not accepted; `done` is then never called.
    fn submit(
        &mut self,
        batch: StepBatch,
        done: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError>;
}
