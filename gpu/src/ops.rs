//! The op set: the seam between the model and a device. The forward pass is written once against this
//! trait; a device implements it over its own memory. KV memory is never visible to the model.
//!
//! Every operation takes a whole mixed batch (decode tokens and prefill chunks of many sequences, one
//! row per token). The result for a row depends on that row's inputs alone, bit for bit: never on which
//! rows share the call, how a prompt was cut into chunks, or how many threads run.

use std::ops::Range;
use std::sync::Arc;
use tiercel_device::{BlockId, StepError, TokenId};

/// How a weight matrix arrives from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// 32 weights: f16 scale, 16 bytes of nibbles (offset 8).
    Q4_0,
    /// 32 weights: f16 scale, f16 minimum, 16 bytes of nibbles.
    Q4_1,
    /// 32 weights, 5 bits, symmetric.
    Q5_0,
    /// 32 weights, 5 bits, with minimum.
    Q5_1,
    /// 32 weights: f16 scale, 32 signed bytes.
    Q8_0,
    /// 256-weight k-quants of ggml.
    Q2K,
    /// See [`SourceType::Q2K`].
    Q3K,
    /// See [`SourceType::Q2K`].
    Q4K,
    /// See [`SourceType::Q2K`].
    Q5K,
    /// See [`SourceType::Q2K`].
    Q6K,
}

/// Rows of a weight matrix `[n, k]`, row-major, as stored in a file. Several parts with the same `k`
/// are stacked along `n` into one matrix (q, k and v; gate and up), each in its own encoding.
#[derive(Debug, Clone)]
pub struct MatrixPart<'a> {
    /// Output features of this part.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Encoding of `bytes`.
    pub source: SourceType,
    /// `n` rows of `k` weights.
    pub bytes: &'a [u8],
    /// Row `i` of the result is row `order[i]` of `bytes`; `None` keeps the order. (GGUF files of the
    /// llama family store q and k rows permuted for interleaved RoPE; the loader undoes it here.)
    pub row_order: Option<Vec<u32>>,
}

/// What a loaded matrix should become in memory (the `--weights` setting).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Fastest form that is faithful to the file: quantized stays quantized.
    Auto,
    /// Dequantize to f32.
    F32,
    /// Round to bf16.
    Bf16,
    /// 8 bits in blocks of 32.
    Q8_0,
    /// As in the file, re-laid but never re-quantized; encodings without a kernel become f32.
    Native,
}

/// Which rows of the batch belong to which sequence.
#[derive(Debug, Clone)]
pub struct SeqRows {
    /// Rows of the batch tensors.
    pub rows: Range<usize>,
    /// Position of the first of them; the KV of all earlier positions is already in the blocks.
    pub first_pos: u32,
    /// Block table, position `p` lives in `table[p / block_size]`.
    pub table: Arc<[BlockId]>,
}

/// Shape of the attention of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Multiplies q·k, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Keys further than this many positions back are ignored (Mistral v0.1); `None` sees all.
    pub sliding_window: Option<u32>,
}

impl AttentionShape {
    /// Columns of the fused q, k, v tensor: q heads, then k heads, then v heads.
    pub fn qkv_cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// What a tensor holds, which decides its precision on devices that have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorUse {
    /// The residual stream, summed up over all layers.
    Residual,
    /// Inputs and outputs of matrix products and of attention.
    Activations,
    /// Logits, read by the host.
    Logits,
}

/// How a device draws a token from a row of logits: weights `exp((logit - largest) / temperature)`, of which min-p, then
/// top-k, then top-p keep a prefix of the ranking by weight, the lower id first among equals; then the token at a
/// fraction of the weight that is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Which row.
    pub row: usize,
    /// 0 takes the largest logit, the lowest id on a tie.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Where the draw falls, in `[0, 1)`.
    pub at: f64,
}

/// Where the token of a row comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowInput {
    /// It is known.
    Token(TokenId),
    /// The device drew it in the step submitted last, from that step's sampled row of this number.
    Drawn(usize),
}

