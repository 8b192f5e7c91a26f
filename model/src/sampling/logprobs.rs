//! Log-probabilities of the chosen token and of the most likely tokens.

use super::numeric;
use tiercel_device::{TokenId, TokenLogprobs};

/// Number of consecutive logits (a run) that the search for the largest looks at together. A run is skipped whole if
/// none of its logits is larger than the least of the best so far.
const RUN: usize = 32;

/// Log-sum-exp and the most likely tokens of a row of logits, computed after biases, penalties, the mask of the
/// sequence's constraint and the least number of output tokens, before sampling overwrites the row.
pub(super) struct Best {
    log_sum_exp: f64,
    /// Most likely tokens and their logits, largest first; of equal logits, the lower id first.
    top: Vec<(TokenId, f32)>,
}

impl Best {
    pub(super) fn of(row: &[f32], max: f32, k: usize) -> Best {
        Best { log_sum_exp: numeric::log_sum_exp(row, max), top: top(row, k) }
    }

    /// Returns the most likely tokens, without tokens that the mask of a constraint excludes.
    fn likely(&self) -> impl Iterator<Item = &(TokenId, f32)> {
        self.top.iter().filter(|(_, logit)| *logit > f32::NEG_INFINITY)
    }

    pub(super) fn with_chosen(self, logit: f32) -> TokenLogprobs {
        let log = |logit: f32| (f64::from(logit) - self.log_sum_exp) as f32;
        TokenLogprobs {
            chosen: log(logit),
            top: self.likely().map(|&(token, logit)| (token, log(logit))).collect(),
        }
    }
}

/// Returns the `k` largest logits and their tokens, by insertion into a sorted list. After the first few runs of
/// logits, almost none is large enough to be inserted.
fn top(row: &[f32], k: usize) -> Vec<(TokenId, f32)> {
    let mut best: Vec<(TokenId, f32)> = Vec::with_capacity(k.min(row.len()) + 1);
    if k == 0 {
        return best;
    }
    let mut worst = f32::NEG_INFINITY;
    for (run, logits) in row.chunks(RUN).enumerate() {
        if best.len() == k && !logits.iter().fold(false, |any, &logit| any | (logit > worst)) {
            continue;
        }
        for (at, &logit) in logits.iter().enumerate() {
            if best.len() < k || logit > worst {
                let rank = best.partition_point(|&(_, other)| other >= logit);
                best.insert(rank, ((run * RUN + at) as TokenId, logit));
                best.truncate(k);
                worst = best.last().map_or(f32::NEG_INFINITY, |&(_, logit)| logit);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn top_equals_a_sort(row in prop::collection::vec((-20i32..20).prop_map(|n| n as f32 / 4.0), 1..200), k in 0usize..40) {
            let mut sorted: Vec<(u32, f32)> = (0u32..).zip(row.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sorted.truncate(k);
            prop_assert_eq!(top(&row, k), sorted);
        }
    }
}
