//! How much memory a KV cache may take when nobody says.

use crate::arch::ModelConfig;
use crate::weights::Checkpoint;
use tiercel_gpu::WeightFormat;

/// Taken when the system does not tell what is free.
const FALLBACK_BYTES: u64 = 1 << 30;
/// Share of free memory, after the weights, that the KV cache takes by itself: the rest is for the
/// page cache and for other programs.
const SHARE: u64 = 3;

/// Memory that could be used without swapping.
pub(super) fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// A third of what is free beside the weights, but no more than `wanted` can use.
pub(super) fn kv_bytes(weights: u64, wanted: u64) -> u64 {
    let free = available_bytes().map(|free| free.saturating_sub(weights) / SHARE);
    free.unwrap_or(FALLBACK_BYTES).min(wanted)
}

/// About how many bytes the packed weights will take.
pub(super) fn weight_bytes(checkpoint: &Checkpoint, format: WeightFormat) -> u64 {
    let parameters = checkpoint.config().parameters();
    match format {
        WeightFormat::F32 => parameters * 4,
        WeightFormat::Bf16 => parameters * 2,
        WeightFormat::Q8_0 => parameters * 9 / 8,
        WeightFormat::Auto | WeightFormat::Native => checkpoint.bytes() * 3 / 2,
    }
}

/// Tokens that every sequence of a full batch needs at its longest.
pub(super) fn tokens_wanted(config: &ModelConfig, max_len: usize, max_num_seqs: usize) -> u64 {
    (config.max_positions.min(max_len) as u64).saturating_mul(max_num_seqs as u64)
}
