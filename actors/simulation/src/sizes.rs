//! Sizes of a simulated engine (of steps, queues and block pools), taken from the workload, the device profile or the
//! server's defaults.

use serde::{Deserialize, Serialize};
use std::fmt;
use tiercel_config::EngineSettings;
use tiercel_device::{MockProfile, ServerSizes};
use tiercel_workload::Pool;

/// Sizes of the engine in a simulation run: of steps, queues and block pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Maximum number of tokens in one step.
    pub max_num_batched_tokens: u32,
    /// Maximum number of sequences in one step.
    pub max_num_seqs: u32,
    /// Maximum number of requests in the engine.
    pub max_requests: u32,
    /// Maximum number of requests of one tier that wait for their first token.
    pub max_queued_requests_per_tier: u32,
    /// Maximum number of prompt tokens of all requests of one tier that wait for their first token.
    pub max_queued_tokens_per_tier: u64,
    /// Size of the device pool, KV blocks.
    pub device_blocks: u32,
    /// Size of the host pool, KV blocks; 0 means that there is no host pool.
    pub host_blocks: u32,
    /// Size of a KV block, tokens.
    pub block_size: u32,
}

impl Sizes {
    /// Collects the sizes (of steps, queues and block pools) of an engine with these settings on the device of
    /// `profile`.
    pub fn of(settings: &EngineSettings, pool: &Pool, profile: &MockProfile) -> Sizes {
        let EngineSettings { scheduler, admission, .. } = settings;
        Sizes {
            max_num_batched_tokens: scheduler.max_num_batched_tokens,
            max_num_seqs: scheduler.max_num_seqs,
            max_requests: admission.max_requests,
            max_queued_requests_per_tier: admission.max_queued_requests_per_tier,
            max_queued_tokens_per_tier: admission.max_queued_tokens_per_tier,
            device_blocks: pool.device_blocks.unwrap_or(profile.device_blocks),
            host_blocks: pool.host_blocks.unwrap_or(profile.host_blocks),
            block_size: profile.block_size,
        }
    }

    /// Writes the step and queue sizes that the workload states into the settings. A size that the workload omits is
    /// taken from the device profile. A size that both omit keeps its value in `settings`.
    pub fn apply(settings: &mut EngineSettings, pool: &Pool, profile: &MockProfile) {
        let ServerSizes {
            max_num_seqs,
            max_num_batched_tokens,
            max_requests,
            max_queued_requests_per_tier,
            max_queued_tokens_per_tier,
        } = profile.server;
        let EngineSettings { scheduler, admission, .. } = settings;
        for (size, stated) in [
            (&mut scheduler.max_num_seqs, pool.max_num_seqs.or(max_num_seqs)),
            (
                &mut scheduler.max_num_batched_tokens,
                pool.max_num_batched_tokens.or(max_num_batched_tokens),
            ),
            (&mut admission.max_requests, pool.max_requests.or(max_requests)),
            (
                &mut admission.max_queued_requests_per_tier,
                pool.max_queued_requests_per_tier.or(max_queued_requests_per_tier),
            ),
        ] {
            *size = stated.unwrap_or(*size);
        }
        let queued = pool.max_queued_tokens_per_tier.or(max_queued_tokens_per_tier);
        if let Some(tokens) = queued {
            admission.max_queued_tokens_per_tier = tokens;
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sizes { max_num_batched_tokens, max_num_seqs, max_requests, .. } = self;
        let Sizes { max_queued_requests_per_tier, max_queued_tokens_per_tier, .. } = self;
        let Sizes { device_blocks, host_blocks, block_size, .. } = self;
        write!(
            f,
            "{max_num_batched_tokens} tokens a step, {max_num_seqs} slots, {max_requests} requests, queues of \
             {max_queued_requests_per_tier} requests and {max_queued_tokens_per_tier} tokens a tier, \
             {device_blocks} device and {host_blocks} host blocks of {block_size} tokens"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_config::ServerSettings;

    #[test]
    fn a_workload_goes_before_the_profile_and_the_profile_before_a_servers_defaults() {
        let mut profile = MockProfile::named("tiny").expect("built in");
        let mut settings = EngineSettings::default();
        Sizes::apply(&mut settings, &Pool::default(), &profile);
        assert_eq!(settings, EngineSettings::default(), "the profile states no sizes");
        profile.server.max_num_batched_tokens = Some(512);
        profile.server.max_queued_tokens_per_tier = Some(99);
        let mut pool = Pool { host_blocks: Some(0), ..Pool::default() };
        Sizes::apply(&mut settings, &pool, &profile);
        let sizes = Sizes::of(&settings, &pool, &profile);
        assert_eq!((sizes.max_num_batched_tokens, sizes.max_queued_tokens_per_tier), (512, 99));
        assert_eq!((sizes.device_blocks, sizes.host_blocks), (profile.device_blocks, 0));
        pool.max_num_batched_tokens = Some(128);
        pool.max_queued_tokens_per_tier = Some(7);
        Sizes::apply(&mut settings, &pool, &profile);
        let sizes = Sizes::of(&settings, &pool, &profile);
        assert_eq!((sizes.max_num_batched_tokens, sizes.max_queued_tokens_per_tier), (128, 7));
        let told = "128 tokens a step, 64 slots, 1024 requests, queues of 1024 requests";
        assert!(sizes.to_string().starts_with(told), "{sizes}");
    }

    #[test]
    fn a_large_gpu_has_the_steps_of_a_server_with_a_gpu_and_queues_as_long_as_the_traffic() {
        for name in ["llama70b-tp8-a100", "llama70b-h100"] {
            let profile = MockProfile::named(name).expect("built in");
            let mut settings = EngineSettings::default();
            // If the workload states no sizes, all sizes come from the device profile.
            let pool = Pool::default();
            Sizes::apply(&mut settings, &pool, &profile);
            let sizes = Sizes::of(&settings, &pool, &profile);
            let on_gpu = ServerSettings::default().on_gpu().engine.scheduler;
            assert_eq!(sizes.max_num_batched_tokens, on_gpu.max_num_batched_tokens);
            assert_eq!(sizes.max_num_seqs, on_gpu.max_num_seqs);
            assert_eq!(
                (sizes.max_requests, sizes.max_queued_requests_per_tier),
                (100_000, 100_000)
            );
        }
    }
}
