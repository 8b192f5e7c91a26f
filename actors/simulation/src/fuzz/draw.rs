//! Draws the device and the engine settings of a fuzzing scenario.

use super::crowd;
use super::dice::Dice;
use super::knobs;
use super::scenario::{DrainPlan, Scenario};
use tiercel_config::{EngineSettings, PreemptionMode, SloSettings, Target};
use tiercel_device::{HostCosts, MockFaults, MockProfile, ServerSizes, StepId, StepNoise};

impl Scenario {
    /// Draws the fuzzing scenario that a seed determines.
    pub fn draw(seed: u64) -> Scenario {
        let mut dice = Dice::new(seed, 1);
        let profile = profile(&mut dice);
        let mut scenario = Scenario {
            seed,
            settings: settings(&mut dice, profile.block_size),
            profile,
            noise_sigma: dice.pick(&[0.0, 0.0, 0.1, 0.5]),
            faults: faults(&mut dice),
            clients: Vec::new(),
            orders: Vec::new(),
            drain: DrainPlan::AtTheEnd,
        };
        crowd::gather(&mut scenario);
        scenario
    }
}

/// Draws the profile of a mock device whose block pool holds between one and three sequences of the greatest length, so
/// that memory is short.
fn profile(dice: &mut Dice) -> MockProfile {
    let block_size = dice.pick(&[1, 2, 3, 4, 4, 8, 16]);
    let longest = dice.between(2..=24);
    let max_model_len = (longest * block_size - dice.between(0..=block_size - 1)).max(3);
    let spare = dice.pick(&[0, 1, 2, longest / 2, longest / 2, longest, longest, 2 * longest]);
    let device_blocks = max_model_len.div_ceil(block_size) + spare;
    // In some scenarios the device pool lacks one block for the longest sequence, so that the engine must refuse
    // requests of that length.
    let lacking = u32::from(spare == 0 && dice.chance(0.3));
    // No block is larger than 1 MiB, the smallest limit of bytes in transit (`max_in_transit_mib`), so that each can be
    // swapped.
    let block_bytes: u64 = dice.pick(&[4 << 10, 256 << 10, 1 << 20]);
    let copy_us = dice.pick(&[1.0, 60.0, 1_000.0, 8_000.0]);
    MockProfile {
        name: "fuzz".to_owned(),
        step_base_us: dice.pick(&[50.0, 200.0, 2_000.0]),
        decode_token_us: 2.0,
        prefill_token_us: dice.pick(&[1.0, 20.0]),
        kv_token_us: 0.001,
        prefill_context_us: 0.0001,
        prefill_step_us: 0.0,
        link_bytes_per_s: block_bytes as f64 / copy_us * 1e6,
        kv_bytes_per_token: block_bytes / u64::from(block_size),
        block_size,
        device_blocks: (device_blocks - lacking).max(1),
        host_blocks: dice.pick(&[0, 1, longest / 2, longest, 3 * longest, 3 * longest]),
        vocab_size: dice.pick(&[2, 10, 1000]),
        max_model_len,
        max_steps_in_flight: dice.pick(&[1, 2]),
        pace: Vec::new(),
        server: ServerSizes::default(),
        told: None,
        host: HostCosts::default(),
        noise: StepNoise::default(),
    }
}

fn settings(dice: &mut Dice, block_size: u32) -> EngineSettings {
    let max_num_seqs = dice.pick(&[1, 2, 4, 8, 8, 64]);
    let beyond = dice.pick(&[0, 1, block_size, 3 * block_size, 64]);
    let (swap, recompute) = (PreemptionMode::Swap, PreemptionMode::Recompute);
    let mode = if dice.chance(0.05) {
        PreemptionMode::Drop
    } else {
        dice.pick(&[PreemptionMode::Auto, swap, swap, recompute])
    };
    // The engine settings start from their defaults, and only the settings drawn at random are overwritten; so settings
    // added to the engine later keep their defaults here.
    let mut settings = EngineSettings::default();
    let scheduler = &mut settings.scheduler;
    scheduler.max_num_seqs = max_num_seqs;
    scheduler.max_num_batched_tokens = max_num_seqs + beyond;
    knobs::policy(dice, &mut settings, block_size);
    settings.preemption.mode = mode;
    settings.preemption.max_in_transit_mib = dice.pick(&[1, 256]);
    settings.prefix_cache.enabled = dice.chance(0.75);
    settings.admission.max_requests = if dice.chance(0.1) { 4 } else { 1024 };
    settings.admission.max_queued_requests_per_tier = if dice.chance(0.1) { 2 } else { 256 };
    settings.admission.max_queued_tokens_per_tier = if dice.chance(0.1) { 20 } else { 1 << 20 };
    settings.stream.buffer_tokens = dice.pick(&[16, 17, 128]);
    settings.stream.stall_timeout_ms = dice.pick(&[100, 300]);
    targets(dice, &mut settings.slo);
    settings
}

