//! Tests of fair queueing by weights: two tenants of one tier whose requests always wait.

use super::{prompt, settled};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use tiercel_actors::Request;
use tiercel_config::{Policy, Target};
use tiercel_device::{Clock, MockProfile, TokenId};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;
use tiercel_simulation::{Laboratory, collect, request, simulate};

/// A tenant: its weight, its number of requests, and the lengths of their prompts and outputs.
struct Tenant {
    weight: f64,
    requests: usize,
    tokens: RangeInclusive<usize>,
}

/// Returns the device time that a request adds to steps, us.
fn service_us(profile: &MockProfile, prompt: usize, output: usize) -> f64 {
    let (prompt, output) = (prompt as f64, output as f64);
    let pairs = prompt * (prompt - 1.0) / 2.0;
    let read = (output - 1.0) * (prompt + output / 2.0);
    profile.prefill_token_us * prompt
        + profile.prefill_context_us * pairs
        + profile.decode_token_us * (output - 1.0)
        + profile.kv_token_us * read
}

/// Makes an engine (not started yet) that accepts thousands of requests, with eight slots in a step.
fn laboratory(clock: Clock, policy: Policy, target: Target) -> Laboratory {
    let mut laboratory = Laboratory::tiny(clock);
    let settings = &mut laboratory.settings;
    settings.use_policy(policy);
    settings.scheduler.max_num_seqs = 8;
    settings.scheduler.max_num_batched_tokens = 64;
    settings.prefix_cache.enabled = false;
    settings.admission.max_requests = 10_000;
    settings.admission.max_queued_requests_per_tier = 10_000;
    (settings.slo.standard.ttft_ms, settings.slo.standard.tpot_ms) = (target, target);
    laboratory
}

/// Sends all requests of both tenants at once. Returns the device time that each tenant had at the first moment at
/// which one of the two has only a tenth of its requests left, us.
async fn device_time_us(laboratory: Laboratory, tenants: &[Tenant; 2]) -> [f64; 2] {
    let engine = laboratory.start();
    let mut rng = SmallRng::seed_from_u64(7);
    let had_us = Rc::new(RefCell::new([0.0; 2]));
    let measured = Rc::new(RefCell::new(None));
    let left = Rc::new(RefCell::new(tenants.each_ref().map(|tenant| tenant.requests)));
    let mut readers = Vec::new();
    for (number, tenant) in tenants.iter().enumerate() {
        let least_left = tenant.requests / 10;
        for _ in 0..tenant.requests {
            let len = rng.random_range(tenant.tokens.clone());
            let tokens: Vec<TokenId> = prompt(&mut rng, len);
            let output = rng.random_range(tenant.tokens.clone());
            let (salt, weight) = (Salt([number as u8 + 1; 16]), Weight::new(tenant.weight));
            let asked = Request { salt, weight, ..request(&tokens, output as u32) };
            let stream = engine.submit(asked).await.unwrap();
            let service_us = service_us(&laboratory.device.profile, len, output);
            let (had_us, measured, left) = (had_us.clone(), measured.clone(), left.clone());
            readers.push(actix_rt::spawn(async move {
                assert_eq!(collect(stream).await.tokens.len(), output);
                had_us.borrow_mut()[number] += service_us;
                left.borrow_mut()[number] -= 1;
                if left.borrow()[number] == least_left {
                    measured.borrow_mut().get_or_insert(*had_us.borrow());
                }
            }));
        }
    }
    for reader in readers {
        reader.await.unwrap();
    }
    settled(&engine).await;
    let measured = measured.borrow();
    measured.expect("all requests ended")
}

#[test]
fn tenants_whose_requests_wait_have_device_time_in_proportion_to_their_weights() {
    let long = |weight| Tenant { weight, requests: 700, tokens: 20..=60 };
    let short = |weight| Tenant { weight, requests: 2_000, tokens: 4..=20 };
    for (target, weights) in [
        (Target::Auto, [3.0, 1.0]),
        (Target::Auto, [1.0, 3.0]),
        (Target::None, [3.0, 1.0]),
        (Target::Ms(2_000.0), [3.0, 1.0]),
    ] {
        let tenants = [long(weights[0]), short(weights[1])];
        let [first, second] = simulate(async |clock| {
            device_time_us(laboratory(clock, Policy::Tiercel, target), &tenants).await
        });
        let (ratio, expected) = (first / second, weights[0] / weights[1]);
        let of = format!("{target:?} {weights:?}: {first} to {second} us");
        assert!((ratio / expected - 1.0).abs() < 0.05, "{of}: {ratio}");
    }
}

#[test]
fn the_fairness_policy_serves_tokens_in_proportion_to_weights() {
    let tenant = |weight| Tenant { weight, requests: 900, tokens: 10..=40 };
    let [first, second] = simulate(async |clock| {
        let laboratory = laboratory(clock, Policy::Fairness, Target::None);
        device_time_us(laboratory, &[tenant(3.0), tenant(1.0)]).await
    });
    let ratio = first / second;
    assert!((ratio / 3.0 - 1.0).abs() < 0.05, "{ratio}");
}
