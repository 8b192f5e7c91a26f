//! Tests of the pressure levels that the engine reports for its resources.

use super::{settled, tight};
use tiercel_actors::{EngineHandle, Level, Resource};
use tiercel_config::PreemptionMode;
use tiercel_device::{Tier, TokenId};
use tiercel_simulation::{collect, request, simulate};

const CALM: [Level; Resource::ALL.len()] = [Level::None; Resource::ALL.len()];

/// Queries the engine's status for `ms` milliseconds and returns the highest pressure level of each resource.
async fn worst_within(engine: &EngineHandle, ms: u64) -> [Level; Resource::ALL.len()] {
    let mut worst = CALM;
    for _ in 0..ms {
        engine.clock().sleep_us(1_000).await;
        let now = engine.status().await.unwrap().pressure;
        for (worst, now) in worst.iter_mut().zip(now) {
            *worst = now.max(*worst);
        }
    }
    worst
}

fn prompt(number: u32) -> Vec<TokenId> {
    (0..32).map(|at| (7 * number + at) % 200).collect()
}

#[test]
fn a_full_engine_says_of_what_there_is_no_more_and_is_calm_when_it_is_over() {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Swap);
        laboratory.settings.scheduler.max_num_seqs = 4;
        laboratory.device.device_blocks = 48;
        laboratory.device.host_blocks = 12;
        // Make copies slow (20 ms for each block), and let at most 1 MiB of blocks be in transit at once.
        let block_bytes = laboratory.device.block_bytes();
        laboratory.device.profile.link_bytes_per_s = block_bytes as f64 * 50.0;
        laboratory.settings.preemption.max_in_transit_mib = 1;
        let engine = laboratory.start();
        assert_eq!(engine.status().await.unwrap().pressure, CALM);
        let mut readers = Vec::new();
        for number in 0..12 {
            let tier = if number < 4 { Tier::Background } else { Tier::Premium };
            let asked = tiercel_actors::Request { tier, ..request(&prompt(number), 120) };
            readers.push(actix_rt::spawn(collect(engine.submit(asked).await.unwrap())));
        }
        let [blocks, slots, host, copies, outputs] = worst_within(&engine, 3_000).await;
        assert_eq!([blocks, slots, host], [Level::Critical; 3]);
        // Copies and output buffers are under no pressure: all blocks together are less than the 1 MiB that may be in
        // transit, and every client reads its stream.
        assert_eq!([copies, outputs], [Level::None; 2]);
        for reader in readers {
            reader.await.unwrap();
        }
        settled(&engine).await;
        engine.clock().sleep_us(15_000_000).await;
        assert_eq!(engine.status().await.unwrap().pressure, CALM);
    });
}

#[test]
fn clients_that_do_not_read_are_pressure_until_they_do() {
    simulate(async |clock| {
        let mut laboratory = tight(clock, PreemptionMode::Swap);
        laboratory.settings.stream.buffer_tokens = 16;
        let engine = laboratory.start();
        let stream = engine.submit(request(&prompt(0), 60)).await.unwrap();
        let outputs = Resource::Outputs as usize;
        assert_eq!(worst_within(&engine, 2_000).await[outputs], Level::Critical);
        collect(stream).await;
        engine.clock().sleep_us(15_000_000).await;
        assert_eq!(engine.status().await.unwrap().pressure, CALM);
    });
}
