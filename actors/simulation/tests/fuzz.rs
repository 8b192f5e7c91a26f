//! Part of the fuzzing campaign that every test run plays, always with the same seeds. `tiercel simulate --fuzz` plays
//! any number of seeds.

use tiercel_simulation::fuzz::{Campaign, Scenario, Tally};

/// Number of fuzzing scenarios in each of the four parts; all four tests together take about two minutes on two slow
/// cores.
const SCENARIOS: u64 = 750;

/// Plays the scenarios of one of the four parts of the seeds, and fails if any check fails. There are four because
/// tests run in parallel.
fn play(slice: u64) -> Tally {
    let seeds = slice * SCENARIOS..(slice + 1) * SCENARIOS;
    let tally = Campaign { seeds }.run(|_| {});
    let findings: Vec<String> = tally.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    tally
}

#[test]
fn everything_holds_in_the_first_slice_and_all_that_is_to_be_shaken_is() {
    let summary = play(0).summary;
    let counters = summary.counters;
    let sum = |by_tier: [u64; 4]| by_tier.iter().sum::<u64>();
    for (what, count) in [
        ("finished", summary.finished),
        ("refused", summary.refused),
        ("refused or turned away by the patience of a tier", summary.impatient),
        ("failed", summary.failed),
        ("left", summary.left),
        ("swaps", sum(counters.swaps)),
        ("recomputes", sum(counters.recomputes)),
        ("drops", sum(counters.drops)),
        ("failed steps", counters.failed_steps),
        ("postponed draws", counters.postponed_draws),
        ("recomputed tokens", counters.recomputed_tokens),
        ("prefix hits", counters.prefix_hit_tokens),
    ] {
        assert!(count > 0, "no {what}: {summary:?}");
    }
}

#[test]
fn everything_holds_in_the_second_slice() {
    play(1);
}

#[test]
fn everything_holds_in_the_third_slice() {
    play(2);
}

#[test]
fn everything_holds_in_the_fourth_slice() {
    play(3);
}

#[test]
fn a_seed_plays_the_same_every_time() {
    for seed in 0..10 {
        let played = Scenario::draw(seed).run();
        assert_eq!(Scenario::draw(seed).run(), played, "seed {seed}");
        assert_ne!(Scenario::draw(seed + 1).run(), played, "seed {seed}");
    }
}
