//! Tests of the cost model: predicted times, and their correction by observed times.

use super::*;

fn a100() -> CostModel {
    let profile = DeviceProfile {
        step_base_us: 16_000.0,
        decode_token_us: 25.0,
        prefill_token_us: 100.0,
        kv_token_us: 0.025,
        prefill_context_us: 0.0026,
        link_bytes_per_s: 25e9,
    };
    CostModel::new(profile, &info())
}

fn info() -> DeviceInfo {
    DeviceInfo {
        name: "test".into(),
        block_size: 16,
        device_blocks: 100,
        host_blocks: 100,
        block_bytes: 16 * 320 * 1024,
        max_steps_in_flight: 1,
        max_model_len: 8192,
        vocab_size: 1000,
    }
}

#[test]
fn on_an_a100_a_round_trip_beats_a_prefill() {
    // Costs of preempting 2048 tokens with 320 KiB of KV each: a swap takes 27 ms each way at 25 GB/s, a recompute
    // 205 ms at 10,000 tokens/s.
    let model = a100();
    let one_way_ms = model.copy_us(128) / 1000.0;
    assert!((one_way_ms - 26.8).abs() < 0.1, "{one_way_ms}");
    assert!(model.swap_is_cheaper(2048));
}

#[test]
fn the_tokens_that_fit_a_time_are_as_many_as_take_it() {
    let model = a100();
    for computed in [0, 100, 16_000] {
        for us in [0.0, 50.0, 1_000.0, 90_000.0] {
            let tokens = model.prefill_tokens_in(us, computed);
            assert!(model.prefill_us(tokens, computed) <= us + 1e-6, "{computed} {us}");
            assert!(model.prefill_us(tokens + 1, computed) > us, "{computed} {us}");
        }
    }
    assert_eq!(model.prefill_tokens_in(f64::INFINITY, 7), u32::MAX);
    // Expected prefill time: 100 us per prompt token, and 2.6 ns per pair of a prompt token and an earlier token.
    assert!((model.prefill_us(1000, 8000) - (100_000.0 + 0.0026 * 8_499_500.0)).abs() < 1e-6);
}

#[test]
fn blocks_are_recomputed_at_the_price_of_their_depth() {
    let model = a100();
    let costs = model.resume_costs();
    // Check 256 and 512 blocks from the start of a sequence. Each token attends to all tokens before it, so the
    // second half costs more than the first.
    for (depths, tokens) in [(0..256, 4096), (0..512, 8192)] {
        let priced_us = costs.recompute_us(depths);
        assert!((priced_us / model.recompute_us(tokens) - 1.0).abs() < 1e-9, "{priced_us}");
    }
    let halves = [costs.recompute_us(0..256), costs.recompute_us(256..512)];
    assert!(halves[1] > halves[0] + 40_000.0, "{halves:?}");
}

#[test]
fn without_a_host_tier_nothing_is_swapped() {
    let profile = DeviceProfile { link_bytes_per_s: 0.0, ..a100().profile };
    assert!(!CostModel::new(profile, &info()).swap_is_cheaper(2048));
}

#[test]
fn observations_converge_on_the_real_speed() {
    let mut model = a100();
    let decodes = StepWork { decode_tokens: 10, kv_tokens: 1000, ..StepWork::default() };
    for _ in 0..200 {
        model.observe_step(&decodes, 2 * 16_275);
    }
    let predicted = model.step_us(&decodes);
    assert!((predicted / (2.0 * 16_275.0) - 1.0).abs() < 0.02, "{predicted}");
    assert!(model.error().step < 0.02, "{:?}", model.error());
}

#[test]
fn the_error_is_that_of_the_predictions() {
    let mut model = a100();
    // Every second step takes 10 % longer, so predictions settle between the two durations and are off by about 5 %
    // each time.
    for step in 0..1000 {
        model.observe_step(&StepWork::default(), if step % 2 == 0 { 16_000 } else { 17_600 });
    }
    let error = model.error().step;
    assert!((0.04..0.06).contains(&error), "{error}");
    assert_eq!(model.error().copy, 0.0, "nothing was copied");
    model.observe_copy(100, (2.0 * model.copy_us(100)) as u64);
    assert!((model.error().copy - 0.5).abs() < 0.01, "of one");
}

#[test]
fn a_device_far_from_what_it_said_is_learned_too() {
    for factor in [0.1, 10.0] {
        let mut model = a100();
        for _ in 0..2000 {
            model.observe_step(&StepWork::default(), (16_000.0 * factor) as u64);
        }
        let off = model.step_us(&StepWork::default()) / (16_000.0 * factor) - 1.0;
        assert!(off.abs() < 0.03, "{factor}: {off}");
    }
}

