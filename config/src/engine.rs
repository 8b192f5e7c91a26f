//! Settings of the engine: what the policy and the actors read. Plain data; [`EngineSettings::check`]
//! states every bound.

use crate::SettingsError;
use crate::patience::PatienceSettings;
use crate::policy::{PreemptionSettings, SchedulerSettings};
use crate::pressure::PressureSettings;
use crate::reservation::ReservationSettings;
use crate::shares::SharesSettings;
use crate::shedding::SheddingSettings;
use crate::slo::SloSettings;
use serde::{Deserialize, Serialize};

/// Everything the engine needs to know beside the device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Batching and ordering.
    pub scheduler: SchedulerSettings,
    /// What happens to a victim.
    pub preemption: PreemptionSettings,
    /// Reuse of KV blocks between requests.
    pub prefix_cache: PrefixCacheSettings,
    /// Requests for which there is no time.
    pub shedding: SheddingSettings,
    /// How long requests wait for a first token rather than be turned away.
    pub patience: PatienceSettings,
    /// Which share of the device each tier is due.
    pub shares: SharesSettings,
    /// Queue limits.
    pub admission: AdmissionSettings,
    /// Latency targets.
    pub slo: SloSettings,
    /// Blocks and places that are kept for a tier.
    pub reservation: ReservationSettings,
    /// From when on the engine counts as under pressure.
    pub pressure: PressureSettings,
    /// Token streams to clients.
    pub stream: StreamSettings,
}

/// Prefix caching.
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

/// Queue limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionSettings {
    /// Most requests in the engine, waiting and running, all tiers. The last eighth is kept for premium, the
    /// eighth before it from background.
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

/// Token streams to clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSettings {
    /// Tokens buffered for a client that reads slowly; its request pauses when nearly full.
    pub buffer_tokens: u32,
    /// A request whose client reads nothing for this long ends, ms.
    pub stall_timeout_ms: u64,
}

impl Default for StreamSettings {
    fn default() -> Self {
        StreamSettings { buffer_tokens: 128, stall_timeout_ms: 60_000 }
    }
}

impl EngineSettings {
    /// Checks every bound.
    ///
    /// # Errors
    /// Names the first field out of its range and the range.
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

/// `Ok` if `low <= value <= high`.
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
