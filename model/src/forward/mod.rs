//! The forward pass: one decoder for all families, written once against the op set.
//!
//! A call runs a mixed batch: one row per token, decode tokens and prefill chunks alike. Every matrix
//! product is shared by the whole batch; only RoPE, KV writes and attention look at which rows belong to
//! which sequence. In the last layer only rows that sample go on after the KV write: a chunk that does not
//! end its prompt stops there, one that does attends with its last row.

mod activations;

use crate::arch::ModelConfig;
use crate::weights::{LayerWeights, Weights};
use activations::{Activations, Workspace};
use std::ops::Range;
use tiercel_gpu::{AttentionShape, OpError, Ops, RowInput, SeqRows};

/// Sizes a decoder is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Most tokens in one batch.
    pub max_batched_tokens: usize,
    /// Most rows that sample in one batch.
    pub max_sampled_rows: usize,
    /// Positions run from 0 to this, exclusive.
    pub max_positions: usize,
}

/// A batch: `inputs[r]` is row `r`.
#[derive(Debug, Clone, Copy)]
pub struct ForwardBatch<'a> {
    /// Input tokens, each below the vocabulary's size; at most `max_batched_tokens`, at least one.
    pub inputs: &'a [RowInput],
    /// Which rows belong to which sequence; together they cover all rows.
    pub seqs: &'a [SeqRows],
    /// Rows whose logits are wanted; at most `max_sampled_rows`.
    pub sampled: &'a [usize],
}

/// A decoder on a device.
pub struct Decoder<O: Ops> {
    config: ModelConfig,
    weights: Weights<O>,
    rope: O::Rope,
    shapes: Vec<AttentionShape>,
    activations: Activations<O>,
    limits: DecoderLimits,
    /// Rows that the last batch sampled.
    sampled: usize,
}

impl<O: Ops> Decoder<O> {
    /// Bytes of activations a decoder of these sizes holds.
    pub fn activation_bytes(config: &ModelConfig, limits: &DecoderLimits) -> u64 {
        activations::bytes::<O>(config, limits)
    }

    /// Allocates activations and rotary tables.
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

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The sizes it was built for.
    pub fn limits(&self) -> &DecoderLimits {
        &self.limits
    }

    /// Writes the KV of every row and computes the final hidden state of the rows that sample; fetch
    /// their logits with [`Decoder::logits`].
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

    /// Ranges of the last batch's sampled rows whose logits fit in memory together, in order.
    pub fn logit_chunks(&self) -> impl Iterator<Item = Range<usize>> + use<O> {
        let (rows, sampled) =
            (activations::logit_rows::<O>(&self.config, &self.limits), self.sampled);
        (0..sampled).step_by(rows).map(move |start| start..sampled.min(start + rows))
    }

    /// Logits `[rows, vocab]` of one of [`Decoder::logit_chunks`]; scratch for the caller.
    pub fn logits(&mut self, ops: &mut O, rows: Range<usize>) -> &mut O::Tensor {
        let a = &mut self.activations;
        let rows: Vec<usize> = rows.collect();
        ops.gather_rows(&a.work.normed, &rows, &mut a.chunk);
        ops.linear(self.weights.output(), None, &a.chunk, &mut a.logits);
        &mut a.logits
    }
}

/// The rows that sample, as sequences of their own: neighbours of one sequence stay together, no row is
/// named twice.
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

/// The first half of a layer, up to its KV in the blocks.
fn write_kv<O: Ops>(
    ops: &mut O,
    layer: &LayerWeights<O>,
    (index, shape): (usize, &AttentionShape),
    rope: &O::Rope,
    seqs: &O::Batch,
    eps: f32,
    a: &mut Activations<O>,
) {
    // The first layer has nothing to add to the embedding yet.
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

/// The second half, from the attention's output to the MLP's, which is left in `work.delta`.
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
