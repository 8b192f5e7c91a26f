//! Settings of the engine, which the policy and the actors read. They are plain data; [`EngineSettings::check`] checks
//! every bound.

use crate::SettingsError;
use crate::patience::PatienceSettings;
use crate::policy::{PreemptionSettings, SchedulerSettings};
use crate::pressure::PressureSettings;
use crate::reservation::ReservationSettings;
use crate::shares::SharesSettings;
use crate::shedding::SheddingSettings;
use crate::slo::SloSettings;
use serde::{Deserialize, Serialize};

/// All settings of the engine. With the device they are all that the engine needs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Settings of batching and of the order of service.
    pub scheduler: SchedulerSettings,
    /// Settings of preemption: which sequences become victims and what happens to them.
    pub preemption: PreemptionSettings,
    /// Settings of the prefix cache: reuse of KV blocks between requests.
    pub prefix_cache: PrefixCacheSettings,
    /// Settings of shedding, and of requests whose first token would be late.
    pub shedding: SheddingSettings,
    /// Patience by tier: longest wait of a request for its first token before it is turned away.
    pub patience: PatienceSettings,
    /// Share of the device's time that each tier is due.
    pub shares: SharesSettings,
    /// Limits of requests in the engine and in its queues.
    pub admission: AdmissionSettings,
    /// Latency targets of the tiers.
    pub slo: SloSettings,
    /// Blocks and slots that are reserved for a tier.
    pub reservation: ReservationSettings,
    /// Thresholds of resource use from which the engine counts as under pressure.
    pub pressure: PressureSettings,
    /// Settings of the response streams to clients.
    pub stream: StreamSettings,
}

/// Settings of the prefix cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrefixCacheSettings {
    /// Whether requests of one tenant share the blocks of equal prefixes.
    pub enabled: bool,
}

impl Default for PrefixCacheSettings {
    fn default() -> Self {
        PrefixCacheSettings { enabled: true }
    }
}

/// Limits of requests in the engine and in its queues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionSettings {
    /// Most requests in the engine, waiting and running, of all tiers. The last eighth is reserved for premium, the
    /// eighth before it for premium and standard.
    pub max_requests: u32,
    /// Most requests of one tier waiting for their first token.
    pub max_queued_requests_per_tier: u32,
    /// Most prompt tokens of one tier waiting for their first token.
    pub max_queued_tokens_per_tier: u64,
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        AdmissionSettings {
            max_requests: 1024,
            max_queued_requests_per_tier: 256,
            max_queued_tokens_per_tier: 1 << 20,
        }
    }
}

/// Settings of the response streams to clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSettings {
    /// Size of the buffer of a response stream, tokens. While a client reads so slowly that the buffer is nearly full,
    /// its request is held.
    pub buffer_tokens: u32,
    /// Timeout of a client that reads nothing while its buffer is nearly full, ms. Its request then ends.
    pub stall_timeout_ms: u64,
}

impl Default for StreamSettings {
    fn default() -> Self {
        StreamSettings { buffer_tokens: 128, stall_timeout_ms: 60_000 }
    }
}

impl EngineSettings {
    /// Checks that every setting of the engine is in its range.
    ///
    /// # Errors
    /// Fails if a field is out of its range. The error names the first such field and the range.
    pub fn check(&self) -> Result<(), SettingsError> {
        let s = &self.scheduler;
        range("scheduler.max_num_seqs", s.max_num_seqs, 1, 4096)?;
        range("scheduler.max_num_batched_tokens", s.max_num_batched_tokens, 1, 65_536)?;
        range("scheduler.steps_in_flight", s.steps_in_flight, 1, 2)?;
        if s.max_num_batched_tokens < s.max_num_seqs {
            return Err(SettingsError::Conflict {
                field: "scheduler.max_num_batched_tokens",
                why: "must be at least scheduler.max_num_seqs, or a step could not hold one \
                      token of every running sequence",
            });
        }
        let background = s.background_prefill_percent;
        range("scheduler.background_prefill_percent", background, 1, 100)?;
        range("scheduler.watermark_percent", s.watermark_percent, 0.0, 50.0)?;
        let background = s.background_watermark_percent;
        range("scheduler.background_watermark_percent", background, 0.0, 50.0)?;
        range("scheduler.chunk_alignment", s.chunk_alignment, 0, 1024)?;
        range("scheduler.long_prefill_percent", s.long_prefill_percent, 0.0, 100.0)?;
        range("scheduler.ageing_s", s.ageing_s, 0.0, 86_400.0)?;
        let unit = self.preemption.victim_gives_blocks;
        range("preemption.victim_gives_blocks", unit, 1, 65_536)?;
        range("preemption.mirror_percent", self.preemption.mirror_percent, 0, 100)?;
        range("preemption.max_in_transit_mib", self.preemption.max_in_transit_mib, 1, 65_536)?;
        self.patience.check()?;
        range("shedding.load_percent", self.shedding.load_percent, 10.0, 100.0)?;
        self.shares.check()?;
        range("admission.max_requests", self.admission.max_requests, 1, 100_000)?;
        let queued = self.admission.max_queued_requests_per_tier;
        range("admission.max_queued_requests_per_tier", queued, 1, 100_000)?;
        self.slo.check()?;
        self.reservation.check()?;
        self.pressure.check()?;
        range("stream.buffer_tokens", self.stream.buffer_tokens, 16, 65_536)?;
        range("stream.stall_timeout_ms", self.stream.stall_timeout_ms, 100, 86_400_000)?;
        Ok(())
    }
}

/// Returns `Ok` if `low <= value <= high`, otherwise an error that names the field and the range.
pub(crate) fn range<T: PartialOrd + std::fmt::Display>(
    field: &'static str,
    value: T,
    low: T,
    high: T,
) -> Result<(), SettingsError> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(SettingsError::Range {
        field,
        value: value.to_string(),
        allowed: format!("{low} to {high}"),
    })
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
    fn nan_is_out_of_range() {
        let mut settings = EngineSettings::default();
        settings.scheduler.watermark_percent = f64::NAN;
        assert!(settings.check().is_err());
    }
}
