//! The production actors on a mock device that checks every block it reads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use tiercel_actors::{
    Control, EngineHandle, EngineStatus, FinishReason, Refusal, Request, RequestFault, StreamEvent,
};
use tiercel_config::{Policy, PreemptionMode};
use tiercel_device::{Clock, Fingerprints, MockFaults, Tier, TokenId};
use tiercel_simulation::{Collected, Laboratory, collect, request, simulate};

/// Waits until the engine is idle and says what it looks like.
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

/// A laboratory where memory is short: about four long sequences fit.
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

/// Random traffic with cancels and operator commands; every finished stream is compared with the
/// oracle, and nothing may be left over.
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

#[test]
fn preemption_never_shows_in_the_text_and_every_block_comes_back() {
    for mode in [PreemptionMode::Swap, PreemptionMode::Recompute, PreemptionMode::Auto] {
        for seed in 0..12 {
            let status = simulate(async |clock| storm(tight(clock, mode), seed, 60).await.0);
            assert!(status.preemptions > 0, "seed {seed}, {mode:?}: memory was not short");
        }
    }
}

#[test]
fn every_policy_serves_everyone_under_pressure() {
    for (policy, _) in Policy::ALL {
        simulate(async |clock| {
            let mut laboratory = tight(clock, PreemptionMode::Auto);
            laboratory.settings.scheduler.policy = policy;
            storm(laboratory, 7, 80).await
        });
    }
}

#[test]
fn failed_copies_cost_time_and_nothing_else() {
    for seed in 0..10 {
        simulate(async |clock| {
            let mut laboratory = tight(clock, PreemptionMode::Swap);
            laboratory.device.faults.copy_fails = 0.3;
            laboratory.device.faults.copy_slow = 0.2;
            let (_, collected) = storm(laboratory, seed, 60).await;
            for got in collected {
                assert!(matches!(got.end, Some(StreamEvent::Finished { .. })), "{:?}", got.end);
            }
        });
    }
}

#[test]
fn failed_steps_cost_at_most_requests_that_were_in_them() {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Auto);
        laboratory.device.faults.step_fails = 0.02;
        let (_, collected) = storm(laboratory, 3, 60).await;
        let finished = collected
            .iter()
            .filter(|got| matches!(got.end, Some(StreamEvent::Finished { .. })))
            .count();
        // A member of a failed step ends only if it fails again alone: about one in two thousand.
        assert!(finished + 1 >= collected.len(), "{finished} of {}", collected.len());
    });
}

#[test]
fn drop_mode_ends_the_victim_with_a_clear_fault() {
    let dropped = simulate(async |clock| {
        let (_, collected) = storm(tight(clock, PreemptionMode::Drop), 5, 80).await;
        let dropped =
            |got: &&Collected| matches!(got.end, Some(StreamEvent::Failed(RequestFault::Dropped)));
        collected.iter().filter(dropped).count()
    });
    assert!(dropped > 0);
}

#[test]
fn a_seed_replays_exactly() {
    let run = || simulate(async |clock| storm(tight(clock, PreemptionMode::Auto), 11, 60).await);
    let (first, second) = (run(), run());
    assert_eq!(first, second);
}

#[test]
fn a_premium_arrival_takes_blocks_from_background_and_both_finish() {
    simulate(async |clock| {
        let mut laboratory = tight(clock.clone(), PreemptionMode::Swap);
        laboratory.settings.scheduler.watermark_percent = 0.0;
        let oracle = laboratory.device.oracle();
        let engine = laboratory.start();
        let mut rng = SmallRng::seed_from_u64(1);
        let background: Vec<_> = (0..2)
            .map(|_| prompt(&mut rng, 70))
            .map(|tokens| {
                let request = Request { tier: Tier::Background, ..request(&tokens, 60) };
                let (engine, expected) = (engine.clone(), oracle.output(&tokens, 60));
                actix_rt::spawn(async move {
                    let stream = engine.submit(request).await.unwrap();
                    assert_eq!(collect(stream).await.tokens, expected);
                })
            })
            .collect();
        clock.sleep_us(20_000).await;
        let tokens = prompt(&mut rng, 80);
        let premium = Request { tier: Tier::Premium, ..request(&tokens, 8) };
        let got = collect(engine.submit(premium).await.unwrap()).await;
        assert_eq!(got.tokens, oracle.output(&tokens, 8));
        let status = engine.status().await.unwrap();
        assert!(status.preemptions >= 1, "the premium request did not fit beside the others");
        for reader in background {
            reader.await.unwrap();
        }
        settled(&engine).await;
    });
}