#[test]
fn corrections_are_bounded() {
    let mut model = a100();
    for _ in 0..10_000 {
        model.observe_copy(1, 1);
    }
    let slow = a100().copy_us(1000);
    assert!(model.copy_us(1000) >= slow / 100.0 && model.copy_us(1000) < slow);
}

/// Creates the cost model of a device that takes twice as long as it says. By its own figures, a step takes 100 us,
/// plus 7 us for each decode, 0.5 us for each KV token that a decode reads, 8 us for each prompt token, and 0.25 us for
/// each pair of a prompt token and an earlier token.
fn half_as_fast() -> CostModel {
    let profile = DeviceProfile {
        step_base_us: 100.0,
        decode_token_us: 7.0,
        prefill_token_us: 8.0,
        kv_token_us: 0.5,
        prefill_context_us: 0.25,
        link_bytes_per_s: 1e9,
    };
    let mut model = CostModel::new(profile, &info());
    model.steps.ratio = 2.0;
    model
}

#[test]
fn the_work_of_a_step_is_the_sum_of_its_decodes_and_prompts() {
    let mut work = StepWork::default();
    work.add_decode(30);
    work.add_decode(11);
    assert_eq!((work.decode_tokens, work.kv_tokens), (2, 41));
    // Pairs of a chunk's token and an earlier token: 12 * 10 + 66, and 5 * 3 + 10.
    work.add_prefill(12, 10);
    assert_eq!((work.prefill_tokens, work.prefill_context), (12, 186));
    work.add_prefill(5, 3);
    assert_eq!((work.prefill_tokens, work.prefill_context), (17, 211));
}

#[test]
fn the_time_of_a_step_is_the_sum_of_its_parts_times_the_correction() {
    let model = half_as_fast();
    let work =
        StepWork { decode_tokens: 3, kv_tokens: 40, prefill_tokens: 12, prefill_context: 186 };
    // 100 + 3 * 7 + 40 * 0.5 + 12 * 8 + 186 * 0.25 = 283.5 us by the device's own figures.
    assert_eq!(model.step_us(&work), 567.0);
    // A decode: 7 + 30 * 0.5 = 22 us.
    assert_eq!(model.decode_us(30), 44.0);
    // A chunk: 12 * 8 + 186 * 0.25 = 142.5 us.
    assert_eq!(model.prefill_us(12, 10), 285.0);
    // A request: 12 * 8 + 66 * 0.25 = 112.5 us for its prompt, and 5 decodes of 22 us.
    assert_eq!(model.request_us(12, 5.0, 30), 445.0);
}

#[test]
fn exactly_the_tokens_that_take_a_time_fit_into_it() {
    let model = half_as_fast();
    // 12 tokens after 10 take 285 us, as in the test above; all figures of the solution are exact in `f64`.
    assert_eq!(model.prefill_tokens_in(285.0, 10), 12);
    assert_eq!(model.prefill_tokens_in(284.0, 10), 11);
}

#[test]
fn a_prompt_fits_into_the_time_that_it_takes() {
    let mut model = a100();
    for observed_us in [16_000, 17_123, 23_456] {
        model.observe_step(&StepWork::default(), observed_us);
        for (tokens, computed) in (1..2_000).flat_map(|n| [(n, 0), (n, 77), (n, 4_096)]) {
            let us = model.prefill_us(tokens, computed);
            assert_eq!(model.prefill_tokens_in(us, computed), tokens, "after {computed}");
        }
    }
}

#[test]
fn the_correction_settles_a_little_on_the_side_of_the_devices_own_figures() {
    for (factor, settled) in [(2.0, 1.98..2.0), (0.5, 0.5..0.505)] {
        let mut model = a100();
        for _ in 0..2000 {
            model.observe_step(&StepWork::default(), (16_000.0 * factor) as u64);
        }
        let correction = model.step_correction();
        assert!(settled.contains(&correction) && correction != factor, "{factor}: {correction}");
    }
}

#[test]
fn a_device_that_states_no_speeds_has_nothing_to_correct() {
    let profile = DeviceProfile {
        step_base_us: 0.0,
        decode_token_us: 0.0,
        prefill_token_us: 0.0,
        kv_token_us: 0.0,
        prefill_context_us: 0.0,
        link_bytes_per_s: 0.0,
    };
    let mut model = CostModel::new(profile, &info());
    model.observe_step(&StepWork::default(), 300);
    assert_eq!(model.step_correction(), 1.0);
    assert_eq!(model.error().step, 1.0, "a prediction of 0 is wrong by all of the time");
}
