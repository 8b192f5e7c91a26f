//! Partial results of attention (the softmax of query rows over one span of keys), and merging them.

use crate::cpu::exp::exp;

/// Softmax of one query row over one span of positions: its largest score `max`, and the sum of `exp(score - max)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Softmax {
    pub(super) max: f32,
    pub(super) sum: f32,
}

impl Softmax {
    pub(super) const EMPTY: Softmax = Softmax { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Unnormalised attention outputs of query rows, `Σ exp(score - max) * value`, and the maximum and sum of each row that
/// are needed to merge the outputs of several spans.
#[derive(Debug, Default)]
pub(super) struct RowSums {
    pub(super) softmax: Vec<Softmax>,
    /// Unnormalised attention outputs, `[row][head_dim]`.
    pub(super) values: Vec<f32>,
}

impl RowSums {
    /// Makes room for the unnormalised outputs of `rows` query rows. Their content is arbitrary until it is written.
    pub(super) fn resize(&mut self, rows: usize, head_dim: usize) {
        self.softmax.resize(rows, Softmax::EMPTY);
        self.values.resize(rows * head_dim, 0.0);
    }
}

/// Merges the partial attention result of a row's next span into the merged result of the row's earlier spans.
pub(super) fn merge(into: (&mut Softmax, &mut [f32]), next: (&Softmax, &[f32])) {
    let (total, values) = into;
    let (next, next_values) = next;
    let max = if next.max > total.max { next.max } else { total.max };
    let (keep, add) = (exp(total.max - max), exp(next.max - max));
    *total = Softmax { max, sum: total.sum * keep + next.sum * add };
    for (value, next) in values.iter_mut().zip(next_values) {
        *value = *value * keep + next * add;
    }
}

/// Writes the attention output of a row whose spans are all merged: `out = values / softmax.sum`.
pub(super) fn finish(softmax: &Softmax, values: &[f32], out: &mut [f32]) {
    let inverse = 1.0 / softmax.sum;
    out.iter_mut().zip(values).for_each(|(out, value)| *out = value * inverse);
}
