//! Tests of the tenants' fair queues: tenants of one tier are served fairly among each other.

use crate::Weight;
use crate::blocks::Salt;
use crate::scheduler::tests::{all_sample, scheduler, sequence, submit};
use crate::scheduler::{Effect, NewSequence, State};
use std::collections::BTreeMap;
use tiercel_config::{PrefillOrder, Target};
use tiercel_device::{Tier, Timestamp};

/// Creates a scheduler with fair queueing among tenants on or off. A prompt token takes 10 us, and an output token 1
/// us.
fn fair(fair_tenants: bool) -> State {
    scheduler(|settings| {
        settings.scheduler.max_num_batched_tokens = 64;
        settings.scheduler.max_num_seqs = 8;
        settings.scheduler.fair_tenants = fair_tenants;
        settings.scheduler.prefill_order = PrefillOrder::Deadline;
        settings.slo.standard.ttft_ms = Target::Ms(1e6);
    })
}

fn of(tenant: u8, id: u64, tier: Tier, prompt: u32) -> NewSequence {
    NewSequence {
        salt: Salt([tenant; 16]),
        max_tokens: 1,
        arrival: Timestamp(id),
        ..sequence(id, tier, prompt)
    }
}

/// Runs a step and returns the ids of the sequences that got their first token.
fn step(s: &mut State, now: u64) -> Vec<u64> {
    let batch = submit(s);
    let effects = s.step_done(all_sample(&batch, 1), Timestamp(now));
    let first = effects.into_iter().filter_map(|effect| match effect {
        Effect::Token { seq, ttft_us: Some(_), .. } => Some(seq.0),
        _ => None,
    });
    first.collect()
}

/// Returns in which step after its arrival (1 for the first) a request of the tenant `modest` gets its first token, if
/// it arrives after twenty requests of tenant 1 and a step.
fn start_of_the_modest(fair_tenants: bool, modest: u8) -> usize {
    let mut s = fair(fair_tenants);
    for id in 1..=20 {
        s.enqueue(of(1, id, Tier::Standard, 30));
    }
    assert_eq!(step(&mut s, 100), [1, 2]);
    s.enqueue(of(modest, 21, Tier::Standard, 30));
    (1..).find(|number| step(&mut s, 100 + number * 100).contains(&21)).expect("its turn") as usize
}

#[test]
fn a_tenant_that_had_little_does_not_wait_for_one_that_asks_for_much() {
    assert_eq!(start_of_the_modest(true, 2), 1);
    assert!(start_of_the_modest(true, 1) > 8, "requests of one tenant keep their order");
    assert!(start_of_the_modest(false, 2) > 8);
}

#[test]
fn higher_tiers_come_first_whichever_tenants_turn_it_is() {
    let mut s = fair(true);
    for id in 1..=9 {
        s.enqueue(of(1, id, Tier::Premium, 30));
    }
    s.enqueue(of(2, 10, Tier::Standard, 30));
    let order: Vec<u64> = (0..5).flat_map(|number| step(&mut s, 100 * number)).collect();
    assert_eq!(order.last(), Some(&10), "{order:?}");
}

#[test]
fn a_request_moved_to_another_tier_takes_its_turn_there() {
    let mut s = fair(true);
    for id in 1..=8 {
        s.enqueue(of(1, id, Tier::Standard, 30));
        s.enqueue(of(2, 10 + id, Tier::Background, 30));
    }
    step(&mut s, 100);
    assert!(s.reprioritize(tiercel_device::SeqId(18), Tier::Standard, 0));
    assert!(step(&mut s, 200).contains(&18), "its tenant had nothing in that tier yet");
}

#[test]
fn tenants_that_all_wait_have_had_the_same_but_for_a_request_of_each_and_a_step() {
    let mut s = fair(true);
    let mut cost_us = BTreeMap::new();
    // Use pseudo-random prompt lengths of 1 to 60 tokens. The greedy tenant sends four times as many requests as the
    // modest one, all at once.
    let length = |id: u64| 1 + (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 60;
    for id in 0..700 {
        let tenant = if id % 5 == 0 { 2 } else { 1 };
        cost_us.insert(id + 1, (tenant, length(id) * 10 + 1));
        s.enqueue(of(tenant, id + 1, Tier::Standard, length(id) as u32));
    }
    let (mut had_us, mut largest_gap_us) = ([0_u64; 2], 0);
    let mut left = 140;
    for number in 1.. {
        for id in step(&mut s, number * 100) {
            let (tenant, us) = cost_us[&id];
            had_us[usize::from(tenant) - 1] += us;
            left -= u64::from(tenant == 2);
        }
        // End the comparison when tenant 2 has at most 8 requests left, which could all be in one step.
        if left <= 8 {
            break;
        }
        largest_gap_us = largest_gap_us.max(had_us[0].abs_diff(had_us[1]));
    }
    let (request_us, step_us) = (60 * 10 + 1, 64 * 10);
    assert!(largest_gap_us <= 2 * request_us + step_us, "{largest_gap_us} us");
    assert!(had_us[1] > 35_000, "{had_us:?}");
}

#[test]
fn tenants_that_all_wait_have_device_time_in_proportion_to_their_weights() {
    let mut s = fair(true);
    let weights = [3.0, 1.0];
    let mut cost_us = BTreeMap::new();
    let length = |id: u64| 1 + (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 60;
    for id in 1..=900 {
        let tenant = if id % 2 == 0 { 2 } else { 1 };
        cost_us.insert(id, (tenant, length(id) * 10 + 1));
        let weight = Weight::new(weights[usize::from(tenant) - 1]);
        s.enqueue(NewSequence { weight, ..of(tenant, id, Tier::Standard, length(id) as u32) });
    }
    let (mut had_us, mut left) = ([0_u64; 2], 450_u64);
    for number in 1.. {
        for id in step(&mut s, number * 100) {
            let (tenant, us) = cost_us[&id];
            had_us[usize::from(tenant) - 1] += us;
            left -= u64::from(tenant == 1);
        }
        if left <= 8 {
            break;
        }
    }
    // The service / weight differs by at most a request of each tenant and a step.
    let (request_us, step_us) = (60.0 * 10.0 + 1.0, 64.0 * 10.0);
    let gap_us = (had_us[0] as f64 / 3.0 - had_us[1] as f64).abs();
    assert!(gap_us <= 2.0 * request_us + step_us, "{had_us:?}");
    assert!(had_us[0] > 120_000, "{had_us:?}");
}
