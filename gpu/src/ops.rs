//! The op set: the interface between a model and a device. The forward pass is written once, against the trait `Ops`;
//! each device implements the trait over its own memory. KV memory is never visible to the model.
//!
//! Every operation takes a whole mixed batch: decode tokens and prefill chunks of many sequences, one row per token. On
//! the CPU, and on a GPU with the setting `device.exact`, the result for a row depends on that row's inputs alone, bit
//! for bit: never on the other rows of the call, on how a prompt was cut into chunks, or on the number of threads.

use crate::draws::{Draw, Drawn, RowInput};
use crate::quantized::QuantizedPart;
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::{BlockId, StepError, StepId};

/// Encoding of a weight matrix in a model file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceType {
    /// Weights as 32-bit IEEE floats.
    F32,
    /// Weights as 16-bit IEEE floats (half).
    F16,
    /// Weights as 16-bit bfloat16.
    Bf16,
    /// Blocks of 32 weights of 4 bits: an f16 scale, then 16 bytes of nibbles. A weight is `scale * (nibble - 8)`.
    Q4_0,
    /// Blocks of 32 weights of 4 bits: an f16 scale, an f16 minimum, then 16 bytes of nibbles. A weight is
    /// `scale * nibble + minimum`.
    Q4_1,
    /// Blocks of 32 weights of 5 bits with an f16 scale. A weight is `scale * (q - 16)`, where `q` is its 5 bits.
    Q5_0,
    /// Blocks of 32 weights of 5 bits with an f16 scale and an f16 minimum. A weight is `scale * q + minimum`, where
    /// `q` is its 5 bits.
    Q5_1,
    /// Blocks of 32 weights of 8 bits: an f16 scale, then 32 signed bytes. A weight is `scale * byte`.
    Q8_0,
    /// Q2_K of ggml's k-quants: blocks of 256 weights of 2 bits with quantized scales.
    Q2K,
    /// Q3_K of ggml's k-quants: blocks of 256 weights of 3 bits with quantized scales.
    Q3K,
    /// Q4_K of ggml's k-quants: blocks of 256 weights of 4 bits with quantized scales.
    Q4K,
    /// Q5_K of ggml's k-quants: blocks of 256 weights of 5 bits with quantized scales.
    Q5K,
    /// Q6_K of ggml's k-quants: blocks of 256 weights of 6 bits with quantized scales.
    Q6K,
}

/// Part of a weight matrix: `n` rows of `k` weights, row-major, as stored in a file. Parts with the same `k` are
/// stacked along `n` into one matrix (for example q, k and v, or gate and up). Each part has its own encoding.
#[derive(Debug, Clone)]
pub struct MatrixPart<'a> {
    /// Number of output features (rows) of the part of the weight matrix.
    pub n: usize,
    /// Number of input features of the part of the weight matrix: the weights of a row.
    pub k: usize,
    /// Encoding of the weights in the field `bytes`.
    pub source: SourceType,
    /// Encoded weights as in the model file: `n` rows of `k` weights.
    pub bytes: &'a [u8],
    /// Order of the matrix rows: row `i` of the packed part is row `row_order[i]` of `bytes`; `None` keeps the order of
    /// the file. (GGUF files of the llama family store q and k rows permuted for interleaved RoPE. The loader undoes
    /// the permutation with this order.)
    pub row_order: Option<Vec<u32>>,
}

/// Form in which a device holds a weight matrix in memory (the `--weights` setting). A GPU supports `Auto` and `Bf16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// A form of weights that is faithful to the file: the fastest on a CPU, the smallest on a GPU. Quantized weights
    /// stay quantized, where the device has a kernel for them.
    Auto,
    /// Weights in f32: quantized weights are dequantized.
    F32,
    /// Weights rounded to bf16, whatever their encoding in the model's file.
    Bf16,
    /// 8-bit weights in blocks of 32 that share a scale.
    Q8_0,
    /// Weights in the encoding of the file, rearranged in memory but never quantized again. Encodings without a kernel
    /// become f32.
    Native,
}

