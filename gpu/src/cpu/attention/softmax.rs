//! Softmax numerators of one query row's attention scores.

use super::partial::Softmax;
use super::plan::SPAN;
use crate::cpu::exp::exp;
use std::ops::Range;

const LANES: usize = 8;

/// Replaces the attention scores in `range` by `exp(score - max)` and returns the maximum and the sum. Scores outside
/// `range` that share a group of eight positions with it become 0. The sum is accumulated in eight lanes by position,
/// then pairwise over the lanes.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32; SPAN], range: Range<usize>) -> Softmax {
    let first = range.start / LANES * LANES;
    let last = range.end.next_multiple_of(LANES);
    scores[first..range.start].fill(f32::NEG_INFINITY);
    scores[range.end..last].fill(f32::NEG_INFINITY);
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for group in scores[first..last].chunks_exact(LANES) {
        for (max, score) in maxima.iter_mut().zip(group) {
            *max = if *score > *max { *score } else { *max };
        }
    }
    let max = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
    scores[first..last].iter_mut().for_each(|score| *score = exp(*score - max));
    scores[first..range.start].fill(0.0);
    scores[range.end..last].fill(0.0);
    let mut sums = [0.0_f32; LANES];
    for group in scores[first..last].chunks_exact(LANES) {
        sums.iter_mut().zip(group).for_each(|(sum, score)| *sum += score);
    }
    let [a, b, c, d, e, f, g, h] = sums;
    Softmax { max, sum: ((a + e) + (c + g)) + ((b + f) + (d + h)) }
}