/// A sampled row of a step and the token drawn from it; `None` without a usable logit.
pub type Drawn = (usize, Option<TokenId>);

impl From<TokenId> for RowInput {
    fn from(token: TokenId) -> RowInput {
        RowInput::Token(token)
    }
}

/// Operations of a device. Tensors are `[rows, cols]` activations with a row capacity fixed when they are
/// made; an operation sets the row count of its output. Shapes that do not fit are a bug of the caller and
/// panic with the shapes in the message. What goes wrong on the device is told by [`Ops::finish`]. A device that works
/// by itself does in order what it is asked to, whoever waits for it.
pub trait Ops: Send {
    /// Steps that may be under way at once.
    const STEPS: usize = 1;
    /// Most bytes of logits held at once. A step that samples more rows reads the output matrix once for each part.
    const LOGIT_BYTES: usize = 64 << 20;
    /// Packed weights `[n, k]`.
    type Matrix: Send;
    /// A bias or norm weight.
    type Vector: Send;
    /// Activations.
    type Tensor: Send;
    /// Precomputed cos and sin per position.
    type Rope: Send;
    /// Which rows belong to which sequence, as the device wants it.
    type Batch: Send;

    /// Packs weights. Errors on sizes that do not match `bytes`, a `k` that the encoding cannot
    /// have, and too little memory.
    ///
    /// # Errors
    /// A message naming the mismatch.
    fn matrix(
        &mut self,
        parts: &[MatrixPart<'_>],
        format: WeightFormat,
    ) -> Result<Self::Matrix, OpError>;
    /// Short description of what a matrix became (`"q4 panels"`), for the log.
    fn describe(&self, matrix: &Self::Matrix) -> String;
    /// Uploads a vector.
    ///
    /// # Errors
    /// Too little memory.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, OpError>;
    /// Allocates activations.
    ///
    /// # Errors
    /// Too little memory, or columns that the device's kernels do not take.
    fn tensor(
        &mut self,
        max_rows: usize,
        cols: usize,
        holds: TensorUse,
    ) -> Result<Self::Tensor, OpError>;
    /// `inv_freq` has `head_dim / 2` entries; `cos`/`sin` are scaled by `attention_factor`. Pairs are
    /// (i, i + head_dim/2), as in Hugging Face checkpoints.
    ///
    /// # Errors
    /// Too little memory.
    fn rope(
        &mut self,
        inv_freq: &[f32],
        attention_factor: f32,
        max_positions: usize,
    ) -> Result<Self::Rope, OpError>;

    /// The next step is of `rows` single tokens of as many sequences, and the device draws from all of them. If it is
    /// less work for the host when steps have certain numbers of rows, up to `most`: how many it is to have, and a block
    /// that rows beyond those asked for may write. They draw too.
    fn repeat(&mut self, _rows: usize, _most: usize) -> Option<(usize, BlockId)> {
        None
    }
    /// Prepares a batch for the layers of a step, whose attention has these `shapes`. It is valid until the step is
    /// submitted.
    fn batch(&mut self, seqs: &[SeqRows], shapes: &[AttentionShape]) -> Self::Batch;

    /// `out[r] = table[token of inputs[r]]`.
    fn embed(&mut self, table: &Self::Matrix, inputs: &[RowInput], out: &mut Self::Tensor);
    /// `out = x · wᵀ + bias`.
    fn linear(
        &mut self,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Tensor,
        out: &mut Self::Tensor,
    );
    /// `residual += delta` (if any), then `out = residual / rms(residual) * weight`.
    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Tensor,
        delta: Option<&Self::Tensor>,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    );
    /// RMS norm of single heads of the fused qkv tensor, in place (Qwen3): `heads` is a range of head
    /// indices counted over q, k, v heads together.
    fn head_rms_norm(
        &mut self,
        qkv: &mut Self::Tensor,
        heads: Range<usize>,
        shape: &AttentionShape,
        weight: &Self::Vector,
        eps: f32,
    );
    /// Rotates q and k in place and writes k and v of every row into the blocks of its sequence.
    fn rope_kv_write(
        &mut self,
        qkv: &mut Self::Tensor,
        rope: &Self::Rope,
        shape: &AttentionShape,
        layer: usize,
        batch: &Self::Batch,
    );
    /// Causal attention of every row over its sequence's blocks, positions `0..=its own`.
    /// `out` is `[rows, heads * head_dim]`.
    fn attention(
        &mut self,
        qkv: &Self::Tensor,
        shape: &AttentionShape,
        layer: usize,
        batch: &Self::Batch,
        out: &mut Self::Tensor,
    );
    /// `gate_up` is `[rows, 2 m]`; `out[r, i] = silu(gate_up[r, i]) * gate_up[r, m + i]`.
    fn silu_mul(&mut self, gate_up: &Self::Tensor, out: &mut Self::Tensor);
    /// `out[i] = x[rows[i]]`.
    fn gather_rows(&mut self, x: &Self::Tensor, rows: &[usize], out: &mut Self::Tensor);
    /// Draws a token from each of some rows of logits, of whose columns the first `vocab` are tokens. Row 0 of `x` is
    /// the step's sampled row number `first`. Says whether the device does: if not, nothing has happened, and the host
    /// is to sample.
    fn draw_rows(
        &mut self,
        _x: &Self::Tensor,
        _vocab: usize,
        _first: usize,
        _draws: &[Draw],
    ) -> bool {
        false
    }
    /// Calls `each(row index, row values)` for some rows, in ascending order, spread over the compute pool;
    /// rows may be modified (sampling works in place on logits).
    fn for_each_row(
        &mut self,
        x: &mut Self::Tensor,
        rows: &[usize],
        each: &(dyn Fn(usize, &mut [f32]) + Sync),
    );
    /// Ends the list of what a step does; the device may still be at it. At most [`Ops::STEPS`] steps may be under way.
    fn submit(&mut self) {}
    /// Whether the oldest step that was submitted has ended, so that [`Ops::finish`] need not wait.
    fn has_ended(&mut self) -> bool {
        true
    }
    /// Waits for the oldest step that was submitted, or if there is none for everything that was asked for. Tells what the
    /// step drew.
    ///
    /// # Errors
    /// [`StepError`]: something of the step went wrong, and nothing it computed may be believed; and whether the device
    /// can go on.
    fn finish(&mut self) -> Result<Vec<Drawn>, StepError>;
}

