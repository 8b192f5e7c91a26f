use super::*;
use proptest::prelude::*;

const ENDLESS: MaskWait = MaskWait::endless();

fn sampler(params: SamplingParams, vocab: usize) -> Sampler {
    Sampler::new(Arc::new(params), &[], vocab, &MaskThreads::default())
}

fn token(params: &SamplingParams, logits: &[f32], index: u32) -> TokenId {
    let mut row = logits.to_vec();
    sampler(params.clone(), logits.len()).sample(&mut row, index, &ENDLESS).unwrap().token
}

#[test]
fn greedy_takes_the_lowest_id_of_the_best() {
    let mut logits = vec![-1.0; 100];
    (logits[17], logits[3], logits[99]) = (2.0, 2.0, 2.0);
    assert_eq!(token(&SamplingParams::greedy(), &logits, 0), 3);
    let top_1 = SamplingParams { top_k: 1, ..SamplingParams::default() };
    assert!((0..50).all(|index| token(&top_1, &logits, index) == 3));
    logits[50] = 2.000_001;
    assert_eq!(token(&SamplingParams::greedy(), &logits, 0), 50);
    assert_eq!(token(&top_1, &logits, 0), 50);
}

#[test]
fn unusable_logits_are_a_fault_and_masked_ones_are_not() {
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let fault = |row: &mut [f32]| sampler(params.clone(), row.len()).sample(row, 0, &ENDLESS);
        assert_eq!(fault(&mut [0.0, f32::NAN]), Err(NotSampled::BadLogits));
        assert_eq!(fault(&mut [f32::NEG_INFINITY; 5]), Err(NotSampled::BadLogits));
        assert_eq!(fault(&mut [0.0, f32::INFINITY]), Err(NotSampled::BadLogits));
        assert_eq!(fault(&mut []), Err(NotSampled::BadLogits));
        let mut row = [f32::NEG_INFINITY, -3.0, f32::NEG_INFINITY];
        assert_eq!(fault(&mut row).unwrap().token, 1);
    }
}

#[test]
fn logits_beyond_the_vocabulary_are_never_chosen() {
    let mut greedy = sampler(SamplingParams::greedy(), 2);
    assert_eq!(greedy.sample(&mut [0.0, 1.0, 9.0, f32::NAN], 0, &ENDLESS).unwrap().token, 1);
}

#[test]
fn bias_is_added_once_and_unknown_tokens_are_ignored() {
    let params = SamplingParams {
        logit_bias: vec![(1, 2.0), (1, 2.0), (u32::MAX, 100.0), (0, -100.0)],
        ..SamplingParams::greedy()
    };
    assert_eq!(token(&params, &[5.0, 0.0, 3.5], 0), 1);
    assert_eq!(token(&params, &[5.0, 0.0, 4.5], 0), 2);
}

#[test]
fn no_end_token_is_chosen_before_the_least_number_of_tokens_unless_no_other_is_left() {
    let params = SamplingParams {
        min_tokens: MinTokens { count: 2, ends: vec![0, 2, 0, u32::MAX] },
        ..SamplingParams::greedy()
    };
    let of_index = |logits: &[f32]| [0, 1, 2].map(|index| token(&params, logits, index));
    assert_eq!(of_index(&[5.0, 1.0, 4.0, 0.0]), [1, 1, 0]);
    let none = f32::NEG_INFINITY;
    assert_eq!(of_index(&[5.0, none, 4.0, none]), [0, 0, 0], "only end tokens are left");
    assert_eq!([1, 2].map(|index| Sampler::is_drawn(&params, index)), [false, true]);
}

#[test]
fn a_replayed_step_gives_the_same_token_and_counts_once() {
    let params = SamplingParams { frequency_penalty: 1.0, ..SamplingParams::greedy() };
    let logits = [3.0, 2.5, 0.0];
    let mut once = sampler(params.clone(), 3);
    let mut replayed = sampler(params, 3);
    let expected: Vec<TokenId> =
        (0..6).map(|i| once.sample(&mut logits.clone(), i, &ENDLESS).unwrap().token).collect();
    assert_eq!(expected, [0, 1, 0, 1, 0, 1]);
    let mut actual = Vec::new();
    for index in 0..6 {
        for _ in 0..=index % 3 {
            replayed.sample(&mut logits.clone(), index, &ENDLESS).unwrap();
        }
        actual.push(replayed.sample(&mut logits.clone(), index, &ENDLESS).unwrap().token);
    }
    assert_eq!(actual, expected);
}

#[test]
fn draws_depend_on_seed_and_index_alone() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 97) as f32 / 30.0).collect();
    let draws = |seed| -> Vec<TokenId> {
        let params = SamplingParams { seed, ..SamplingParams::default() };
        (0..50).map(|index| token(&params, &logits, index)).collect()
    };
    assert_eq!(draws(1), draws(1));
    assert_ne!(draws(1), draws(2));
    let params = SamplingParams { seed: 1, ..SamplingParams::default() };
    let mut backwards: Vec<TokenId> =
        (0..50).rev().map(|index| token(&params, &logits, index)).collect();
    backwards.reverse();
    assert_eq!(backwards, draws(1));
}

