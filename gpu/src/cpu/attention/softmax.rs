//! Softmax numerators of one row of scores.

use super::partial::Softmax;
use super::plan::SPAN;
use crate::cpu::exp::exp;
use std::ops::Range;

const LANES: usize = 8;

/// Replaces the scores in `range` by `exp(score - max)`, and those outside it that share a vector with
/// it by 0. Sums in eight lanes by position, then pairwise.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32; SPAN], range: Range<usize>) -> Softmax {
    let first = range.start / LANES * LANES;
    let last = range.end.next_multiple_of(LANES);
    scores[first..range.start].fill(f32::NEG_INFINITY);
    scores[range.end..last].fill(f32::NEG_INFINITY);
    let scores = &mut scores[first..last];
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for group in scores.chunks_exact(LANES) {
        for (max, score) in maxima.iter_mut().zip(group) {
            *max = if *score > *max { *score } else { *max };
        }
    }
    let max = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0_f32; LANES];
    for group in scores.chunks_exact_mut(LANES) {
        for (sum, score) in sums.iter_mut().zip(group) {
            *score = exp(*score - max);
            *sum += *score;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    Softmax { max, sum: ((a + e) + (c + g)) + ((b + f) + (d + h)) }
}
