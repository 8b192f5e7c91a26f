//! Tests of the production actors on a mock device that checks the KV content of every block that a step reads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod constrained;
mod ending;
mod operators;
mod overload;
mod pressure;
mod requests;
mod reservation;
mod scripted;
mod shares;
mod storms;
mod two_steps;
mod weights;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tiercel_actors::{
    Control, EngineHandle, EngineStatus, FinishReason, Request, RequestFault, StreamEvent,
};
use tiercel_config::PreemptionMode;
use tiercel_device::{Clock, Fingerprints, MockFaults, Tier, TokenId};
use tiercel_simulation::{Collected, Laboratory, collect, request};

/// Waits until the engine is idle and all blocks are free, and returns its status.
async fn settled(engine: &EngineHandle) -> EngineStatus {
    for _ in 0..10_000 {
        engine.clock().sleep_us(10_000).await;
        let status = engine.status().await.unwrap();
        let busy = status.running + status.preempted + status.waiting.iter().sum::<u32>();
        if busy == 0
            && status.device_blocks_free == status.device_blocks
            && status.host_blocks_free == status.host_blocks
        {
            return status;
        }
    }
    panic!("blocks or sequences are left over: {:?}", engine.status().await);
}

fn prompt(rng: &mut SmallRng, len: usize) -> Vec<TokenId> {
    (0..len).map(|_| rng.random_range(0..200)).collect()
}

fn tiers(rng: &mut SmallRng) -> Tier {
    [Tier::Premium, Tier::Standard, Tier::Background][rng.random_range(0..3)]
}

/// Makes an engine (not started yet) with little KV memory: the device pool holds one sequence of the greatest length.
fn tight(clock: Clock, mode: PreemptionMode) -> Laboratory {
    let mut laboratory = Laboratory::tiny(clock);
    laboratory.device.device_blocks = 40;
    laboratory.device.host_blocks = 60;
    laboratory.device.block_size = 4;
    laboratory.device.max_model_len = 160;
    laboratory.device.fingerprints = Fingerprints::PerSlot;
    laboratory.settings.scheduler.max_num_batched_tokens = 64;
    laboratory.settings.scheduler.max_num_seqs = 16;
    laboratory.settings.preemption.mode = mode;
    laboratory
}

/// Sends random requests, some of which are cancelled or change their tier. Checks that the output of every finished
/// request is what the oracle expects, and that all blocks and sequences are released at the end.
async fn storm(
    laboratory: Laboratory,
    seed: u64,
    requests: usize,
) -> (EngineStatus, Vec<Collected>) {
    let oracle = laboratory.device.oracle();
    let log = laboratory.device.log.clone();
    let faulty = laboratory.device.faults.clone() != MockFaults::default();
    let engine = laboratory.start();
    let mut rng = SmallRng::seed_from_u64(seed);
    let shared = prompt(&mut rng, 24);
    let mut readers = Vec::new();
    for _ in 0..requests {
        engine.clock().sleep_us(rng.random_range(0..4_000)).await;
        let mut tokens = if rng.random_bool(0.4) { shared.clone() } else { Vec::new() };
        let len = rng.random_range(1..60);
        tokens.extend(prompt(&mut rng, len));
        let wanted = rng.random_range(1..60);
        let tier = tiers(&mut rng);
        let request = Request { tier, ..request(&tokens, wanted) };
        let stream = engine.submit(request).await.unwrap();
        let seq = stream.seq();
        let expected = oracle.output(&tokens, wanted as usize);
        let patience_us = rng.random_bool(0.15).then(|| rng.random_range(0..60_000));
        let clock = engine.clock().clone();
        readers.push(actix_rt::spawn(async move {
            let Some(us) = patience_us else {
                let got = collect(stream).await;
                if matches!(got.end, Some(StreamEvent::Finished { .. })) {
                    assert_eq!(got.tokens, expected, "the text of {seq} was changed");
                }
                return Some(got);
            };
            let _ = clock.timeout_us(us, collect(stream)).await;
            None
        }));
        if rng.random_bool(0.1) {
            let (tier, priority) = (tiers(&mut rng), rng.random_range(-3..3));
            engine.control(Control::Reprioritize { seq, tier, priority }).await.unwrap();
        }
    }
    let mut collected = Vec::new();
    for reader in readers {
        let got = engine.clock().timeout_us(600_000_000, reader).await.expect("no request hangs");
        collected.extend(got.unwrap());
    }
    let status = settled(&engine).await;
    assert_eq!(log.total(), 0, "{:?}", log.first());
    assert_eq!(engine.cause_of_death(), None);
    if !faulty {
        for got in &collected {
            let finished = matches!(
                got.end,
                Some(StreamEvent::Finished { reason: FinishReason::Length, .. })
                    | Some(StreamEvent::Failed(RequestFault::Dropped))
            );
            assert!(finished, "{:?}", got.end);
        }
    }
    (status, collected)
}