#[test]
fn a_request_as_large_as_the_pool_runs_and_a_larger_one_is_refused() {
    simulate(async |clock| {
        let engine = tight(clock, PreemptionMode::Auto).start();
        let tokens = vec![1; 100];
        let got = collect(engine.submit(request(&tokens, 60)).await.unwrap()).await;
        assert_eq!(got.tokens.len(), 60);
        let mut laboratory = tight(engine.clock().clone(), PreemptionMode::Auto);
        laboratory.device.device_blocks = 30;
        let small = laboratory.start();
        let refused = small.submit(request(&tokens, 60)).await.err();
        assert!(matches!(refused, Some(Refusal::NeverFits(_))), "{refused:?}");
    });
}

#[test]
fn a_full_queue_refuses_with_a_time_to_come_back() {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Auto);
        laboratory.settings.admission.max_queued_requests_per_tier = 3;
        let engine = laboratory.start();
        let mut streams = Vec::new();
        let refused = loop {
            match engine.submit(request(&[1, 2, 3], 5)).await {
                Ok(stream) => streams.push(stream),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(streams.len(), 3);
        assert!(
            matches!(refused, Refusal::QueueFull { tier: Tier::Standard, retry_after_s, .. } if retry_after_s >= 1)
        );
        for stream in streams {
            collect(stream).await;
        }
        engine.submit(request(&[1, 2, 3], 5)).await.map(drop).expect("the queue has drained");
        settled(&engine).await;
    });
}

