//! Default sizes of KV memory on the host, used if no setting states them: the KV cache of the CPU, and the host pool
//! of a GPU.

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

/// Divisor of the free host memory: by default the host pool of a GPU takes half of it.
const HOST_POOL_SHARE: u64 = 2;
/// Most bytes of the host pool of a GPU for each byte of the KV cache on the device, if no setting states its size. A
/// larger pool would hold KV of more preempted requests than can wait for the device.
const HOST_POOL_MOST: u64 = 2;

/// Returns the default size of a GPU's host pool, bytes, beside a KV cache of `kv_bytes` bytes on the device; 0 if the
/// operating system does not tell how much memory is free.
pub(super) fn host_pool_bytes(kv_bytes: u64) -> u64 {
    host_pool_share(available_bytes(), kv_bytes)
}

fn host_pool_share(available: Option<u64>, kv_bytes: u64) -> u64 {
    (available.unwrap_or(0) / HOST_POOL_SHARE).min(kv_bytes.saturating_mul(HOST_POOL_MOST))
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

    #[test]
    fn the_host_pool_takes_half_of_what_is_free_and_has_a_cap() {
        assert_eq!(host_pool_share(Some(1_000), 10_000), 500);
        assert_eq!(host_pool_share(Some(1_000), 100), 200);
        assert_eq!(host_pool_share(None, 100), 0);
    }
}