#[test]
fn logprobs_are_of_the_distribution_before_temperature_and_truncation() {
    let logits = [1.0f32, 3.0, 2.0, -1.0];
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let exact = |id: usize| (f64::from(logits[id]).exp() / total).ln() as f32;
    for temperature in [0.0, 0.3, 1.0, 5.0] {
        let params = SamplingParams {
            temperature,
            top_k: 3,
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        for index in 0..20 {
            let mut sampler = sampler(params.clone(), 4);
            let sampled = sampler.sample(&mut logits.clone(), index, &ENDLESS).unwrap();
            let logprobs = sampled.logprobs.unwrap();
            assert!((logprobs.chosen - exact(sampled.token as usize)).abs() < 1e-5);
            let ids: Vec<TokenId> = logprobs.top.iter().map(|&(id, _)| id).collect();
            assert_eq!(ids, [1, 2]);
            assert!(logprobs.top.iter().all(|&(id, l)| (l - exact(id as usize)).abs() < 1e-6));
        }
    }
    let params = SamplingParams { logprobs: Some(0), ..SamplingParams::greedy() };
    let logprobs =
        sampler(params, 4).sample(&mut logits.clone(), 0, &ENDLESS).unwrap().logprobs.unwrap();
    assert!(logprobs.top.is_empty());
    assert!(
        sampler(SamplingParams::greedy(), 4)
            .sample(&mut [0.0; 4], 0, &ENDLESS)
            .unwrap()
            .logprobs
            .is_none()
    );
}

/// Returns the exact probabilities of all tokens under `params`: softmax in f64 and full sorts, with the options in the
/// documented order.
fn exact_distribution(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let temperature = f64::from(params.temperature);
    let mut p: Vec<f64> =
        logits.iter().map(|&l| (f64::from(l - max) / temperature).exp()).collect();
    p.iter_mut().filter(|p| **p < f64::from(params.min_p)).for_each(|p| *p = 0.0);
    let mut ranking: Vec<usize> = (0..p.len()).collect();
    ranking.sort_by(|&a, &b| p[b].total_cmp(&p[a]).then(a.cmp(&b)));
    if params.top_k > 0 {
        ranking.iter().skip(params.top_k as usize).for_each(|&id| p[id] = 0.0);
    }
    let total: f64 = p.iter().sum();
    let mut mass = 0.0;
    for &id in &ranking {
        let keep = mass < f64::from(params.top_p) * total || mass == 0.0;
        mass += p[id];
        p[id] = if keep { p[id] } else { 0.0 };
    }
    let total: f64 = p.iter().sum();
    p.iter().map(|p| p / total).collect()
}

#[test]
fn draws_follow_the_exact_distribution() {
    let logits: Vec<f32> = (0..300).map(|i| (((i * 53) % 300) as f32 / 25.0).sin() * 3.0).collect();
    let off = SamplingParams::default;
    let cases = [
        off(),
        SamplingParams { temperature: 0.4, ..off() },
        SamplingParams { temperature: 3.0, ..off() },
        SamplingParams { top_k: 7, ..off() },
        SamplingParams { top_p: 0.6, ..off() },
        SamplingParams { min_p: 0.3, ..off() },
        SamplingParams { temperature: 0.8, top_k: 50, top_p: 0.9, min_p: 0.05, ..off() },
    ];
    for (seed, params) in cases.into_iter().enumerate() {
        let expected = exact_distribution(&params, &logits);
        let params = SamplingParams { seed: 1000 + seed as u64, ..params };
        let mut counts = vec![0u32; logits.len()];
        const DRAWS: u32 = 40_000;
        for index in 0..DRAWS {
            counts[token(&params, &logits, index) as usize] += 1;
        }
        let (mut chi2, mut cells) = (0.0, 0u32);
        let mut add = |count: f64, mean: f64| {
            chi2 += (count - mean).powi(2) / mean;
            cells += 1;
        };
        let mut rare = (0.0, 0.0);
        for (&count, &p) in counts.iter().zip(&expected) {
            assert!(p > 0.0 || count == 0, "a token outside the kept set was drawn: {params:?}");
            let (count, mean) = (f64::from(count), p * f64::from(DRAWS));
            // The chi-square test needs several draws per cell, so rare tokens share one cell.
            if mean >= 10.0 {
                add(count, mean);
            } else {
                rare = (rare.0 + count, rare.1 + mean);
            }
        }
        if rare.1 >= 10.0 {
            add(rare.0, rare.1);
        }
        // A chi-square value has the mean `freedom` and the variance `2 freedom`. Draws with fixed seeds pass if it is
        // at most four standard deviations above the mean.
        let freedom = f64::from(cells - 1);
        assert!(chi2 < freedom + 4.0 * (2.0 * freedom).sqrt(), "{chi2} of {freedom}: {params:?}");
    }
}

proptest! {
    #[test]
    fn the_drawn_token_is_always_one_that_is_kept(
        logits in prop::collection::vec(prop_oneof![8 => -12.0f32..12.0, 1 => Just(f32::NEG_INFINITY), 2 => Just(1.5f32)], 1..200),
        temperature in prop_oneof![Just(1e-4f32), 0.05f32..3.0, Just(1e4f32)],
        top_k in 0u32..60,
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        seed in any::<u64>(),
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let params =
            SamplingParams { temperature, top_k, top_p, min_p, seed, ..SamplingParams::default() };
        let expected = exact_distribution(&params, &logits);
        // The sampler truncates the distribution in f32, the reference in f64, so rounding may let the sampler keep a
        // token that the reference just drops. A drawn token that the reference drops must be nearly as likely as the
        // least likely token that it keeps.
        let drawn = token(&params, &logits, 0) as usize;
        let smallest = expected.iter().copied().filter(|&p| p > 0.0).fold(1.0, f64::min);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let best = expected.iter().copied().fold(0.0, f64::max);
        let own = best * (f64::from(logits[drawn] - max) / f64::from(temperature)).exp();
        prop_assert!(expected[drawn] > 0.0 || own > smallest * 0.999, "drew {drawn}");
    }
}
