//! Settings of the engine: what the policy and the actors read. Plain data; [`EngineSettings::check`]
//! states every bound.

use crate::SettingsError;
use crate::patience::PatienceSettings;
use crate::policy::{PreemptionSettings, SchedulerSettings};
use crate::pressure::PressureSettings;
use crate::reservation::ReservationSettings;
use crate::shares::SharesSettings;
use crate::shedding::SheddingSettings;
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

/// Latency targets of the tiers that have any.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloSettings {
    /// Targets of the premium tier.
    pub premium: SloTargets,
    /// Targets of the standard tier.
    pub standard: SloTargets,
    /// Targets of the background tier.
    pub background: SloTargets,
    /// Length of the sliding windows, s.
    pub window_s: u64,
    /// Most pairs of tenant and tier that have windows of their own; 0 for none.
    pub max_tenants: u32,
    /// Whether requests may ask for more than their tier promises. All in a step pay for the tightest target in
    /// it, so this is for servers whose clients are trusted.
    pub requests_may_tighten: bool,
}

impl Default for SloSettings {
    fn default() -> Self {
        SloSettings {
            premium: SloTargets {
                ttft_ms: Some(200.0),
                tpot_ms: Some(30.0),
                e2e_ms: Some(5_000.0),
                assurance: Some(ASSURANCE),
                ..SloTargets::default()
            },
            standard: SloTargets {
                ttft_ms: Some(500.0),
                tpot_ms: Some(80.0),
                e2e_ms: Some(15_000.0),
                ..SloTargets::default()
            },
            background: SloTargets { e2e_ms: Some(60_000.0), ..SloTargets::default() },
            window_s: 60,
            max_tenants: 0,
            requests_may_tighten: false,
        }
    }
}

/// Latency targets of one tier; `None` promises nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloTargets {
    /// Time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Mean time per output token after the first, ms.
    pub tpot_ms: Option<f64>,
    /// Arrival to last token, ms.
    pub e2e_ms: Option<f64>,
    /// Added to `ttft_ms` for every prompt token beyond `ttft_prompt_tokens`, ms.
    pub ttft_ms_per_token: f64,
    /// See `ttft_ms_per_token`.
    pub ttft_prompt_tokens: u32,
    /// Of the premium tier only: share of the steps in which its streams' reserve covers what its own prompts take from
    /// them; `None` for the default.
    pub assurance: Option<f64>,
}

/// [`SloTargets::assurance`] by default.
const ASSURANCE: f64 = 0.999;

impl SloSettings {
    /// Share of the steps in which the reserve of premium streams covers their lag, 0.9 to 0.9999.
    pub fn assurance(&self) -> f64 {
        self.premium.assurance.unwrap_or(ASSURANCE)
    }
}

impl SloTargets {
    /// The targets of a request with a prompt of this length.
    #[must_use]
    pub fn of_prompt(&self, prompt_tokens: u32) -> SloTargets {
        let beyond = prompt_tokens.saturating_sub(self.ttft_prompt_tokens);
        let added_ms = self.ttft_ms_per_token * f64::from(beyond);
        SloTargets { ttft_ms: self.ttft_ms.map(|ms| ms + added_ms), ..*self }
    }

    /// These, the tier's, with what a request asks for instead: anything if it `may_tighten` them, otherwise only
    /// what promises less.
    #[must_use]
    pub fn asked(&self, asked: &SloTargets, may_tighten: bool) -> SloTargets {
        let pick = |own: Option<f64>, asked: Option<f64>| match (own, asked) {
            (_, Some(asked)) if may_tighten => Some(asked),
            (Some(own), Some(asked)) => Some(own.max(asked)),
            (own, _) => own,
        };
        SloTargets {
            ttft_ms: pick(self.ttft_ms, asked.ttft_ms),
            tpot_ms: pick(self.tpot_ms, asked.tpot_ms),
            e2e_ms: pick(self.e2e_ms, asked.e2e_ms),
            ..*self
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
        range("slo.window_s", self.slo.window_s, 1, 3_600)?;
        range("slo.max_tenants", self.slo.max_tenants, 0, 256)?;
        let per_token =
            |field, targets: &SloTargets| range(field, targets.ttft_ms_per_token, 0.0, 1_000.0);
        per_token("slo.premium.ttft_ms_per_token", &self.slo.premium)?;
        per_token("slo.standard.ttft_ms_per_token", &self.slo.standard)?;
        per_token("slo.background.ttft_ms_per_token", &self.slo.background)?;
        range("slo.premium.assurance", self.slo.assurance(), 0.9, 0.9999)?;
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
    fn a_request_may_promise_itself_less_and_more_only_where_it_is_trusted() {
        let own = SloTargets {
            ttft_ms: Some(200.0),
            e2e_ms: Some(900.0),
            ttft_ms_per_token: 0.5,
            ttft_prompt_tokens: 100,
            ..SloTargets::default()
        };
        assert_eq!(own.of_prompt(100), own);
        assert_eq!(own.of_prompt(300).ttft_ms, Some(300.0));
        let some =
            |ms| SloTargets { ttft_ms: Some(ms), tpot_ms: Some(ms), ..SloTargets::default() };
        let found = |asked: SloTargets, may| {
            let targets = own.asked(&asked, may);
            (targets.ttft_ms, targets.tpot_ms, targets.e2e_ms)
        };
        assert_eq!(found(some(500.0), false), (Some(500.0), None, Some(900.0)));
        assert_eq!(found(some(50.0), false), (Some(200.0), None, Some(900.0)));
        assert_eq!(found(some(50.0), true), (Some(50.0), Some(50.0), Some(900.0)));
    }

    #[test]
    fn nan_is_out_of_range() {
        let mut settings = EngineSettings::default();
        settings.scheduler.watermark_percent = f64::NAN;
        assert!(settings.check().is_err());
    }
}
