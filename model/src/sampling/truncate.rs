//! Top-k, top-p and min-p on a row of weights, without sorting the vocabulary.
//!
//! Tokens are ranked by weight; of equal weights, the lower id comes first. Top-k and top-p keep a prefix of the
//! ranking, which is described by a [`Cut`], the last token kept. To find the cut, tokens are counted into bins by the
//! high bits of their weights (which order positive floats). Only the bin that holds the cut is sorted. Tokens that are
//! not kept get weight 0.

/// Last token that top-k or top-p keeps, in the ranking of tokens by weight.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cut {
    weight: f32,
    id: u32,
}

/// Right shift that turns the bits of a token's weight into the number of its histogram bin. Weights of at most 1 fall
/// into `BINS` bins.
const BIN_SHIFT: u32 = 19;
const BINS: usize = (0x3f80_0000 >> BIN_SHIFT) + 1;
/// Number of consecutive weights (a run) that the scan of a row looks at together. A run without a weight above the
/// floor is skipped whole.
const RUN: usize = 32;
/// Smallest weight that the first attempt to find the cut of top-k or top-p considers: about e^-7 of the largest, which
/// rarely leaves more than hundreds of tokens.
const FLOOR: f32 = 1e-3;

/// Min-p: sets all weights below `min_p` to 0; the largest weight is 1.
pub(super) fn keep_min_p(weights: &mut [f32], min_p: f32) {
    for weight in weights {
        *weight = if *weight >= min_p { *weight } else { 0.0 };
    }
}

/// Top-k: keeps the `k` tokens with the largest weights and sets all other weights to 0.
pub(super) fn keep_top_k(weights: &mut [f32], k: usize) {
    let enough = |seen: Seen| seen.count >= k;
    if let Some(cut) = find_cut(weights, FLOOR, enough).or_else(|| find_cut(weights, 0.0, enough)) {
        apply(weights, cut);
    }
}

/// Top-p: keeps the fewest largest weights whose sum is at least the share `top_p` of the total, and at least one; sets
/// all other weights to 0.
pub(super) fn keep_top_p(weights: &mut [f32], top_p: f32) {
    let total: f64 = super::numeric::chunk_sums(weights).sum();
    let target = f64::from(top_p) * total;
    let enough = |seen: Seen| seen.count > 0 && seen.mass >= target;
    if let Some(cut) = find_cut(weights, FLOOR, enough).or_else(|| find_cut(weights, 0.0, enough)) {
        apply(weights, cut);
    }
}

/// Number and total weight of the tokens counted so far in the ranking by weight.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    count: usize,
    mass: f64,
}

/// Walks down the ranking of tokens by weight, without weights up to `floor`, and returns the first token at which
/// `enough` holds; `None` if it never does.
fn find_cut(weights: &[f32], floor: f32, enough: impl Fn(Seen) -> bool) -> Option<Cut> {
    let mut bins = [Seen::default(); BINS];
    for_each_above(weights, floor, |_, weight| {
        let bin = &mut bins[bin_of(weight)];
        bin.count += 1;
        bin.mass += f64::from(weight);
    });
    let mut seen = Seen::default();
    for bin in (0..BINS).rev() {
        let with = Seen { count: seen.count + bins[bin].count, mass: seen.mass + bins[bin].mass };
        if enough(with) {
            return Some(cut_in_bin(weights, floor, bin, seen, enough));
        }
        seen = with;
    }
    None
}

fn cut_in_bin(
    weights: &[f32],
    floor: f32,
    bin: usize,
    mut seen: Seen,
    enough: impl Fn(Seen) -> bool,
) -> Cut {
    let mut members = Vec::new();
    for_each_above(weights, floor, |id, weight| {
        if bin_of(weight) == bin {
            members.push(Cut { weight, id });
        }
    });
    members.sort_unstable_by(|a, b| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id)));
    for &member in &members {
        seen = Seen { count: seen.count + 1, mass: seen.mass + f64::from(member.weight) };
        if enough(seen) {
            return member;
        }
    }
    // The weights of the bin, summed in sorted order, fell short of the limit by a rounding error, so the whole bin is
    // kept.
    *members.last().expect("a bin that crosses the limit holds a token")
}

