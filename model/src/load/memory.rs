//! How much memory a KV cache may take when nobody says.

use crate::arch::ModelConfig;
use tiercel_gpu::available_bytes;

/// Taken when the system does not tell what is free.
const FALLBACK_BYTES: u64 = 1 << 30;
/// Share of free memory, after all else, that the KV cache takes by itself: the rest is for the
/// page cache and for other programs.
const SHARE: u64 = 3;

/// A third of what is free beside what else will be `taken`, but no more than `wanted` can use.
pub(super) fn kv_bytes(taken: u64, wanted: u64) -> u64 {
    share(available_bytes(), taken).min(wanted)
}

fn share(available: Option<u64>, taken: u64) -> u64 {
    available.map_or(FALLBACK_BYTES, |free| free.saturating_sub(taken) / SHARE)
}

/// Tokens that every sequence of a full batch needs at its longest.
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