/// Rows of a batch that belong to one sequence, and the sequence's KV blocks.
#[derive(Debug, Clone)]
pub struct SeqRows {
    /// Range of rows of the batch tensors that belong to the sequence's tokens.
    pub rows: Range<usize>,
    /// Position in its sequence of the token in the first of the rows. The KV of all earlier positions is already in
    /// the blocks.
    pub first_pos: u32,
    /// Block table of the sequence: the KV of position `p` is in block `table[p / block_size]`.
    pub table: Arc<[BlockId]>,
}

/// Dimensions of the attention of a model's layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads; divides the number of query heads.
    pub kv_heads: usize,
    /// Width of a head: number of components of a query, a key or a value.
    pub head_dim: usize,
    /// Factor of the dot product q·k before the softmax, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Number of latest positions that a token attends to, its own included (Mistral v0.1). `None` attends to all
    /// positions.
    pub sliding_window: Option<u32>,
}

impl AttentionShape {
    /// Returns the number of columns of the fused q, k, v tensor: q heads, then k heads, then v heads.
    pub fn qkv_cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// What a tensor is used for. The use decides the tensor's precision on devices that have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorUse {
    /// Tensor of the residual stream, which is summed up over all layers.
    Residual,
    /// Tensor for inputs and outputs of matrix products and of attention.
    Activations,
    /// Tensor of logits, from which the device or the host samples.
    Logits,
}

/// The op set: operations of a device that make up a model's forward pass. A tensor holds `[rows, cols]` activations;
/// its row capacity is fixed when it is made, and an operation sets the row count of its output. Shapes that do not fit
/// are a bug of the caller: the operation panics with the shapes in the message. Errors of the device are returned by
/// [`Ops::finish`]. An asynchronous device runs operations in the order of the calls.
pub trait Ops: Send {
    /// Most steps that may be in flight at once on the device.
    const STEPS: usize = 1;
    /// Largest size of the logits that are held at once, bytes. A step whose sampled rows need more computes the logits
    /// in parts and reads the output matrix once for each part.
    const LOGIT_BYTES: usize = 64 << 20;
    /// Whether the device draws tokens ([`Ops::draw_rows`]). Otherwise the host samples all tokens.
    const DRAWS: bool = false;
    /// Whether the device holds quantized matrices as they are ([`Ops::quantized`]).
    const QUANTIZED: bool = false;
    /// Type of a weight matrix `[n, k]`, packed for the device.
    type Matrix: Send;
    /// Type of a bias or norm weight in the memory of the device.
    type Vector: Send;
    /// Type of activations `[rows, cols]` in the memory of the device.
    type Tensor: Send;
    /// Type of precomputed cosines and sines of rotary embeddings (RoPE), by position.
    type Rope: Send;
    /// Type of a batch's description: rows and KV blocks of its sequences, in the form that the device needs.
    type Batch: Send;

