//! Tests of shedding by share: a tier that has had more than its share of the device's time is refused under load.

use super::settled;
use tiercel_actors::{Refusal, Request};
use tiercel_config::SheddingForm;
use tiercel_device::{Clock, Tier};
use tiercel_simulation::{Laboratory, collect, request, simulate};

/// Makes an engine (not started yet) with eight slots in a step, which sheds requests by share when its load exceeds 50
/// %.
fn shedding(clock: Clock) -> Laboratory {
    let mut laboratory = Laboratory::tiny(clock);
    let settings = &mut laboratory.settings;
    settings.scheduler.max_num_seqs = 8;
    settings.shedding.form = SheddingForm::Share;
    settings.shedding.load_percent = 50.0;
    settings.prefix_cache.enabled = false;
    laboratory.device.device_blocks = 1000;
    laboratory
}

fn of(tier: Tier, output: u32) -> Request {
    Request { tier, ..request(&[1, 2, 3, 4], output) }
}

/// Sends two hundred requests of a tier, one per millisecond, and returns how many are refused because the tier has had
/// more than its share.
async fn refused(engine: &tiercel_actors::EngineHandle, clock: &Clock, tier: Tier) -> usize {
    let mut refused = 0;
    let mut readers = Vec::new();
    for _ in 0..200 {
        clock.sleep_us(1_000).await;
        match engine.submit(of(tier, 1)).await {
            Ok(stream) => readers.push(actix_rt::spawn(collect(stream))),
            Err(Refusal::OverShare { tier: of, had_percent, due_percent, retry_after_ms }) => {
                assert_eq!((of, had_percent > due_percent), (tier, true));
                assert!((1_000..=120_000).contains(&retry_after_ms));
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    for reader in readers {
        assert_eq!(reader.await.unwrap().tokens.len(), 1);
    }
    refused
}

#[test]
fn under_load_a_tier_over_its_share_is_refused_in_part_and_no_request_after_the_load() {
    simulate(async |clock| {
        let engine = shedding(clock.clone()).start();
        assert_eq!(refused(&engine, &clock, Tier::Background).await, 0, "there is no load");
        // Load the engine: one premium and six background streams take seven of the eight slots of a step.
        let mut streams = Vec::new();
        for tier in [Tier::Premium].into_iter().chain([Tier::Background; 6]) {
            streams.push(engine.submit(of(tier, 1500)).await.expect("nobody has much yet"));
        }
        clock.sleep_us(50_000).await;
        let background = refused(&engine, &clock, Tier::Background).await;
        assert!((120..190).contains(&background), "{background}: four in five, never all");
        assert_eq!(refused(&engine, &clock, Tier::Premium).await, 0);
        drop(streams);
        clock.sleep_us(100_000).await;
        assert_eq!(refused(&engine, &clock, Tier::Background).await, 0, "nothing latches");
        settled(&engine).await;
    });
}
