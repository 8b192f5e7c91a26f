//! Tests of an engine with few requests: preemption, pausing, sharing of blocks, and ends of outputs.

use super::{prompt, settled, tight};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::sync::Arc;
use tiercel_actors::{Control, FinishReason, Refusal, Request, RequestFault, StreamEvent};
use tiercel_config::PreemptionMode;
use tiercel_device::{Tier, TokenId};
use tiercel_simulation::{Laboratory, collect, request, simulate};

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
        assert!(
            status.counters.preemptions() >= 1,
            "the premium request did not fit beside the others"
        );
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
            matches!(refused, Refusal::QueueFull { tier: Tier::Standard, retry_after_ms, .. } if retry_after_ms >= 1_000)
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
        // The client that reads nothing has 16 tokens in its buffer, and perhaps one that was on its way when the
        // sequence was put on hold.
        assert!(end.tokens.len() <= 17, "{} tokens were buffered", end.tokens.len());
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
        let before = engine.status().await.unwrap().counters.steps;
        clock.sleep_us(1_000_000).await;
        assert_eq!(engine.status().await.unwrap().counters.steps, before);
        assert!(engine.control(Control::Resume(stream.seq())).await.unwrap());
        assert_eq!(collect(stream).await.tokens.len(), 49);
        assert!(!engine.control(Control::Pause(tiercel_device::SeqId(999))).await.unwrap());
    });
}

#[test]
fn equal_prefixes_are_computed_once_within_a_tenant_only() {
    simulate(async |clock| {
        let engine = Laboratory::tiny(clock).start();
        let tokens: Vec<TokenId> = (0..100).collect();
        let cached = async |salt: u8, max_tokens| {
            let salt = tiercel_policy::blocks::Salt([salt; 16]);
            let request = Request { salt, ..request(&tokens, max_tokens) };
            match collect(engine.submit(request).await.unwrap()).await.end {
                Some(StreamEvent::Finished { usage, .. }) => usage.cached_tokens,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(cached(1, 2).await, 0);
        assert_eq!(cached(1, 2).await, 96, "all full blocks before the last token");
        assert_eq!(cached(2, 1).await, 0);
        assert_eq!(
            cached(2, 1).await,
            96,
            "the prompt was computed in the step that ended the request"
        );
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
