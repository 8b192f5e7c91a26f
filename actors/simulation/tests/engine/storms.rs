//! Tests of random traffic on a device with too little KV memory: outputs are right, all blocks are released, and every
//! request ends.

use super::{storm, tight};
use tiercel_actors::Request;
use tiercel_actors::{RequestFault, StreamEvent};
use tiercel_config::{EngineSettings, Policy, PreemptionMode, Target};
use tiercel_device::Tier;
use tiercel_simulation::{Collected, collect, request, simulate};

#[test]
fn preemption_never_shows_in_the_text_and_every_block_comes_back() {
    for mode in [PreemptionMode::Swap, PreemptionMode::Recompute, PreemptionMode::Auto] {
        for seed in 0..12 {
            let status = simulate(async |clock| storm(tight(clock, mode), seed, 60).await.0);
            assert!(
                status.counters.preemptions() > 0,
                "seed {seed}, {mode:?}: memory was not short"
            );
        }
    }
}

#[test]
fn every_policy_serves_everyone_under_pressure() {
    for &(policy, _) in Policy::ALL {
        simulate(async |clock| {
            let mut laboratory = tight(clock, PreemptionMode::Auto);
            laboratory.settings.use_policy(policy);
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
        // At most four requests may fail. A member of a failed step ends only if it fails again when it runs alone,
        // with probability 1/50: of about ten failed steps with half a dozen members each, about one member.
        assert!(finished + 4 >= collected.len(), "{finished} of {}", collected.len());
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

/// Checks that every request ends although requests that were preempted as often as allowed are spared: even if they
/// hold the whole pool, the first sequence in order of service must make progress.
#[test]
fn sparing_those_preempted_often_never_stops_everybody() {
    for most in [0, 1, 2] {
        for seed in 0..8 {
            simulate(async |clock| {
                let mut laboratory = tight(clock, PreemptionMode::Auto);
                laboratory.settings.preemption.max_per_request = most;
                storm(laboratory, seed, 60).await
            });
        }
    }
}

/// Checks that all requests end although as many premium requests wait as a step has slots, and none fits beside the
/// background requests that hold the memory and may not be preempted.
#[test]
fn waiting_requests_never_take_every_place_from_those_who_hold_the_memory() {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Recompute);
        laboratory.settings.preemption.max_per_request = 0;
        laboratory.settings.scheduler.max_num_seqs = 4;
        let engine = laboratory.start();
        let submit = async |id, tier, prompt: usize, tokens| {
            let request = Request { tier, ..request(&vec![id; prompt], tokens) };
            engine.submit(request).await.unwrap()
        };
        let mut readers = Vec::new();
        for id in 0..3 {
            readers.push(actix_rt::spawn(collect(submit(id, Tier::Background, 40, 12).await)));
        }
        while engine.status().await.unwrap().running < 3 {
            engine.clock().sleep_us(100).await;
        }
        for id in 3..9 {
            readers.push(actix_rt::spawn(collect(submit(id, Tier::Premium, 90, 8).await)));
        }
        for reader in readers {
            let got = engine.clock().timeout_us(60_000_000, reader).await.expect("none hangs");
            assert!(matches!(got.unwrap().end, Some(StreamEvent::Finished { .. })));
        }
    });
}

/// Checks that small requests that keep arriving do not keep a large request waiting for ever.
#[test]
fn a_large_request_is_not_overtaken_for_ever_by_small_ones() {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Recompute);
        laboratory.settings.scheduler.max_num_batched_tokens = 512;
        // Set a long TTFT target, so that no request is late: late requests would wait behind those in time, whatever
        // their size.
        laboratory.settings.slo.standard.ttft_ms = Target::Ms(500.0);
        let engine = laboratory.start();
        let mut small = Vec::new();
        let mut large = None;
        for round in 0..200 {
            // Give the small requests different output lengths, so that they never end together and make room for the
            // large one by chance.
            let stream = engine.submit(request(&[round; 30], 10 + round * 7 % 23)).await.unwrap();
            small.push(actix_rt::spawn(collect(stream)));
            if round == 20 {
                let stream = engine.submit(request(&[999; 130], 4)).await.unwrap();
                large = Some(actix_rt::spawn(collect(stream)));
            }
            engine.clock().sleep_us(1_000).await;
        }
        let waiting = engine.status().await.unwrap().waiting[Tier::Standard.index()];
        assert!(waiting > 20, "the small ones were meant to outnumber the places: {waiting}");
        assert!(large.expect("it was sent").is_finished(), "it still waits behind later ones");
    });
}

/// Sends premium requests one by one into a pool that is full of background requests. Returns the number of all
/// preemptions, and that of the request that was preempted most often.
fn preemptions_by_intruders(change: fn(&mut EngineSettings)) -> (u64, u32) {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Recompute);
        laboratory.settings.use_policy(Policy::PriorityPreempt);
        laboratory.settings.preemption.mode = PreemptionMode::Recompute;
        laboratory.settings.preemption.max_per_request = 1000;
        laboratory.settings.scheduler.watermark_percent = 0.0;
        change(&mut laboratory.settings);
        let engine = laboratory.start();
        let mut readers = Vec::new();
        for id in 1..=8 {
            let background = Request { tier: Tier::Background, ..request(&[id; 20], 100) };
            readers.push(actix_rt::spawn(collect(engine.submit(background).await.unwrap())));
        }
        for id in 10..70 {
            engine.clock().sleep_us(4_000).await;
            let premium = Request { tier: Tier::Premium, ..request(&[id; 24], 2) };
            readers.push(actix_rt::spawn(collect(engine.submit(premium).await.unwrap())));
        }
        let mut most = 0;
        for reader in readers {
            let end = reader.await.unwrap().end;
            let Some(StreamEvent::Finished { usage, .. }) = end else { panic!("{end:?}") };
            most = most.max(usage.preemptions);
        }
        (engine.status().await.unwrap().counters.preemptions(), most)
    })
}

/// Checks two remedies for a cycle in which a background request resumes into the last free blocks and is preempted
/// again by the next premium request: a watermark for background requests, and a limit of preemptions per request.
#[test]
fn requests_do_not_take_each_others_places_over_and_over() {
    let (without, without_limit) = preemptions_by_intruders(|_| ());
    let (hysteresis, _) =
        preemptions_by_intruders(|settings| settings.scheduler.background_watermark_percent = 25.0);
    let (_, limit) = preemptions_by_intruders(|settings| settings.preemption.max_per_request = 1);
    assert!(without >= 20, "only {without} preemptions: there was nothing to keep from happening");
    assert!(
        2 * hysteresis <= without,
        "{hysteresis} preemptions with room kept, {without} without"
    );
    assert!(3 * limit <= 2 * without_limit, "{limit} of one with a limit, {without_limit} without");
}