    /// Packs stacked parts of weights (such as q, k and v) into one matrix, in the form that `format` asks for.
    ///
    /// # Errors
    /// An `OpError` that names the mismatch, for sizes that do not match `bytes` and for a `k` that the encoding cannot
    /// have; or too little memory.
    fn matrix(
        &mut self,
        parts: &[MatrixPart<'_>],
        format: WeightFormat,
    ) -> Result<Self::Matrix, OpError>;
    /// Packs stacked parts of quantized weights into one matrix that stays quantized. `None` if the device does not
    /// hold such parts together; the caller then decodes them and calls [`Ops::matrix`].
    ///
    /// # Errors
    /// Fails if there is too little memory.
    fn quantized(&mut self, _parts: &[QuantizedPart]) -> Result<Option<Self::Matrix>, OpError> {
        Ok(None)
    }
    /// Returns a short description, such as `"q4 panels"`, of how a packed weight matrix is stored, for the log.
    fn describe(&self, matrix: &Self::Matrix) -> String;
    /// Copies a bias or norm weight to the memory of the device.
    ///
    /// # Errors
    /// Fails if there is too little memory.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, OpError>;
    /// Allocates a tensor of `cols` columns with room for `max_rows` rows.
    ///
    /// # Errors
    /// Fails if there is too little memory, or if the device's kernels do not support `cols` columns.
    fn tensor(
        &mut self,
        max_rows: usize,
        cols: usize,
        holds: TensorUse,
    ) -> Result<Self::Tensor, OpError>;
    /// Computes the rotary table for positions below `max_positions`. `inv_freq` has `head_dim / 2` entries. Cosines
    /// and sines are multiplied by `attention_factor`. Component `i` of a head is rotated with component
    /// `i + head_dim / 2`, as in Hugging Face checkpoints.
    ///
    /// # Errors
    /// Fails if there is too little memory.
    fn rope(
        &mut self,
        inv_freq: &[f32],
        attention_factor: f32,
        max_positions: usize,
    ) -> Result<Self::Rope, OpError>;

    /// Announces that the next step has `rows` rows, each a single token of another sequence, and that the device draws
    /// a token from each row (decode). If a step of more rows can be less work for the host (on a GPU by replaying a
    /// CUDA graph), returns that row count, at most `most`, and a KV block that the added rows may write; the device
    /// draws from the added rows too. `None` leaves the step as it is. With `flushed`, the step's draws come after
    /// [`Ops::flush`].
    fn pad_decode(
        &mut self,
        _rows: usize,
        _most: usize,
        _flushed: bool,
    ) -> Option<(usize, BlockId)> {
        None
    }
    /// Prepares the description of a batch for layers of the next step; `shapes` holds the attention shape of each of
    /// the layers. The description can be used until the step is submitted.
    fn batch(&mut self, seqs: &[SeqRows], shapes: &[AttentionShape]) -> Self::Batch;

    /// Looks up embeddings: `out[r] = table[token of inputs[r]]`.
    fn embed(&mut self, table: &Self::Matrix, inputs: &[RowInput], out: &mut Self::Tensor);
    /// Computes the matrix product `out = x · wᵀ + bias`.
    fn linear(
        &mut self,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Tensor,
        out: &mut Self::Tensor,
    );
    /// Adds `delta` (if any) to the residual, `residual += delta`, then normalizes:
    /// `out = residual / rms(residual) * weight`.
    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Tensor,
        delta: Option<&Self::Tensor>,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    );
    /// Applies RMS norm to single heads of the fused q, k, v tensor, in place (used by Qwen3). `heads` is a range of
    /// head indices, counted over q, k and v heads together.
    fn head_rms_norm(
        &mut self,
        qkv: &mut Self::Tensor,
        heads: Range<usize>,
        shape: &AttentionShape,
        weight: &Self::Vector,
        eps: f32,
    );
    /// Applies RoPE to queries and keys in place, and writes keys and values of every row into the KV blocks of the
    /// row's sequence.
    fn rope_kv_write(
        &mut self,
        qkv: &mut Self::Tensor,
        rope: &Self::Rope,
        shape: &AttentionShape,
        layer: usize,
        batch: &Self::Batch,
    );
    /// Computes causal attention: every row attends to the positions of its sequence up to the row's own position,
    /// whose keys and values are read from the sequence's KV blocks. `out` is `[rows, heads * head_dim]`.
    fn attention(
        &mut self,
        qkv: &Self::Tensor,
        shape: &AttentionShape,
        layer: usize,
        batch: &Self::Batch,
        out: &mut Self::Tensor,
    );
    /// Computes the gated activation `out[r, i] = silu(gate_up[r, i]) * gate_up[r, m + i]`, where `gate_up` is
    /// `[rows, 2 m]`.
    fn silu_mul(&mut self, gate_up: &Self::Tensor, out: &mut Self::Tensor);
    /// Copies the rows of a tensor whose numbers are in `rows`: `out[i] = x[rows[i]]`.
    fn gather_rows(&mut self, x: &Self::Tensor, rows: &[usize], out: &mut Self::Tensor);
    /// For each of `draws`, draws a token from a row of the logits `x`. Only the first `vocab` columns of `x` are
    /// tokens. Row 0 of `x` is sampled row number `first` of the step. Draws with masks must come after [`Ops::flush`].
    /// Does nothing unless [`Ops::DRAWS`].
    fn draw_rows(&mut self, _x: &Self::Tensor, _vocab: usize, _first: usize, _draws: &[Draw<'_>]) {}
    /// Calls `each(row number, row values)` on the host for the rows of a tensor whose numbers are in `rows`, in
    /// ascending order. The calls are spread over the compute pool. `each` may overwrite the values, for example to
    /// sample in place. A GPU passes a copy, so its tensor does not change; if it cannot read a row, it does not call
    /// `each` for the row, and [`Ops::finish`] returns the error.
    fn for_each_row(
        &mut self,
        x: &mut Self::Tensor,
        rows: &[usize],
        each: &(dyn Fn(usize, &mut [f32]) + Sync),
    );
    /// Begins the list of operations of a step that will be submitted. A device with its own time marks the moment at
    /// which it reaches the step.
    fn begin(&mut self, _step: StepId) {}
    /// Lets the device run the operations of the step that were called so far. The step does not end: its draws may
    /// follow, also after [`Ops::finish`] of the step before.
    fn flush(&mut self) {}
    /// Ends the list of operations of the step that [`Ops::begin`] began, and submits it. The device may still be
    /// running the step afterwards. At most [`Ops::STEPS`] steps may be in flight.
    fn submit(&mut self) {}
    /// Whether the oldest step in flight has ended or failed; true if no step is in flight.
    fn has_ended(&mut self) -> bool {
        true
    }
    /// Waits for the oldest step in flight and returns the tokens that the device drew in that step. Without a step in
    /// flight, waits for all operations called so far.
    ///
    /// # Errors
    /// [`StepError`] if a part of the step failed: no result of the step is valid. The error tells whether the device
    /// is still usable.
    fn finish(&mut self) -> Result<Vec<Drawn>, StepError>;
    /// Returns the time on the device from the beginning of the step that [`Ops::finish`] returned last to its end, us.
    /// `None` if the device has no time of its own or the step failed; the caller then uses the host's clock.
    fn step_us(&self) -> Option<u64> {
        None
    }
}

/// Error of packing weights or of allocating memory for a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The encoded bytes of a weight matrix do not have the size that its shape and encoding imply.
    #[error(
        "a [{n}, {k}] matrix in {encoding:?} needs {expected} bytes but the file holds {actual}"
    )]
    Size {
        /// Number of rows of the weight matrix with the wrong size.
        n: usize,
        /// Number of columns of the weight matrix with the wrong size.
        k: usize,
        /// Encoding of the weight matrix in the file.
        encoding: SourceType,
        /// Size that the matrix's shape and encoding imply, bytes.
        expected: usize,
        /// Size of the weight matrix in the file, bytes.
        actual: usize,
    },
    /// The number of columns `k` is 0, or not a multiple of the length of the blocks in which the encoding stores
    /// weights.
    #[error("rows of {k} weights cannot be stored in {encoding:?} (blocks of {block})")]
    Block {
        /// Number of columns of the refused weight matrix: 0, or not a multiple of the encoding's block length.
        k: usize,
        /// Encoding of the weight matrix in the file.
        encoding: SourceType,
        /// Number of weights per block of the encoding.
        block: usize,
    },
    /// A weight or a scale is too large for the quantized form in memory, whose scales are f16.
    #[error(
        "a [{n}, {k}] matrix in {encoding:?} holds weights too large for a quantized form; set \
         model.weights to f32, or download the model again if it should hold none"
    )]
    Scale {
        /// Number of rows of the matrix that holds a weight too large for the quantized form.
        n: usize,
        /// Number of columns of the matrix with the too large weight.
        k: usize,
        /// Encoding of the weight matrix in the file.
        encoding: SourceType,
    },
    /// Too little memory for a packed weight matrix, a vector or a tensor.
    #[error(
        "{bytes} bytes of weights do not fit in memory ({why}); choose a smaller model.weights"
    )]
    Memory {
        /// Size of the allocation that failed, bytes.
        bytes: usize,
        /// Reason for which the allocation failed, as text for the error message.
        why: String,
    },
    /// The device returned an error, or its kernels do not support the matrix or the tensor.
    #[error("the device cannot hold the weights: {0}")]
    Device(String),
    /// Stacked parts of a weight matrix differ in their number of columns `k`: that of the first part, and that of the
    /// part that differs.
    #[error("matrices to be stacked into one differ in their number of columns: {0} and {1}")]
    Width(usize, usize),
}
