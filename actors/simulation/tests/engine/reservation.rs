//! Tests of KV blocks and slots of a step that are reserved for premium, while background requests take all that they
//! can get.

use super::{settled, tight};
use tiercel_actors::{Control, EngineHandle, Refusal, Request};
use tiercel_config::{PreemptionMode, Reservation};
use tiercel_device::{Clock, Tier, TokenId};
use tiercel_simulation::{collect, request, simulate};

/// Number of KV blocks that are reserved for premium: half of the 40. Half of the 16 slots of a step are reserved too.
const KEPT: u32 = 20;

fn prompt(number: u32) -> Vec<TokenId> {
    (0..24).map(|at| (7 * number + at) % 200).collect()
}

/// Least number of free blocks and largest number of running requests under a background load, and the TTFT of a
/// premium request that then arrives.
#[derive(Debug)]
struct Seen {
    least_free: u32,
    most_running: u32,
    first_token_ms: f64,
}

async fn seen(clock: Clock, kind: Option<Reservation>, mirror_percent: u32) -> Seen {
    let mut laboratory = tight(clock.clone(), PreemptionMode::Swap);
    laboratory.settings.preemption.mirror_percent = mirror_percent;
    if let Some(kind) = kind {
        let reservation = &mut laboratory.settings.reservation;
        reservation.kind = kind;
        reservation.premium_blocks_percent = 50.0;
        reservation.premium_slots_percent = 50.0;
    }
    let engine: EngineHandle = laboratory.start();
    let mut readers = Vec::new();
    for number in 0..12 {
        let asked = Request { tier: Tier::Background, ..request(&prompt(number), 40) };
        readers.push(actix_rt::spawn(collect(engine.submit(asked).await.unwrap())));
    }
    let (mut least_free, mut most_running) = (u32::MAX, 0);
    for _ in 0..60 {
        engine.clock().sleep_us(1_000).await;
        let status = engine.status().await.unwrap();
        least_free = least_free.min(status.device_blocks_free);
        most_running = most_running.max(status.running);
    }
    let came = clock.now();
    let asked = Request { tier: Tier::Premium, ..request(&prompt(100), 4) };
    let mut stream = engine.submit(asked).await.unwrap();
    stream.next().await.expect("a token");
    let first_token_ms = clock.now().since_ms(came);
    drop(stream);
    for reader in readers {
        reader.await.unwrap();
    }
    settled(&engine).await;
    Seen { least_free, most_running, first_token_ms }
}

#[test]
fn no_other_tier_has_blocks_or_places_that_are_reserved_hard() {
    simulate(async |clock| {
        let hard = seen(clock, Some(Reservation::Hard), 0).await;
        // One block less than the reservation may be free: a stream may have grown by a block that a victim is still
        // copying out.
        assert!(hard.least_free + 1 >= KEPT, "{hard:?}");
        assert!((1..=8).contains(&hard.most_running), "{hard:?}");
    });
    let none = simulate(async |clock| seen(clock, None, 0).await);
    assert!(none.least_free + 1 < KEPT, "or the test shows nothing: {none:?}");
}

#[test]
fn what_is_lent_is_used_as_far_as_it_could_be_given_back_at_once() {
    let lent = simulate(async |clock| seen(clock, Some(Reservation::Lent), 100).await);
    assert!(lent.least_free < KEPT, "{lent:?}");
    let none = simulate(async |clock| seen(clock, None, 0).await);
    assert!(lent.first_token_ms <= none.first_token_ms, "{lent:?} {none:?}");
    let unmirrored = simulate(async |clock| seen(clock, Some(Reservation::Lent), 0).await);
    assert!(unmirrored.least_free > lent.least_free, "{unmirrored:?} {lent:?}");
}

#[test]
fn a_request_that_does_not_fit_beside_what_is_kept_is_told_so() {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Swap);
        laboratory.settings.reservation.premium_blocks_percent = 50.0;
        let engine = laboratory.start();
        let asked = |tier, tokens| Request { tier, ..request(&prompt(1), tokens) };
        let refused = engine.submit(asked(Tier::Background, 57)).await;
        assert!(matches!(refused, Err(Refusal::NeverFits(_))), "81 tokens need 21 blocks");
        for (tier, tokens) in [(Tier::Background, 56), (Tier::Premium, 120)] {
            let stream = engine.submit(asked(tier, tokens)).await.unwrap();
            assert_eq!(collect(stream).await.tokens.len(), tokens as usize);
        }
        settled(&engine).await;
    });
}

#[test]
fn a_reservation_that_live_requests_cannot_fit_beside_loses_none_of_them() {
    for kind in [Reservation::Hard, Reservation::Lent] {
        simulate(async |clock| {
            let laboratory = tight(clock, PreemptionMode::Swap);
            let oracle = laboratory.device.oracle();
            let engine = laboratory.start_checked();
            let asked =
                |number| Request { tier: Tier::Background, ..request(&prompt(number), 100) };
            let mut readers = Vec::new();
            for number in 0..6 {
                let stream = engine.submit(asked(number)).await.unwrap();
                readers.push((number, actix_rt::spawn(collect(stream))));
            }
            engine.clock().sleep_us(5_000).await;
            // Each request needs 31 of the 40 blocks. Background can count on 20 from now on.
            let mut settings = laboratory.settings.clone();
            settings.reservation.kind = kind;
            settings.reservation.premium_blocks_percent = 50.0;
            settings.reservation.premium_slots_percent = 50.0;
            engine.control(Control::Adjust(Box::new(settings))).await.unwrap();
            let refused = engine.submit(asked(6)).await;
            assert!(matches!(refused, Err(Refusal::NeverFits(_))), "{kind:?}: it never fits");
            for (number, reader) in readers {
                let got =
                    engine.clock().timeout_us(60_000_000, reader).await.expect("it ends").unwrap();
                assert_eq!(got.tokens, oracle.output(&prompt(number), 100), "{kind:?} {number}");
            }
            engine.control(Control::Adjust(Box::new(laboratory.settings.clone()))).await.unwrap();
            assert_eq!(collect(engine.submit(asked(6)).await.unwrap()).await.tokens.len(), 100);
            settled(&engine).await;
        });
    }
}
