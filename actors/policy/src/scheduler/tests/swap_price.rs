//! Tests of the choice between swap and recompute, on both sides of the break-even and at it.

use super::{MIRROR_PERCENT, NOW, scheduler, sequence, step};
use crate::scheduler::*;
use tiercel_device::{DeviceInfo, MockProfile, Tier};

/// Tokens in a block of the devices of these tests.
const BLOCK: u32 = 4;

/// Creates the model of a device on which a block takes `copy_us` to copy in one direction, and a prompt token takes
/// `token_us`, and `pair_us` more for each token before it.
fn priced(copy_us: f64, token_us: f64, pair_us: f64) -> CostModel {
    let profile = MockProfile {
        step_base_us: 100.0,
        prefill_token_us: token_us,
        prefill_context_us: pair_us,
        link_bytes_per_s: 1e12 / copy_us,
        ..MockProfile::named("tiny").expect("built in")
    };
    let info = DeviceInfo { block_size: BLOCK, block_bytes: 1_000_000, ..profile.info() };
    CostModel::new(profile.device_profile(), &info)
}

#[test]
fn the_cheaper_way_is_chosen_and_recompute_at_equal_price() {
    // A block takes 1000 us to copy out and back, and so do its four tokens if each takes 250 us to compute.
    let copied_us = priced(500.0, 250.0, 0.0).copy_us(1) * 2.0;
    assert_eq!(priced(500.0, 250.0, 0.0).recompute_us(BLOCK), copied_us, "the break-even");
    for tokens in [4, 500, 2000] {
        let swaps = |token_us| priced(500.0, token_us, 0.0).swap_is_cheaper(tokens);
        assert!(swaps(250.5), "{tokens} tokens");
        assert!(
            !swaps(250.0),
            "{tokens} tokens: a swap takes the link and host blocks for nothing"
        );
        assert!(!swaps(249.5), "{tokens} tokens");
    }
}

#[test]
fn short_sequences_are_recomputed_and_long_ones_swapped() {
    // A swap (copy to the host and back) takes 250 us for each token. The n-th token takes n us to compute, so
    // computing 499 tokens takes 250 us per token on average.
    let model = priced(500.0, 1.0, 1.0);
    for (tokens, swaps) in [(496, false), (500, true)] {
        let (swap_us, compute_us) =
            (2.0 * model.copy_us(tokens / BLOCK), model.recompute_us(tokens));
        assert_eq!((swap_us < compute_us, model.swap_is_cheaper(tokens)), (swaps, swaps));
    }
    assert!(!model.swap_is_cheaper(499), "only the 124 full blocks are copied");
    assert!(!priced(1.0, 1000.0, 0.0).swap_is_cheaper(3), "there is no full block");
}

#[test]
fn the_choice_follows_the_observed_speeds() {
    let mut slow_link = priced(500.0, 300.0, 0.0);
    let mut slow_device = priced(500.0, 200.0, 0.0);
    assert_eq!((slow_link.swap_is_cheaper(40), slow_device.swap_is_cheaper(40)), (true, false));
    for _ in 0..100 {
        slow_link.observe_copy(1, 1000);
        slow_device.observe_step(&StepWork::default(), 200);
    }
    assert_eq!((slow_link.swap_is_cheaper(40), slow_device.swap_is_cheaper(40)), (false, true));
}

#[test]
fn a_plan_swaps_a_victim_only_if_that_is_cheaper() {
    let swaps = |token_us| {
        let mut s = scheduler(|e| e.preemption.mirror_percent = MIRROR_PERCENT);
        s.enqueue(sequence(1, Tier::Standard, 30));
        step(&mut s);
        s.basis.cost = priced(500.0, token_us, 0.0);
        s.plan(NOW).expect("a step").victims[0].swap
    };
    assert_eq!((swaps(250.5), swaps(250.0), swaps(249.5)), (true, false, false));
}