fn for_each_above(weights: &[f32], floor: f32, mut each: impl FnMut(u32, f32)) {
    for (run, values) in weights.chunks(RUN).enumerate() {
        let any = values.iter().fold(false, |any, &weight| any | (weight > floor));
        if any {
            for (at, &weight) in values.iter().enumerate() {
                if weight > floor {
                    each((run * RUN + at) as u32, weight);
                }
            }
        }
    }
}

fn bin_of(weight: f32) -> usize {
    ((weight.to_bits() >> BIN_SHIFT) as usize).min(BINS - 1)
}

fn apply(weights: &mut [f32], cut: Cut) {
    let (head, tail) = weights.split_at_mut(cut.id as usize + 1);
    for weight in head {
        *weight = if *weight >= cut.weight { *weight } else { 0.0 };
    }
    for weight in tail {
        *weight = if *weight > cut.weight { *weight } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Straightforward reference implementation of top-k and top-p: sorts all weights and keeps a prefix.
    fn naive(weights: &[f32], enough: impl Fn(usize, f64) -> bool) -> Vec<f32> {
        let mut ranking: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0.0).collect();
        ranking.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
        let mut kept = vec![0.0; weights.len()];
        let (mut count, mut mass) = (0, 0.0);
        for id in ranking {
            if count > 0 && enough(count, mass) {
                break;
            }
            kept[id] = weights[id];
            count += 1;
            mass += f64::from(weights[id]);
        }
        kept
    }

    /// Generates rows of weights for tests, with ties, zeros, large and tiny weights; the largest weight is 1.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let weight = prop_oneof![
            3 => (0u32..40).prop_map(|n| n as f32 / 64.0),
            3 => (0.0f32..20.0).prop_map(|x| (-x).exp()),
            1 => Just(0.0f32),
            1 => (0u32..4).prop_map(|n| 1e-30 * n as f32),
        ];
        (prop::collection::vec(weight, 1..300), any::<prop::sample::Index>()).prop_map(
            |(mut row, best)| {
                let best = best.index(row.len());
                row[best] = 1.0;
                row
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn top_k_is_exact(row in rows(), k in 1usize..320) {
            let mut kept = row.clone();
            keep_top_k(&mut kept, k);
            prop_assert_eq!(kept, naive(&row, |count, _| count >= k));
        }

        #[test]
        fn top_p_is_exact(row in rows(), p in prop_oneof![0.0f32..1.0, Just(0.5f32), Just(1e-9f32)]) {
            let total: f64 = row.iter().map(|&weight| f64::from(weight)).sum();
            let mut kept = row.clone();
            keep_top_p(&mut kept, p);
            prop_assert_eq!(kept, naive(&row, |_, mass| mass >= f64::from(p) * total));
        }

        #[test]
        fn min_p_is_exact(row in rows(), min_p in 0.0f32..1.0) {
            let mut kept = row.clone();
            keep_min_p(&mut kept, min_p);
            for (kept, weight) in kept.into_iter().zip(row) {
                prop_assert_eq!(kept, if weight < min_p { 0.0 } else { weight });
            }
        }
    }

    #[test]
    fn equal_tokens_are_kept_from_the_lowest_id() {
        let mut row = vec![0.25, 1.0, 1.0, 0.25, 1.0];
        keep_top_k(&mut row, 2);
        assert_eq!(row, [0.0, 1.0, 1.0, 0.0, 0.0]);
        let mut row = vec![1.0; 100];
        keep_top_p(&mut row, 0.5);
        assert_eq!(row.iter().filter(|&&weight| weight > 0.0).count(), 50);
        assert!(row[..50].iter().all(|&weight| weight == 1.0));
    }
}
