//! The forward pass: one decoder for all model families, written once against the op set.
//!
//! A forward pass computes a mixed batch of decode tokens and prefill chunks, one row per token. Every matrix product
//! covers the whole batch. Only RoPE, KV writes and attention depend on which rows belong to which sequence. In the
//! last layer, only sampled rows (whose logits are needed) go through attention and MLP: all rows of a chunk write
//! their KV, but only the last row of a chunk that ends its prompt is computed further.

mod activations;

use crate::arch::ModelConfig;
use crate::weights::{LayerWeights, Weights};
use activations::{Activations, Workspace};
use std::ops::Range;
use tiercel_gpu::{AttentionShape, OpError, Ops, RowInput, SeqRows};

/// Largest batch and longest sequence that a decoder allocates its activations and rotary tables for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Maximum number of tokens in one batch.
    pub max_batched_tokens: usize,
    /// Maximum number of rows of one batch whose logits are computed to sample a token.
    pub max_sampled_rows: usize,
    /// Longest sequence that a decoder can run, in positions: the positions are `0..max_positions`.
    pub max_positions: usize,
}

/// Batch of the forward pass, one row per token: row `r` computes the token `inputs[r]`.
#[derive(Debug, Clone, Copy)]
pub struct ForwardBatch<'a> {
    /// Input token of each row of the batch, with an id below the vocabulary's size. At least one row, at most
    /// `max_batched_tokens`.
    pub inputs: &'a [RowInput],
    /// Rows of the batch that belong to each sequence; the sequences together cover all rows.
    pub seqs: &'a [SeqRows],
    /// Rows of the batch whose logits are computed; at most `max_sampled_rows`.
    pub sampled: &'a [usize],
}

/// Decoder model on a device: its weights, its activations and the forward pass.
pub struct Decoder<O: Ops> {
    config: ModelConfig,
    weights: Weights<O>,
    rope: O::Rope,
    shapes: Vec<AttentionShape>,
    activations: Activations<O>,
    limits: DecoderLimits,
    /// Number of sampled rows (rows whose logits can be computed) of the batch that was run last.
    sampled: usize,
}

impl<O: Ops> Decoder<O> {
    /// Returns an upper bound of the bytes of activations that a decoder of the sizes `limits` allocates.
    pub fn activation_bytes(config: &ModelConfig, limits: &DecoderLimits) -> u64 {
        activations::bytes::<O>(config, limits)
    }

    /// Creates a decoder with the given weights; allocates its activations and rotary tables.
    ///
    /// # Errors
    /// [`OpError`]: too little memory, or a shape that the device's kernels do not take.
    pub fn new(
        ops: &mut O,
        config: ModelConfig,
        weights: Weights<O>,
        limits: DecoderLimits,
    ) -> Result<Decoder<O>, OpError> {
        let inv_freq = config.rope.inv_freq(config.head_dim);
        Ok(Decoder {
            rope: ops.rope(&inv_freq, 1.0, limits.max_positions)?,
            shapes: (0..config.layers()).map(|layer| config.attention(layer)).collect(),
            activations: Activations::new(ops, &config, &limits)?,
            sampled: 0,
            config,
            weights,
            limits,
        })
    }

    /// Returns the configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the largest batch and the longest sequence that the decoder was built for.
    pub fn limits(&self) -> &DecoderLimits {
        &self.limits
    }

    /// Runs the forward pass of a batch: writes the KV of every row and computes the final hidden states of the sampled
    /// rows, whose logits [`Decoder::logits`] then returns.
    pub fn forward(&mut self, ops: &mut O, batch: ForwardBatch<'_>) {
        self.sampled = batch.sampled.len();
        let (last, before) = self.weights.layers.split_last().expect("a model has layers");
        let (eps, a) = (self.config.norm_eps, &mut self.activations);
        let seqs = ops.batch(batch.seqs, &self.shapes);
        ops.embed(&self.weights.embedding, batch.inputs, &mut a.residual);
        for (index, layer) in before.iter().enumerate() {
            let shape = &self.shapes[index];
            write_kv(ops, layer, (index, shape), &self.rope, &seqs, eps, a);
            ops.attention(&a.qkv, shape, index, &seqs, &mut a.attention);
            finish_layer(ops, layer, eps, &mut a.residual, &a.attention, &mut a.work);
        }
        let (index, shape) = (before.len(), &self.shapes[before.len()]);
        write_kv(ops, last, (index, shape), &self.rope, &seqs, eps, a);
        if batch.sampled.is_empty() {
            return;
        }
        let sampled = ops.batch(&sampled_rows(&batch), &self.shapes[index..]);
        ops.attention(&a.qkv, shape, index, &sampled, &mut a.attention);
        let (residual, attention) = (&mut a.sampled_residual, &mut a.sampled_attention);
        ops.gather_rows(&a.residual, batch.sampled, residual);
        ops.gather_rows(&a.attention, batch.sampled, attention);
        finish_layer(ops, last, eps, residual, attention, &mut a.work);
        let Workspace { normed, delta, .. } = &mut a.work;
        ops.add_rms_norm(residual, Some(delta), &self.weights.final_norm, eps, normed);
    }

    /// Returns the most sampled rows whose logits fit in memory at once.
    pub fn logit_rows(&self) -> usize {
        activations::logit_rows::<O>(&self.config, &self.limits)
    }

