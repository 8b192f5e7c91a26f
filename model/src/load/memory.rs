//! Default size of the KV cache in the CPU's memory, used if no setting states it.

use crate::arch::ModelConfig;
use tiercel_gpu::available_bytes;

/// Size of the KV cache, bytes, if the operating system does not tell how much memory is free.
const FALLBACK_BYTES: u64 = 1 << 30;
/// Divisor of the free memory: by default the KV cache takes a third of the memory that weights, activations and the
/// host pool leave. The rest is for the page cache and other programs.
const SHARE: u64 = 3;

/// Returns the default size of the KV cache, bytes: a third of the free memory after `taken` bytes for weights,
/// activations and the host pool, but at most the `wanted` bytes that a full batch can use.
pub(super) fn kv_bytes(taken: u64, wanted: u64) -> u64 {
    share(available_bytes(), taken).min(wanted)
}

fn share(available: Option<u64>, taken: u64) -> u64 {
    available.map_or(FALLBACK_BYTES, |free| free.saturating_sub(taken) / SHARE)
}

/// Returns the number of tokens whose KV a full batch of sequences of the longest length needs.
pub(super) fn tokens_wanted(config: &ModelConfig, max_len: usize, max_num_seqs: usize) -> u64 {
    (config.max_positions.min(max_len) as u64).saturating_mul(max_num_seqs as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_shares_what_the_rest_leaves() {
        assert_eq!(share(Some(1_000), 400), 200);
        assert_eq!(share(Some(1_000), 4_000), 0);
        assert_eq!(share(None, 4_000), FALLBACK_BYTES);
        assert_eq!(kv_bytes(0, 7), 7);
    }
}
