//! A cost model and sequences for the tests of budgets.

use crate::scheduler::cost::CostModel;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::tests::{BLOCK, sequence};
use tiercel_device::{DeviceInfo, DeviceProfile, Tier, Timestamp};

/// Returns the cost model of a device whose steps take 100 us, plus 7 us for each decode, 0.5 us for each KV token that
/// a decode reads, 8 us for each prompt token, and 0.25 us for each pair of a prompt token and an earlier token of its
/// sequence.
pub(crate) fn cost() -> CostModel {
    let profile = DeviceProfile {
        step_base_us: 100.0,
        decode_token_us: 7.0,
        prefill_token_us: 8.0,
        kv_token_us: 0.5,
        prefill_context_us: 0.25,
        link_bytes_per_s: 1e9,
    };
    let info = DeviceInfo {
        name: "test".into(),
        block_size: BLOCK,
        device_blocks: 100,
        host_blocks: 100,
        block_bytes: 1000,
        max_steps_in_flight: 1,
        max_model_len: 1000,
        vocab_size: 100,
    };
    CostModel::new(profile, &info)
}

/// Creates a running sequence of `tokens` prompt tokens that arrived at `id` us; the KV of the first `computed` tokens
/// is valid.
pub(crate) fn prompt(id: u64, tier: Tier, tokens: u32, computed: u32) -> Sequence {
    let mut prompt = Sequence::new(sequence(id, tier, tokens), BLOCK);
    prompt.phase = Phase::Running;
    prompt.kv.computed = computed;
    prompt
}

/// Creates a running sequence that decodes: it has `prompt_len` prompt tokens and `output` output tokens, the first of
/// which came at `first_at` us.
pub(crate) fn stream(
    id: u64,
    tier: Tier,
    (prompt_len, output): (u32, u32),
    first_at: u64,
) -> Sequence {
    let mut stream = prompt(id, tier, prompt_len, prompt_len + output - 1);
    for _ in 0..output {
        stream.push(1, Timestamp(first_at), BLOCK);
    }
    stream
}

/// Checks that a computed figure is the expected one, up to rounding errors.
pub(crate) fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
}
