//! Tests that preemptions, failed steps and a slow host never change the scripted outputs of the mock device.

use super::{prompt, settled, tiers, tight};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use tiercel_actors::{EngineStatus, FinishReason, Request, StreamEvent};
use tiercel_config::PreemptionMode;
use tiercel_device::{MockScript, TokenId};
use tiercel_simulation::{Laboratory, collect, request, simulate};

/// Token that ends a scripted output.
const END: TokenId = 250;
/// Minimum number of swaps, and of recomputes, in all storms of a test.
const PREEMPTIONS: u64 = 1_000;
/// Number of storms of each mode. A storm is a set of requests that are sent at random times to an engine with too
/// little memory.
const STORMS: u64 = 50;

/// Script with an output for every prompt: random tokens whose seed depends on the prompt.
#[derive(Debug)]
struct Drawn;

impl MockScript for Drawn {
    fn output(&self, prompt: &[TokenId]) -> Option<Arc<[TokenId]>> {
        let seed = prompt.iter().fold(7, |seed, token| seed * 31 % 1_000_003 + u64::from(*token));
        let mut rng = SmallRng::seed_from_u64(seed);
        let len = rng.random_range(1..60);
        let tokens = (0..len).map(|_| rng.random_range(0..END));
        Some(tokens.chain([END]).collect())
    }
}

/// Sends 60 random requests to an engine with little memory, and checks that each finished request has its scripted
/// output. Requests of higher tiers preempt requests of lower tiers.
async fn scripted_storm(mut laboratory: Laboratory, seed: u64) -> EngineStatus {
    laboratory.device.script = Some(Arc::new(Drawn));
    let faulty = laboratory.device.faults.step_fails > 0.0;
    let log = laboratory.device.log.clone();
    let engine = laboratory.start();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut readers = Vec::new();
    for _ in 0..60 {
        engine.clock().sleep_us(rng.random_range(0..4_000)).await;
        let len = rng.random_range(1..60);
        let tokens = prompt(&mut rng, len);
        let output = Drawn.output(&tokens).unwrap();
        let (output, wanted) = (output[..output.len() - 1].to_vec(), rng.random_range(20..60));
        let tier = tiers(&mut rng);
        let stop_tokens = Arc::from([END]);
        let request = Request { tier, stop_tokens, ..request(&tokens, wanted) };
        let stream = engine.submit(request).await.unwrap();
        readers.push(actix_rt::spawn(async move {
            let got = collect(stream).await;
            let Some(StreamEvent::Finished { reason, .. }) = got.end else {
                assert!(faulty, "{:?}", got.end);
                return;
            };
            let wanted = wanted as usize;
            assert_eq!(got.tokens, output[..output.len().min(wanted)]);
            let is_cut = output.len() >= wanted;
            assert_eq!(reason, if is_cut { FinishReason::Length } else { FinishReason::Stop });
        }));
    }
    for reader in readers {
        engine.clock().timeout_us(600_000_000, reader).await.expect("no request hangs").unwrap();
    }
    let status = settled(&engine).await;
    assert_eq!(log.total(), 0, "{:?}", log.first());
    status
}

#[test]
fn preemption_never_shows_in_a_scripted_output() {
    for mode in [PreemptionMode::Swap, PreemptionMode::Recompute] {
        let preemptions: u64 = (0..STORMS)
            .map(|seed| {
                let status = simulate(async |clock| scripted_storm(tight(clock, mode), seed).await);
                let swapped = mode == PreemptionMode::Swap;
                let counters = status.counters;
                let counts = if swapped { counters.swaps } else { counters.recomputes };
                counts.iter().sum::<u64>()
            })
            .sum();
        println!("{preemptions} preemptions by {mode:?}");
        assert!(preemptions >= PREEMPTIONS, "{preemptions} by {mode:?}");
    }
}

#[test]
fn two_steps_in_flight_and_failed_steps_never_show_in_a_scripted_output() {
    for seed in 0..8 {
        let failed = simulate(async |clock| {
            let mut laboratory = tight(clock, PreemptionMode::Auto);
            laboratory.device.host_us = 10_000;
            laboratory.device.faults.step_fails = 0.02;
            scripted_storm(laboratory, seed).await.counters.failed_steps
        });
        assert!(failed > 0, "seed {seed}");
    }
}
