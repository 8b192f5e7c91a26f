//! Activation tensors of the forward pass, allocated once for the largest batch.

use super::DecoderLimits;
use crate::arch::ModelConfig;
use tiercel_gpu::{OpError, Ops, TensorUse};

/// Lower bound of the number of rows whose logits fit in memory at once (a chunk), however large the vocabulary; a
/// chunk has fewer rows only if no step samples that many rows. Each chunk reads the whole output matrix, so small
/// chunks would be slow.
const LOGIT_ROWS_MIN: usize = 16;

/// Activation tensors of the forward pass, with one row per token of the batch except where noted.
pub(super) struct Activations<O: Ops> {
    /// Residual stream, `[tokens, hidden]`.
    pub(super) residual: O::Tensor,
    /// Outputs of the q, k and v projections side by side, `[tokens, (heads + 2 kv_heads) head_dim]`.
    pub(super) qkv: O::Tensor,
    /// Output of attention, before the output projection, `[tokens, heads head_dim]`.
    pub(super) attention: O::Tensor,
    pub(super) work: Workspace<O>,
    /// Residual stream of the sampled rows (rows whose logits are computed), `[sampled rows, hidden]`.
    pub(super) sampled_residual: O::Tensor,
    /// Output of the last layer's attention for the sampled rows (rows whose logits are computed), `[sampled rows,
    /// heads head_dim]`.
    pub(super) sampled_attention: O::Tensor,
    /// Final hidden states of the chunk of rows whose logits are computed next, `[logit rows, hidden]`.
    pub(super) chunk: O::Tensor,
    /// Logits of one chunk of rows, `[logit rows, vocab]`.
    pub(super) logits: O::Tensor,
}

/// Scratch tensors that every layer overwrites: inputs and outputs of its matrix products.
pub(super) struct Workspace<O: Ops> {
    /// Normalised input of a matrix product, `[tokens, hidden]`; after the last layer, the final hidden states of the
    /// sampled rows.
    pub(super) normed: O::Tensor,
    /// Output of attention or of the MLP before it is added to the residual stream, `[tokens, hidden]`.
    pub(super) delta: O::Tensor,
    /// Gate and up projections of the MLP side by side, `[tokens, 2 intermediate]`.
    pub(super) gate_up: O::Tensor,
    /// Input of the MLP's down projection, `silu(gate) * up`, `[tokens, intermediate]`.
    pub(super) gated: O::Tensor,
}

/// Returns the maximum number of rows whose logits are held in memory at once.
pub(super) fn logit_rows<O: Ops>(config: &ModelConfig, limits: &DecoderLimits) -> usize {
    (O::LOGIT_BYTES / 4 / config.vocab_size).max(LOGIT_ROWS_MIN).min(limits.max_sampled_rows)
}

/// Returns an upper bound of the bytes that [`Activations::new`] allocates: 4 for each element, and where the device
/// draws tokens, a bit for each logit, for masks.
pub(super) fn bytes<O: Ops>(config: &ModelConfig, limits: &DecoderLimits) -> u64 {
    let (hidden, q) = (config.hidden_size, config.q_cols());
    let token = 3 * hidden + 2 * q + 2 * config.kv_cols() + 3 * config.intermediate_size;
    let masks = if O::DRAWS { config.vocab_size.div_ceil(32) } else { 0 };
    let logit = hidden + config.vocab_size + masks;
    let rows = [
        (limits.max_batched_tokens, token),
        (limits.max_sampled_rows, hidden + q),
        (logit_rows::<O>(config, limits), logit),
    ];
    rows.iter().map(|&(rows, cols)| (rows as u64).saturating_mul(cols as u64 * 4)).sum()
}

impl<O: Ops> Activations<O> {
    pub(super) fn new(
        ops: &mut O,
        config: &ModelConfig,
        limits: &DecoderLimits,
    ) -> Result<Self, OpError> {
        let (hidden, q) = (config.hidden_size, config.q_cols());
        let (tokens, sampled) = (limits.max_batched_tokens, limits.max_sampled_rows);
        let logit_rows = logit_rows::<O>(config, limits);
        let mut tensor = |rows, cols, holds| ops.tensor(rows, cols, holds);
        Ok(Activations {
            residual: tensor(tokens, hidden, TensorUse::Residual)?,
            qkv: tensor(tokens, q + 2 * config.kv_cols(), TensorUse::Activations)?,
            attention: tensor(tokens, q, TensorUse::Activations)?,
            work: Workspace {
                normed: tensor(tokens, hidden, TensorUse::Activations)?,
                delta: tensor(tokens, hidden, TensorUse::Activations)?,
                gate_up: tensor(tokens, 2 * config.intermediate_size, TensorUse::Activations)?,
                gated: tensor(tokens, config.intermediate_size, TensorUse::Activations)?,
            },
            sampled_residual: tensor(sampled, hidden, TensorUse::Residual)?,
            sampled_attention: tensor(sampled, q, TensorUse::Activations)?,
            chunk: tensor(logit_rows, hidden, TensorUse::Activations)?,
            logits: tensor(logit_rows, config.vocab_size, TensorUse::Logits)?,
        })
    }
}
