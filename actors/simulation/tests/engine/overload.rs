//! Tests of an overloaded engine, with more requests than it has time for: refusals, retry times, and the service of
//! accepted requests.

use super::settled;
use tiercel_actors::{EngineHandle, Refusal, Request, RequestFault, StreamEvent};
use tiercel_config::{Late, Target};
use tiercel_device::{Clock, Tier, TokenId};
use tiercel_simulation::{Laboratory, collect, request, simulate};

const PROMPT: usize = 200;

/// Makes an engine (not started yet) whose device needs four steps for a prompt, and whose TTFT target of 40 ms only a
/// few prompts at once can meet.
fn busy(clock: Clock, late: Late) -> Laboratory {
    let mut laboratory = Laboratory::tiny(clock);
    let settings = &mut laboratory.settings;
    settings.scheduler.max_num_batched_tokens = 64;
    settings.shedding.late = late;
    settings.slo.standard.ttft_ms = Target::Ms(40.0);
    laboratory.device.device_blocks = 1000;
    laboratory.device.profile.prefill_token_us = 20.0;
    laboratory
}

fn prompt(number: u32) -> Vec<TokenId> {
    (0..PROMPT as u32).map(|at| 1 + (7 * number + at) % 900).collect()
}

#[test]
fn who_would_be_late_is_told_at_once_and_let_in_when_told_to_come_back() {
    simulate(async |clock| {
        let engine = busy(clock.clone(), Late::Refuse).start();
        // The engine serves one request first, from which it learns how long a step takes; without that time it could
        // not forecast TTFTs.
        collect(engine.submit(request(&prompt(0), 1)).await.unwrap()).await;
        let mut readers = Vec::new();
        let came = clock.now();
        let refusal = loop {
            assert!(readers.len() < 100, "nobody is refused");
            match engine.submit(request(&prompt(1 + readers.len() as u32), 1)).await {
                Ok(stream) => readers.push(actix_rt::spawn(collect(stream))),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(clock.now(), came, "a refusal takes no time");
        let Refusal::Late { tier, expected_ms, limit_ms, retry_after_ms } = refusal else {
            panic!("{refusal:?}");
        };
        assert_eq!(tier, Tier::Standard);
        assert!(
            (20..=48).contains(&limit_ms),
            "the target, as far as forecasts are trusted: {limit_ms}"
        );
        assert!(readers.len() > 1, "the first fits beside one that waits");
        assert!((limit_ms..=4 * limit_ms).contains(&expected_ms), "{expected_ms} of {limit_ms}");
        // Lateness refuses only the standard tier: premium requests are served before it, and background requests have
        // no TTFT target.
        for tier in [Tier::Premium, Tier::Background] {
            let other = Request { tier, ..request(&prompt(200 + tier as u32), 1) };
            readers.push(actix_rt::spawn(collect(engine.submit(other).await.unwrap())));
        }
        clock.sleep_us(retry_after_ms * 1000).await;
        let back = engine.submit(request(&prompt(300), 1)).await.expect("the time told was honest");
        assert_eq!(collect(back).await.tokens.len(), 1);
        for reader in readers {
            assert_eq!(reader.await.unwrap().tokens.len(), 1);
        }
        settled(&engine).await;
    });
}

/// Sends sixteen requests at once, whose prompts take 75 ms together, and one more request 25 ms later. Returns the
/// time of each request's first token, us after the start.
async fn first_tokens(clock: &Clock, late: Late) -> Vec<u64> {
    let engine = busy(clock.clone(), late).start();
    let came = clock.now();
    let mut readers = Vec::new();
    for number in 0..17 {
        if number == 16 {
            clock.sleep_us(25_000).await;
        }
        let mut stream = engine.submit(request(&prompt(number), 1)).await.unwrap();
        let clock = clock.clone();
        readers.push(actix_rt::spawn(async move {
            assert!(matches!(stream.next().await, Some(StreamEvent::Token { .. })));
            clock.now().since_us(came)
        }));
    }
    let mut firsts = Vec::new();
    for reader in readers {
        firsts.push(reader.await.unwrap());
    }
    firsts
}

#[test]
fn a_late_request_goes_behind_requests_that_can_be_in_time() {
    simulate(async |clock| {
        let waiting = first_tokens(&clock, Late::Wait).await;
        assert!(waiting.is_sorted(), "in order of arrival: {waiting:?}");
        let firsts = first_tokens(&clock, Late::BestEffort).await;
        assert!(firsts[16] < firsts[15], "the last to come can be in time: {firsts:?}");
        assert!(firsts[16] - 25_000 <= 40_000, "and is: {firsts:?}");
        assert!(waiting[16] - 25_000 > 40_000, "which it would not have been: {waiting:?}");
    });
}

#[test]
fn who_cannot_start_for_too_long_is_turned_away_and_premium_never() {
    simulate(async |clock| {
        let mut laboratory = busy(clock.clone(), Late::Wait);
        laboratory.settings.scheduler.max_num_seqs = 1;
        laboratory.settings.patience.standard_s = 0.5;
        laboratory.settings.patience.background_s = 0.5;
        laboratory.device.profile.step_base_us = 1000.0;
        let engine = laboratory.start();
        let long = Request { tier: Tier::Premium, ..request(&[1, 2, 3], 1500) };
        let running = engine.submit(long).await.unwrap();
        let reader = actix_rt::spawn(collect(running));
        let mut waiting = Vec::new();
        for tier in [Tier::Premium, Tier::Standard, Tier::Background] {
            let stream = engine.submit(Request { tier, ..request(&[4, 5], 1) }).await.unwrap();
            waiting.push(actix_rt::spawn(collect(stream)));
        }
        let ends: Vec<_> = {
            let mut ends = Vec::new();
            for waits in waiting {
                ends.push(waits.await.unwrap().end);
            }
            ends
        };
        assert!(matches!(ends[0], Some(StreamEvent::Finished { .. })), "{ends:?}");
        for end in &ends[1..] {
            let Some(StreamEvent::Failed(RequestFault::OutOfPatience {
                patience_ms,
                stated,
                retry_after_ms,
                ..
            })) = end
            else {
                panic!("{end:?}");
            };
            assert_eq!((*patience_ms, *stated), (500, false));
            assert!((1_000..=180_000).contains(retry_after_ms));
        }
        assert_eq!(reader.await.unwrap().tokens.len(), 1500);
        settled(&engine).await;
    });
}

/// Checks that admission compares its predicted wait with a patience that the request states, but not with the patience
/// of the tier. The prediction assumes that the queue drains as fast as lately, but a queue that stands still while
/// higher tiers are served drains faster later.
#[test]
fn on_arrival_a_stated_patience_refuses_and_that_of_a_tier_does_not() {
    simulate(async |clock| {
        let mut laboratory = busy(clock.clone(), Late::Wait);
        laboratory.settings.scheduler.max_num_seqs = 1;
        laboratory.settings.patience.standard_s = 0.5;
        laboratory.device.profile.step_base_us = 1000.0;
        let engine = laboratory.start();
        // Send short requests that run one after the other, in about 10 ms each, because a step has only one slot.
        let send = async |count: usize| {
            let mut sent = Vec::new();
            for _ in 0..count {
                let stream = engine.submit(request(&[4, 5], 8)).await.expect("its tier waits");
                sent.push(actix_rt::spawn(collect(stream)));
            }
            sent
        };
        for learned in send(40).await {
            learned.await.unwrap();
        }
        let mut waiting = send(70).await;
        // Wait for some steps, from which admission learns how fast the queue drains.
        clock.sleep_us(30_000).await;
        waiting.extend(send(10).await);
        let stated = Request { max_wait_ms: Some(500), ..request(&[6, 7], 8) };
        let refusal = engine.submit(stated).await.err();
        assert!(matches!(refusal, Some(Refusal::OutOfPatience { .. })), "{refusal:?}");
        let mut finished = 0;
        for waits in waiting {
            let end = waits.await.unwrap().end;
            finished += u32::from(matches!(end, Some(StreamEvent::Finished { .. })));
        }
        assert!((20..80).contains(&finished), "{finished} of 80 were served within their patience");
        settled(&engine).await;
    });
}

/// A request of the test below: the times at which it came and at which it got its first token or was turned away.
struct Outcome {
    tier: Tier,
    came_us: u64,
    ended_us: u64,
    refused: bool,
}

/// Sends a request, which must be accepted, and waits until it gets its first token or is turned away.
async fn outcome(engine: EngineHandle, clock: Clock, request: Request) -> Outcome {
    let (tier, came_us) = (request.tier, clock.now().0);
    let refused = match engine.submit(request).await {
        Ok(mut stream) => match stream.next().await {
            Some(StreamEvent::Token { .. }) => false,
            Some(StreamEvent::Failed(RequestFault::OutOfPatience { .. })) => true,
            other => panic!("{other:?}"),
        },
        Err(refusal) => panic!("{refusal}"),
    };
    Outcome { tier, came_us, ended_us: clock.now().0, refused }
}

#[test]
fn no_standard_request_is_refused_while_background_that_came_later_starts() {
    simulate(async |clock| {
        let mut laboratory = busy(clock.clone(), Late::BestEffort);
        laboratory.settings.patience.standard_s = 0.5;
        laboratory.settings.prefix_cache.enabled = false;
        let engine = laboratory.start();
        // The device computes a prompt in 5 ms. Standard prompts come every 3 ms for 2 s, background ones every 30 ms
        // for 4 s, so that the standard requests need all time at first, and leave some later.
        let mut readers = Vec::new();
        for number in 0..1333 {
            let tier = if number % 10 == 9 { Tier::Background } else { Tier::Standard };
            if tier == Tier::Background || number < 667 {
                let sent = Request { tier, ..request(&prompt(number), 1) };
                readers.push(actix_rt::spawn(outcome(engine.clone(), clock.clone(), sent)));
            }
            clock.sleep_us(3_000).await;
        }
        let mut outcomes = Vec::new();
        for reader in readers {
            outcomes.push(reader.await.unwrap());
        }
        let refused: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.refused).collect();
        assert!(refused.len() > 50, "only {} were refused", refused.len());
        assert!(refused.iter().all(|refused| refused.tier == Tier::Standard));
        let background = outcomes.iter().filter(|outcome| outcome.tier == Tier::Background);
        for started in background {
            let earlier = refused.iter().find(|refused| {
                refused.came_us < started.came_us && started.ended_us < refused.ended_us
            });
            let earlier = earlier.map(|refused| (refused.came_us, refused.ended_us));
            let started = (started.came_us, started.ended_us);
            assert_eq!(earlier, None, "came and ended, us; background {started:?}");
        }
        settled(&engine).await;
    });
}