    /// Splits the sampled rows of the batch that was run last into consecutive ranges (of indices into `sampled`), each
    /// small enough that its logits fit in memory at once.
    pub fn logit_chunks(&self) -> impl Iterator<Item = Range<usize>> + use<O> {
        let (rows, sampled) = (self.logit_rows(), self.sampled);
        (0..sampled).step_by(rows).map(move |start| start..sampled.min(start + rows))
    }

    /// Computes the logits `[rows, vocab]` of one range of sampled rows from [`Decoder::logit_chunks`]. The caller may
    /// overwrite the returned tensor.
    pub fn logits(&mut self, ops: &mut O, rows: Range<usize>) -> &mut O::Tensor {
        let a = &mut self.activations;
        let rows: Vec<usize> = rows.collect();
        ops.gather_rows(&a.work.normed, &rows, &mut a.chunk);
        ops.linear(self.weights.output(), None, &a.chunk, &mut a.logits);
        &mut a.logits
    }

    /// Returns the logits that [`Decoder::logits`] computed last.
    pub fn last_logits(&mut self) -> &mut O::Tensor {
        &mut self.activations.logits
    }
}

/// Returns the sampled rows of a batch, grouped by sequence for the last layer's attention. Rows of one sequence that
/// are listed one after the other, in ascending order and without gaps, form one group, and a row that is listed twice
/// appears once.
fn sampled_rows(batch: &ForwardBatch<'_>) -> Vec<SeqRows> {
    let mut seqs: Vec<SeqRows> = Vec::with_capacity(batch.sampled.len());
    for &row in batch.sampled {
        if seqs.iter().any(|seq| seq.rows.contains(&row)) {
            continue;
        }
        let Some(seq) = batch.seqs.iter().find(|seq| seq.rows.contains(&row)) else { continue };
        match seqs.last_mut() {
            Some(last) if last.rows.end == row && row > seq.rows.start => last.rows.end += 1,
            _ => seqs.push(SeqRows {
                rows: row..row + 1,
                first_pos: seq.first_pos + (row - seq.rows.start) as u32,
                table: seq.table.clone(),
            }),
        }
    }
    seqs
}

/// Runs the first half of a layer: addition of the MLP output of the layer before, norm, q, k and v projections, RoPE,
/// and the write of keys and values into the KV blocks.
fn write_kv<O: Ops>(
    ops: &mut O,
    layer: &LayerWeights<O>,
    (index, shape): (usize, &AttentionShape),
    rope: &O::Rope,
    seqs: &O::Batch,
    eps: f32,
    a: &mut Activations<O>,
) {
    // The first layer's residual stream is the embedding alone: there is no MLP output of an earlier layer to add.
    let delta = (index > 0).then_some(&a.work.delta);
    ops.add_rms_norm(&mut a.residual, delta, &layer.attention_norm, eps, &mut a.work.normed);
    ops.linear(&layer.qkv, layer.qkv_bias.as_ref(), &a.work.normed, &mut a.qkv);
    if let Some(norms) = &layer.head_norms {
        let (q, k) = (0..shape.heads, shape.heads..shape.heads + shape.kv_heads);
        ops.head_rms_norm(&mut a.qkv, q, shape, &norms.q, eps);
        ops.head_rms_norm(&mut a.qkv, k, shape, &norms.k, eps);
    }
    ops.rope_kv_write(&mut a.qkv, rope, shape, index, seqs);
}

/// Runs the second half of a layer: output projection of attention, residual addition, norm and MLP. Leaves the MLP's
/// output in `work.delta`, to be added to the residual stream by the next layer or, after the last one, before the
/// final norm.
fn finish_layer<O: Ops>(
    ops: &mut O,
    layer: &LayerWeights<O>,
    eps: f32,
    residual: &mut O::Tensor,
    attention: &O::Tensor,
    work: &mut Workspace<O>,
) {
    ops.linear(&layer.output, layer.output_bias.as_ref(), attention, &mut work.delta);
    ops.add_rms_norm(residual, Some(&work.delta), &layer.mlp_norm, eps, &mut work.normed);
    ops.linear(&layer.gate_up, None, &work.normed, &mut work.gate_up);
    ops.silu_mul(&work.gate_up, &mut work.gated);
    ops.linear(&layer.down, None, &work.gated, &mut work.delta);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_sample_are_attended_for() {
        let seq = |rows, first_pos| SeqRows { rows, first_pos, table: [].into() };
        let seqs = [seq(0..1, 40), seq(1..9, 100), seq(9..12, 0)];
        let rows = |sampled: &[usize]| -> Vec<(Range<usize>, u32)> {
            let rows = sampled_rows(&ForwardBatch { inputs: &[], seqs: &seqs, sampled });
            rows.into_iter().map(|seq| (seq.rows, seq.first_pos)).collect()
        };
        assert_eq!(rows(&[0, 8]), [(0..1, 40), (8..9, 107)]);
        assert_eq!(rows(&[0, 1, 2, 3, 9, 10]), [(0..1, 40), (1..4, 100), (9..11, 0)]);
        assert_eq!(rows(&[11, 5, 11]), [(11..12, 2), (5..6, 104)]);
    }
}
