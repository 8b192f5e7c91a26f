//! Settings of latency targets: stated, derived from the device, or absent.

use crate::SettingsError;
use crate::engine::range;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Default of [`TierSlo::assurance`], the share of the steps in which the reserve covers the lag of premium streams.
const ASSURANCE: f64 = 0.999;

/// The value of a latency-target setting.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Target {
    /// Target derived from the device's measured speed (`tiercel_policy::slo::derived`).
    Auto,
    /// The setting states that there is no target.
    #[default]
    None,
    /// Target that the operator stated, ms.
    Ms(f64),
}

impl Target {
    /// Returns the target if it is stated, ms.
    pub fn stated_ms(self) -> Option<f64> {
        match self {
            Target::Ms(ms) => Some(ms),
            Target::Auto | Target::None => None,
        }
    }
}

impl From<Option<f64>> for Target {
    fn from(stated_ms: Option<f64>) -> Target {
        stated_ms.map_or(Target::None, Target::Ms)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Target::Auto => serializer.serialize_str("auto"),
            Target::None => serializer.serialize_str("none"),
            Target::Ms(ms) => serializer.serialize_f64(*ms),
        }
    }
}

/// The form of a target in a settings file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Ms(f64),
    Word(String),
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Target, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Ms(ms) => Ok(Target::Ms(ms)),
            Written::Word(word) if word == "auto" => Ok(Target::Auto),
            Written::Word(word) if word == "none" => Ok(Target::None),
            Written::Word(word) => {
                Err(D::Error::custom(format!("a target is a number, auto or none, not {word}")))
            }
        }
    }
}

/// Settings of one tier's latency targets.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TierSlo {
    /// Target of the time to first token: stated in ms, derived, or none.
    pub ttft_ms: Target,
    /// Target of the mean time per output token after the first: stated in ms, derived, or none.
    pub tpot_ms: Target,
    /// Target of the time from arrival to last token: stated in ms, derived, or none.
    pub e2e_ms: Target,
    /// Time that is added to a stated `ttft_ms` for every prompt token beyond `ttft_prompt_tokens`, ms.
    pub ttft_ms_per_token: f64,
    /// Prompt tokens that `ttft_ms` covers. For every further prompt token `ttft_ms_per_token` is added.
    pub ttft_prompt_tokens: u32,
    /// For the premium tier only: share of the steps in which the reserve of premium streams covers the time that
    /// premium prompts take from these streams; `None` for the default.
    pub assurance: Option<f64>,
}

/// Latency targets by tier, and settings of how they are monitored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloSettings {
    /// Targets of the premium tier.
    pub premium: TierSlo,
    /// Targets of the standard tier.
    pub standard: TierSlo,
    /// Targets of the background tier.
    pub background: TierSlo,
    /// Length of the sliding windows in which latencies are compared with targets, s.
    pub window_s: u64,
    /// Most pairs of tenant and tier that have sliding windows of their own; 0 for none.
    pub max_tenants: u32,
    /// Whether requests may ask for tighter targets than those of their tier. The tightest target in a step limits the
    /// step for all its sequences, so only a server with trusted clients should allow it.
    pub requests_may_tighten: bool,
}

impl Default for SloSettings {
    fn default() -> Self {
        let interactive = TierSlo {
            ttft_ms: Target::Auto,
            tpot_ms: Target::Auto,
            e2e_ms: Target::Auto,
            ..TierSlo::default()
        };
        SloSettings {
            premium: TierSlo { assurance: Some(ASSURANCE), ..interactive },
            standard: interactive,
            background: TierSlo { e2e_ms: Target::Auto, ..TierSlo::default() },
            window_s: 60,
            max_tenants: 0,
            requests_may_tighten: false,
        }
    }
}

impl SloSettings {
    /// Returns the share of the steps in which the reserve of premium streams covers their lag, 0.9 to 0.9999.
    pub fn assurance(&self) -> f64 {
        self.premium.assurance.unwrap_or(ASSURANCE)
    }

    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        range("slo.window_s", self.window_s, 1, 3_600)?;
        range("slo.max_tenants", self.max_tenants, 0, 256)?;
        range("slo.premium.assurance", self.assurance(), 0.9, 0.9999)?;
        for (field, tier) in [
            ("slo.premium.ttft_ms_per_token", &self.premium),
            ("slo.standard.ttft_ms_per_token", &self.standard),
            ("slo.background.ttft_ms_per_token", &self.background),
        ] {
            range(field, tier.ttft_ms_per_token, 0.0, 1_000.0)?;
            if tier.ttft_ms == Target::Auto && tier.ttft_ms_per_token > 0.0 {
                return Err(SettingsError::Conflict {
                    field,
                    why: "needs a stated ttft_ms of the same tier, because auto derives both from the device",
                });
            }
        }
        Ok(())
    }
}

/// Latency targets of one tier or one request; `None` is no target.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloTargets {
    /// Target of the time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Target of the mean time per output token after the first, ms.
    pub tpot_ms: Option<f64>,
    /// Target of the time from arrival to last token, ms.
    pub e2e_ms: Option<f64>,
    /// Time that is added to `ttft_ms` for every prompt token beyond `ttft_prompt_tokens`, ms.
    pub ttft_ms_per_token: f64,
    /// Prompt tokens that `ttft_ms` covers. For every further prompt token `ttft_ms_per_token` is added.
    pub ttft_prompt_tokens: u32,
}

impl SloTargets {
    /// Returns the targets of a request with a prompt of this length.
    #[must_use]
    pub fn of_prompt(&self, prompt_tokens: u32) -> SloTargets {
        let beyond = prompt_tokens.saturating_sub(self.ttft_prompt_tokens);
        let added_ms = self.ttft_ms_per_token * f64::from(beyond);
        SloTargets { ttft_ms: self.ttft_ms.map(|ms| ms + added_ms), ..*self }
    }

    /// Returns the targets of a request: those of its tier (`self`), replaced by those that the request asks for.
    /// Unless the request `may_tighten` its targets, it can only loosen targets that its tier has.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn growth_with_the_prompt_needs_a_stated_target() {
        let mut slo = SloSettings::default();
        slo.standard.ttft_ms_per_token = 0.5;
        let error = slo.check().expect_err("auto derives the growth").to_string();
        assert!(error.contains("slo.standard.ttft_ms_per_token"), "{error}");
        slo.standard.ttft_ms = Target::Ms(500.0);
        slo.check().expect("a stated target may grow");
    }
}