/// Weights that cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The bytes do not have the size that shape and encoding imply.
    #[error(
        "a [{n}, {k}] matrix in {encoding:?} needs {expected} bytes but the file holds {actual}"
    )]
    Size {
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
        /// Encoding.
        encoding: SourceType,
        /// Bytes implied.
        expected: usize,
        /// Bytes present.
        actual: usize,
    },
    /// The encoding works on blocks and `k` is not a multiple of them.
    #[error("rows of {k} weights cannot be stored in {encoding:?} (blocks of {block})")]
    Block {
        /// Columns.
        k: usize,
        /// Encoding.
        encoding: SourceType,
        /// Weights per block.
        block: usize,
    },
    /// Scales are 16 bits wide in memory.
    #[error(
        "a [{n}, {k}] matrix in {encoding:?} holds weights too large for a quantized form; choose the \
         weight format f32, or download the model again if it should not"
    )]
    Scale {
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
        /// Encoding.
        encoding: SourceType,
    },
    /// There is no memory for the packed matrix.
    #[error(
        "{bytes} bytes of weights do not fit in memory ({why}); choose a smaller weight format"
    )]
    Memory {
        /// Bytes wanted.
        bytes: usize,
        /// What the system said.
        why: String,
    },
    /// The device refused, or its kernels do not take such a matrix.
    #[error("the device cannot hold it: {0}")]
    Device(String),
    /// Stacked parts differ in `k`.
    #[error("stacked matrices differ in width: {0} and {1}")]
    Width(usize, usize),
}
