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
fn without_fair_tiers_the_higher_tier_has_all_time() {
    let had = *had_us(false).last().expect("many steps");
    assert_eq!(had[2] + had[3], 0.0, "{had:?}");
}

#[test]
fn a_request_with_a_target_goes_before_best_effort_ones_of_any_tier() {
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

#[test]
fn a_tier_that_was_away_has_no_credit_for_that_time() {
    let mut s = without_targets(true);
    for id in 1..=20 {
        s.enqueue(of(id, Tier::Background, 64));
    }
    let alone: Vec<SeqId> = (1..=10).flat_map(|number| step(&mut s, number * 100)).collect();
    assert!(alone.len() >= 10, "{alone:?}");
    for id in 21..=40 {
        s.enqueue(of(id, Tier::Premium, 64));
    }
    // Premium enters at the virtual time, which is the tag of background's last start. Background's next tag is one of
    // its starts (641 us / 0.15) later, which is as much as 3.3 starts of premium (641 us / 0.5).
    let started: Vec<u64> =
        (11..=18).flat_map(|number| step(&mut s, number * 100)).map(|seq| seq.0).collect();
    assert!(started.iter().take(6).any(|id| *id <= 20), "{started:?}");
    assert!(started.iter().take(6).filter(|id| **id > 20).count() >= 3, "{started:?}");
}

#[test]
fn as_many_waiting_sequences_are_chosen_as_were_asked_for() {
    let mut s = without_targets(true);
    for id in 1..=3 {
        s.enqueue(of(id, Tier::Background, 30));
    }
    let chosen = |most| s.queue.in_fair_order(most, |_| true).len();
    assert_eq!([chosen(0), chosen(2), chosen(9)], [0, 2, 3]);
}

#[test]
fn a_tenant_is_charged_for_the_output_tokens_that_came() {
    let mut s = without_targets(true);
    // Ten tokens are charged: five prompt tokens, and five predicted ones, half of the longest output.
    s.enqueue(NewSequence { max_tokens: 10, ..of(1, Tier::Background, 5) });
    for number in 1..=3 {
        step(&mut s, number * 100);
    }
    s.cancel(SeqId(1)).expect("it lives");
    let NewSequence { salt, weight, .. } = sequence(2, Tier::Background, 5);
    assert_eq!(s.queue.token_queue.arrive((salt, weight), 1.0), 10.0 - 5.0 + 3.0);
}

#[test]
fn a_tenant_whose_request_ended_without_output_waits_no_more() {
    let mut s = without_targets(true);
    s.enqueue(of(1, Tier::Background, 5));
    let other = crate::blocks::Salt([9; 16]);
    assert!(s.queue.token_queue.others_wait(other));
    s.cancel(SeqId(1)).expect("it lives");
    assert!(!s.queue.token_queue.others_wait(other));
}
