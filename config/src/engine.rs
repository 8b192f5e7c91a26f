//! Settings of the engine, which the policy and the actors read. They are plain data; [`EngineSettings::check`] checks
//! every bound.

use crate::SettingsError;
use crate::declare::SettingsTable;
use crate::patience::PatienceSettings;
use crate::policy::{PreemptionSettings, SchedulerSettings};
use crate::pressure::PressureSettings;
use crate::reservation::ReservationSettings;
use crate::shares::SharesSettings;
use crate::shedding::SheddingSettings;
use crate::slo::SloSettings;

settings! {
    /// All settings of the engine. With the device they are all that the engine needs.
    pub struct EngineSettings {
        tables {
            /// Settings of batching and of the order of service.
            scheduler: SchedulerSettings;
            /// Settings of preemption: which sequences become victims and what happens to them.
            preemption: PreemptionSettings;
            /// Settings of shedding, and of requests whose first token would be late.
            shedding: SheddingSettings;
            /// Patience by tier: longest wait of a request for its first token before it is turned away.
            patience: PatienceSettings;
            /// Share of the device's time that each tier is due.
            shares: SharesSettings;
            /// Settings of the prefix cache: reuse of KV blocks between requests.
            prefix_cache: PrefixCacheSettings;
            /// Limits of requests in the engine and in its queues.
            admission: AdmissionSettings;
            /// Latency targets of the tiers.
            slo: SloSettings;
            /// Blocks and slots that are reserved for a tier.
            reservation: ReservationSettings;
            /// Thresholds of resource use from which the engine counts as under pressure.
            pressure: PressureSettings;
            /// Settings of the response streams to clients.
            stream: StreamSettings;
        }
    }
}

settings! {
    /// Settings of the prefix cache.
    pub struct PrefixCacheSettings {
        /// Whether requests of one tenant share the KV blocks of equal prefixes of their prompts.
        enabled: bool = true;
    }
}

settings! {
    /// Limits of requests in the engine and in its queues.
    pub struct AdmissionSettings {
        /// Most requests in the engine, waiting and running. The last eighth is reserved for premium, the eighth before
        /// it for premium and standard.
        max_requests: u32 = 1024, in 1..=100_000;
        /// Most requests of one tier that may wait for their first token; further ones are refused.
        max_queued_requests_per_tier: u32 = 1024, in 1..=100_000;
        /// Most prompt tokens that the requests of one tier waiting for their first token may have; further requests
        /// are refused. Of a request with several prompts or choices, only the first prompt counts.
        max_queued_tokens_per_tier: u64 = 1 << 20, in 1..=1 << 40;
    }
}

settings! {
    /// Settings of the response streams to clients.
    pub struct StreamSettings {
        /// Size of a response stream's buffer, tokens. While a client reads so slowly that the buffer is nearly full,
        /// its request is held.
        buffer_tokens: u32 = 128, in 16..=65_536;
        /// Time after which a request ends if its client reads nothing, ms.
        stall_timeout_ms: u64 = 60_000, in 100..=86_400_000;
    }
}

impl EngineSettings {
    /// Names of the tables that hold the engine's settings.
    pub const TABLES: &[&str] = <EngineSettings as SettingsTable>::TABLES;

    /// Checks that every setting of the engine is in its range and that the rules between settings are kept.
    ///
    /// # Errors
    /// Fails if a setting cannot be used. The error names the first such setting and what is allowed.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.check_ranges()?;
        if self.scheduler.max_num_batched_tokens < self.scheduler.max_num_seqs {
            return Err(SettingsError::Conflict {
                field: "scheduler.max_num_batched_tokens",
                why: "must be at least scheduler.max_num_seqs, or a step could not hold one \
                      token of every running sequence",
            });
        }
        self.shares.check()?;
        self.slo.check()?;
        self.reservation.check()?;
        self.pressure.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        EngineSettings::default().check().expect("defaults are within their ranges");
    }

    #[test]
    fn an_error_names_field_value_and_range() {
        let mut settings = EngineSettings::default();
        settings.scheduler.max_num_seqs = 0;
        let error = settings.check().expect_err("0 is out of range").to_string();
        assert!(error.contains("scheduler.max_num_seqs"), "{error}");
        assert!(error.contains("1 to 4096"), "{error}");
    }

    #[test]
    fn an_error_names_the_table_within_a_table() {
        let mut settings = EngineSettings::default();
        settings.slo.standard.ttft_prompt_tokens = u32::MAX;
        let error = settings.check().expect_err("too many tokens").to_string();
        assert_eq!(
            error,
            "slo.standard.ttft_prompt_tokens = 4294967295 is out of range: allowed is 0 to 16777216"
        );
    }

    #[test]
    fn nan_is_out_of_range() {
        let mut settings = EngineSettings::default();
        settings.scheduler.watermark_percent = f64::NAN;
        assert!(settings.check().is_err());
    }
}