#[test]
fn a_slow_reader_is_held_and_one_that_reads_nothing_ends() {
    simulate(async |clock| {
        let mut laboratory = Laboratory::tiny(clock.clone());
        laboratory.settings.stream.buffer_tokens = 16;
        laboratory.settings.stream.stall_timeout_ms = 1_000;
        let oracle = laboratory.device.oracle();
        let engine = laboratory.start();
        let mut slow = engine.submit(request(&[1, 2], 100)).await.unwrap();
        let dead = engine.submit(request(&[3, 4], 100)).await.unwrap();
        let mut tokens = Vec::new();
        loop {
            clock.sleep_us(20_000).await;
            match slow.next().await {
                Some(StreamEvent::Token { token, .. }) => tokens.push(token),
                Some(StreamEvent::Finished { .. }) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(tokens, oracle.output(&[1, 2], 100));
        let end = collect(dead).await;
        assert_eq!(end.end, Some(StreamEvent::Failed(RequestFault::Stalled)));
        assert!(end.tokens.len() <= 16, "{} tokens were buffered", end.tokens.len());
        drop(slow);
        settled(&engine).await;
    });
}

#[test]
fn a_paused_sequence_waits_until_it_is_resumed() {
    simulate(async |clock| {
        let engine = Laboratory::tiny(clock.clone()).start();
        let mut stream = engine.submit(request(&[5, 6], 50)).await.unwrap();
        stream.next().await.unwrap();
        assert!(engine.control(Control::Pause(stream.seq())).await.unwrap());
        clock.sleep_us(1_000).await;
        let before = engine.status().await.unwrap().steps;
        clock.sleep_us(1_000_000).await;
        assert_eq!(engine.status().await.unwrap().steps, before);
        assert!(engine.control(Control::Resume(stream.seq())).await.unwrap());
        assert_eq!(collect(stream).await.tokens.len(), 49);
        assert!(!engine.control(Control::Pause(tiercel_device::SeqId(999))).await.unwrap());
    });
}

#[test]
fn a_lost_device_ends_every_request_and_is_announced() {
    simulate(async |clock| {
        let mut laboratory = Laboratory::tiny(clock);
        laboratory.device.faults.lost_at_step = Some(tiercel_device::StepId(5));
        let engine = laboratory.start();
        let got = collect(engine.submit(request(&[1], 50)).await.unwrap()).await;
        assert!(matches!(got.end, Some(StreamEvent::Failed(RequestFault::Step(_)))), "{got:?}");
        assert!(engine.died().await.contains("device lost"));
    });
}

#[test]
fn draining_finishes_what_runs_and_refuses_what_comes() {
    simulate(async |clock| {
        let engine = Laboratory::tiny(clock).start();
        let stream = engine.submit(request(&[1, 2], 30)).await.unwrap();
        let reader = actix_rt::spawn(collect(stream));
        let draining = {
            let engine = engine.clone();
            actix_rt::spawn(async move { engine.drain(60_000).await })
        };
        engine.clock().sleep_us(1).await;
        let late = engine.submit(request(&[1], 1)).await.err();
        assert_eq!(late, Some(Refusal::ShuttingDown));
        draining.await.unwrap();
        assert_eq!(reader.await.unwrap().tokens.len(), 30);
        assert_eq!(engine.cause_of_death(), None);
        assert_eq!(engine.submit(request(&[1], 1)).await.err(), Some(Refusal::EngineStopped));
    });
}

#[test]
fn a_drain_that_takes_too_long_ends_the_rest_with_a_clear_fault() {
    simulate(async |clock| {
        let mut laboratory = Laboratory::tiny(clock);
        laboratory.device.max_model_len = 4096;
        let engine = laboratory.start();
        let stream = engine.submit(request(&[1, 2], 2000)).await.unwrap();
        let reader = actix_rt::spawn(collect(stream));
        engine.drain(100).await;
        let end = reader.await.unwrap().end;
        assert_eq!(end, Some(StreamEvent::Failed(RequestFault::ShuttingDown)));
    });
}

#[test]
fn equal_prefixes_are_computed_once_within_a_tenant_only() {
    simulate(async |clock| {
        let engine = Laboratory::tiny(clock).start();
        let tokens: Vec<TokenId> = (0..100).collect();
        let cached = async |salt: u8| {
            let salt = tiercel_policy::blocks::Salt([salt; 16]);
            let got =
                collect(engine.submit(Request { salt, ..request(&tokens, 2) }).await.unwrap());
            match got.await.end {
                Some(StreamEvent::Finished { usage, .. }) => usage.cached_tokens,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(cached(1).await, 0);
        assert_eq!(cached(1).await, 96, "all full blocks before the last token");
        assert_eq!(cached(2).await, 0);
    });
}

#[test]
fn without_the_prefix_cache_nothing_is_shared_but_a_victim_still_finds_its_own_blocks() {
    simulate(async |clock| {
        let mut laboratory = tight(clock.clone(), PreemptionMode::Swap);
        laboratory.settings.prefix_cache.enabled = false;
        let engine = laboratory.start();
        let tokens: Vec<TokenId> = (0..80).collect();
        for _ in 0..2 {
            let got = collect(engine.submit(request(&tokens, 2)).await.unwrap()).await;
            let Some(StreamEvent::Finished { usage, .. }) = got.end else { panic!("{got:?}") };
            assert_eq!(usage.cached_tokens, 0);
        }
        let background = Request { tier: Tier::Background, ..request(&tokens, 60) };
        let mut victim = engine.submit(background).await.unwrap();
        victim.next().await.unwrap();
        let premium = Request { tier: Tier::Premium, ..request(&tokens, 40) };
        let mut premium = engine.submit(premium).await.unwrap();
        premium.next().await.unwrap();
        let status = engine.status().await.unwrap();
        assert!(status.host_blocks_free < status.host_blocks, "the victim was not copied out");
        drop(premium);
        let Some(StreamEvent::Finished { usage, .. }) = collect(victim).await.end else {
            panic!("the victim did not finish")
        };
        assert!(usage.preemptions > 0);
        settled(&engine).await;
    });
}

#[test]
fn stop_tokens_end_the_output_and_are_not_part_of_it() {
    simulate(async |clock| {
        let laboratory = Laboratory::tiny(clock);
        let output = laboratory.device.oracle().output(&[9, 9], 10);
        let engine = laboratory.start();
        let stop = Request { stop_tokens: Arc::from([output[4]]), ..request(&[9, 9], 10) };
        let got = collect(engine.submit(stop).await.unwrap()).await;
        assert_eq!(got.tokens, output[..4]);
        assert!(matches!(
            got.end,
            Some(StreamEvent::Finished { reason: FinishReason::Stop, usage }) if usage.completion_tokens == 4
        ));
    });
}