/// Draws the latency targets of the tiers: derived from the device's speed, just within reach of the fastest device,
/// out of reach, or none.
fn targets(dice: &mut Dice, slo: &mut SloSettings) {
    let factor = dice.pick(&[None, Some(0.02), Some(0.001)]);
    let SloSettings { premium, standard, background, .. } = slo;
    for (target, stated_ms) in [
        (&mut premium.ttft_ms, 200.0),
        (&mut premium.tpot_ms, 30.0),
        (&mut premium.e2e_ms, 5_000.0),
        (&mut standard.ttft_ms, 500.0),
        (&mut standard.tpot_ms, 80.0),
        (&mut standard.e2e_ms, 15_000.0),
        (&mut background.e2e_ms, 60_000.0),
    ] {
        *target = match factor {
            _ if dice.chance(0.1) => Target::None,
            None => Target::Auto,
            Some(factor) => Target::Ms(stated_ms * factor),
        };
    }
}

fn faults(dice: &mut Dice) -> MockFaults {
    if dice.chance(0.4) {
        return MockFaults::default();
    }
    MockFaults {
        copy_fails: dice.pick(&[0.0, 0.1, 0.5, 1.0]),
        copy_slow: dice.pick(&[0.0, 0.3]),
        step_fails: dice.pick(&[0.0, 0.0, 0.02, 0.2]),
        step_slow: dice.pick(&[0.0, 0.05]),
        slow_factor: dice.pick(&[2.0, 10.0]),
        lost_at_step: dice.chance(0.03).then(|| StepId(u64::from(dice.between(1..=150)))),
        mask_late: dice.pick(&[0.0, 0.0, 0.05, 0.5]),
        timed: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Act, Failure, Summary};
    use tiercel_config::Policy;

    #[test]
    fn every_scenario_is_one_that_an_engine_may_be_asked_to_serve() {
        for seed in 0..500 {
            let scenario = Scenario::draw(seed);
            for settings in scenario.all_settings() {
                settings.check().expect("settings are within their ranges");
            }
            assert!((5..=40).contains(&scenario.clients.len()), "seed {seed}");
            assert!(scenario.profile.device_blocks > 0 && scenario.profile.kv_bytes_per_token > 0);
        }
    }

    /// Plays a scenario and returns what the clients got. The time at which the last order was given does not count.
    fn played(scenario: &Scenario) -> Result<Summary, Failure> {
        scenario.run().map(|summary| Summary { simulated_us: 0, ..summary })
    }

    /// Whether one of the scenarios of the seeds below `seeds` plays otherwise without the orders that `leave_out`
    /// names.
    fn matters(seeds: u64, leave_out: fn(&Act) -> bool) -> bool {
        (0..seeds).map(Scenario::draw).any(|scenario| {
            let mut other = scenario.clone();
            other.orders.retain(|order| !leave_out(&order.act));
            other.orders.len() < scenario.orders.len() && played(&other) != played(&scenario)
        })
    }

    #[test]
    fn keys_that_are_read_again_change_what_clients_get_and_looks_do_not() {
        assert!(matters(2_000, |act| matches!(act, Act::ReloadKeys { may_tighten: true, .. })));
        assert!(matters(2_000, |act| matches!(act, Act::ReloadKeys { may_tighten: false, .. })));
        assert!(!matters(300, |act| matches!(act, Act::Look { .. })));
    }

    #[test]
    fn every_policy_and_mode_is_drawn() {
        let drawn: Vec<Scenario> = (0..200).map(Scenario::draw).collect();
        for (policy, name) in Policy::ALL {
            assert!(drawn.iter().any(|s| s.settings.scheduler.policy == *policy), "{name}");
        }
        for mode in [
            PreemptionMode::Auto,
            PreemptionMode::Swap,
            PreemptionMode::Recompute,
            PreemptionMode::Drop,
        ] {
            assert!(drawn.iter().any(|s| s.settings.preemption.mode == mode), "{mode:?}");
        }
    }
}
