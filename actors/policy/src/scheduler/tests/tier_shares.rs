//! Tests of the tiers' fair queue: tiers share the time that requests with latency targets leave to best-effort
//! requests.

use crate::scheduler::tests::{all_sample, scheduler, sequence, submit};
use crate::scheduler::{NewSequence, State};
use tiercel_config::{Late, TierSlo};
use tiercel_device::{SeqId, StepTiming, Tier, Timestamp};

/// Share of the device's time that each tier is due: system, premium, standard, background.
const SHARES: [f64; 4] = [0.0, 0.5, 0.35, 0.15];

/// Creates a scheduler without latency targets, so that all requests are best effort. A prompt token takes 10 us, and
/// an output token 1 us.
fn without_targets(fair_tiers: bool) -> State {
    scheduler(|settings| {
        settings.scheduler.max_num_batched_tokens = 64;
        settings.scheduler.max_num_seqs = 8;
        settings.scheduler.fair_tiers = fair_tiers;
        settings.shedding.late = Late::BestEffort;
        let slo = &mut settings.slo;
        for targets in [&mut slo.premium, &mut slo.standard, &mut slo.background] {
            *targets = TierSlo::default();
        }
    })
}

fn of(id: u64, tier: Tier, prompt: u32) -> NewSequence {
    NewSequence { max_tokens: 1, arrival: Timestamp(id), ..sequence(id, tier, prompt) }
}

/// Runs a step and returns the ids of the sequences that started in it.
fn step(s: &mut State, now: u64) -> Vec<SeqId> {
    let batch = submit(s);
    // Report a duration of 0, so that the cost model learns nothing from the step.
    let mut done = all_sample(&batch, 1);
    if let Ok(output) = &mut done.result {
        output.timing = StepTiming::default();
    }
    s.step_done(done, Timestamp(now));
    batch.starts.iter().map(|start| start.seq).collect()
}

/// Returns a pseudo-random prompt length of 1 to 60 tokens.
fn length(id: u64) -> u64 {
    1 + (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 60
}

fn tier_of(id: u64) -> Tier {
    [Tier::Premium, Tier::Standard, Tier::Background][id as usize % 3]
}

/// Returns, for each step, the sum of the device times of all requests of each tier that have started up to that step,
/// us. Stops when all requests of a tier have started.
fn had_us(fair_tiers: bool) -> Vec<[f64; 4]> {
    let mut s = without_targets(fair_tiers);
    for id in 1..=900 {
        s.enqueue(of(id, tier_of(id), length(id) as u32));
    }
    let (mut had, mut left) = ([0.0; 4], [300; 4]);
    let mut all = Vec::new();
    for number in 1..200 {
        for SeqId(id) in step(&mut s, number * 100) {
            let tier = tier_of(id).index();
            had[tier] += (length(id) * 10 + 1) as f64;
            left[tier] -= 1;
        }
        if left.contains(&0) {
            break;
        }
        all.push(had);
    }
    all
}

#[test]
fn tiers_that_all_wait_have_had_their_shares_but_for_a_request_of_each() {
    let steps = had_us(true);
    let request_us = 60.0 * 10.0 + 1.0;
    for had in &steps {
        let over = |tier: usize| had[tier] / SHARES[tier];
        for (a, b) in [(1, 2), (1, 3), (2, 3)] {
            let bound = request_us / SHARES[a] + request_us / SHARES[b];
            // Allow for up to 8 unfinished outputs, whose charge is only the predicted half of their longest length.
            let bound = bound + 8.0 / SHARES[b];
            assert!((over(a) - over(b)).abs() <= bound, "{had:?}: {} and {}", over(a), over(b));
        }
    }
    let had = steps.last().expect("many steps");
    let all: f64 = had.iter().sum();
    assert!(all > 100_000.0, "{had:?}");
    for (had, share) in had.iter().zip(SHARES) {
        assert!((had / all - share).abs() < 0.02, "{had} of {all}");
    }
}

#[test]
fn otherwise_the_better_tier_has_everything() {
    let had = *had_us(false).last().expect("many steps");
    assert_eq!(had[2] + had[3], 0.0, "{had:?}");
}

#[test]
fn whoever_has_a_target_goes_first_whatever_its_tier_had() {
    let mut s = without_targets(true);
    s.basis.targets.premium.ttft_ms = Some(1e6);
    for id in 1..=60 {
        s.enqueue(of(id, tier_of(id), 30));
    }
    let started = (1..=20).flat_map(|number| step(&mut s, number * 100));
    let started: Vec<SeqId> = started.take(30).collect();
    let (first, then) = started.split_at(20);
    assert!(first.iter().all(|seq| tier_of(seq.0) == Tier::Premium), "{started:?}");
    let standard = then.iter().filter(|seq| tier_of(seq.0) == Tier::Standard).count();
    assert_eq!((then.len(), standard), (10, 7), "35 to 15 of what is left: {then:?}");
}
