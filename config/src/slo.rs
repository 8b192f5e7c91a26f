//! Settings of latency targets: stated, derived from the device, or absent.

use crate::SettingsError;
use crate::declare::{Field, SettingsTable};
use crate::kind::{Kind, OfKind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Default of [`TierSlo::assurance`]: the share of premium requests that shall be in target while lower tiers have
/// requests.
const ASSURANCE: f64 = 0.999;

/// The value of a latency-target setting.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Target {
    /// Target derived from the device's measured speed (`tiercel_policy::slo::ServerTimes`).
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

impl OfKind for Target {
    const KIND: Kind = Kind::Target;
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

settings! {
    /// Settings of one tier's latency targets.
    #[derive(Copy)]
    pub struct TierSlo {
        /// Target of the time to first token (TTFT), ms; auto derives it from the measured speed of the device
        /// (docs/operator.md).
        ttft_ms: Target = Target::None;
        /// Target of the mean time per output token after the first (TPOT), ms; auto derives it from the measured speed
        /// of the device (docs/operator.md).
        tpot_ms: Target = Target::None;
        /// Target of the time from arrival to last token (E2E), ms; auto derives it from the measured speed of the
        /// device (docs/operator.md).
        e2e_ms: Target = Target::None;
        /// Time that is added to ttft_ms (if it is a number, not auto) for each prompt token beyond ttft_prompt_tokens,
        /// ms.
        ttft_ms_per_token: f64 = 0.0, in 0.0..=1_000.0;
        /// Prompt tokens for which ttft_ms holds (if it is a number, not auto); each further token adds
        /// ttft_ms_per_token, and each token fewer takes off ttft_ms_per_token_fewer.
        ttft_prompt_tokens: u32 = 0, in 0..=1 << 24;
        /// Time that is taken off ttft_ms (if it is a number, not auto) for each prompt token fewer than
        /// ttft_prompt_tokens, ms; less is taken off if an idle device could not meet the target of a prompt of one
        /// token.
        ttft_ms_per_token_fewer: f64 = 0.0, in 0.0..=1_000.0;
        // Only the premium tier has this setting; `None` stands for the default.
        /// Share of premium requests that shall be in target while lower tiers have requests. At the start, and while
        /// fewer premium requests are in target, premium streams keep a reserve of slack. The reserve covers the lag
        /// that premium prompts cause in at most this share of the step time. A larger share costs lower tiers time
        /// (docs/simulation.md, "The dial").
        assurance: Option<f64> = None, in 0.9..=0.9999;
    }
}

settings! {
    /// Latency targets by tier, and settings of how they are monitored.
    pub struct SloSettings {
        tables {
            /// Targets of the premium tier.
            premium: TierSlo = TierSlo { assurance: Some(ASSURANCE), ..interactive() },
                fields TierSlo::fields_of("Premium");
            /// Targets of the standard tier.
            standard: TierSlo = interactive(), fields TierSlo::fields_of("Standard");
            /// Targets of the background tier.
            background: TierSlo = TierSlo { e2e_ms: Target::Auto, ..TierSlo::default() },
                fields TierSlo::fields_of("Background");
        }
        /// Length of the sliding windows in which latencies are compared with targets, s.
        window_s: u64 = 60, in 1..=3_600;
        /// Most pairs of tenant and tier that have metrics of their own (label tenant); 0 for none. Needs
        /// http.keys_file or http.api_keys. While so many pairs are active, further ones count only in the metrics of their tier.
        max_tenants: u32 = 0, in 0..=256;
        /// Whether a request may state tighter targets than those of its tier, unless its API key says so itself
        /// (may_tighten_targets in the keys file). The tightest target in a step limits the step for all its sequences,
        /// so allow this to trusted clients only.
        requests_may_tighten: bool = false;
    }
}

/// Returns the default targets of the tiers whose requests come from people who wait for the answer (premium and
/// standard).
fn interactive() -> TierSlo {
    let target = Target::Auto;
    TierSlo { ttft_ms: target, tpot_ms: target, e2e_ms: target, ..TierSlo::default() }
}

impl TierSlo {
    /// Returns the settings of one tier's targets, with help texts that begin with the name of the tier. The assurance
    /// is a setting of the premium tier only.
    fn fields_of(tier: &str) -> Vec<Field> {
        let mut fields = TierSlo::fields();
        fields.retain(|field| field.path != "assurance" || tier == "Premium");
        for field in &mut fields {
            let (first, rest) = field.help.split_at(1);
            field.help = format!("{tier}: {}{rest}", first.to_lowercase());
        }
        fields
    }
}

impl SloSettings {
    /// Returns the share of premium requests that shall be in target while lower tiers have requests, 0.9 to 0.9999.
    pub fn assurance(&self) -> f64 {
        self.premium.assurance.unwrap_or(ASSURANCE)
    }

    /// Checks that a tier whose TTFT target is `auto` does not state how the target depends on the prompt, and that no
    /// stated target is 0 or less for a short prompt.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        for (more, fewer, tier) in [
            ("slo.premium.ttft_ms_per_token", "slo.premium.ttft_ms_per_token_fewer", &self.premium),
            (
                "slo.standard.ttft_ms_per_token",
                "slo.standard.ttft_ms_per_token_fewer",
                &self.standard,
            ),
            (
                "slo.background.ttft_ms_per_token",
                "slo.background.ttft_ms_per_token_fewer",
                &self.background,
            ),
        ] {
            let derived = tier.ttft_ms == Target::Auto;
            for (field, ms) in
                [(more, tier.ttft_ms_per_token), (fewer, tier.ttft_ms_per_token_fewer)]
            {
                if derived && ms > 0.0 {
                    return Err(SettingsError::Conflict {
                        field,
                        why: "needs a stated ttft_ms of the same tier, because auto derives it from the device too",
                    });
                }
            }
            let taken_ms = tier.ttft_ms_per_token_fewer * f64::from(tier.ttft_prompt_tokens);
            if tier.ttft_ms.stated_ms().is_some_and(|ms| taken_ms >= ms) {
                return Err(SettingsError::Conflict {
                    field: fewer,
                    why: "times ttft_prompt_tokens must be less than ttft_ms, or short prompts would have no time",
                });
            }
        }
        Ok(())
    }
}

/// Latency targets of one tier or one request. A target that is `None` does not exist.
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
    /// Number of prompt tokens for which `ttft_ms` holds.
    pub ttft_prompt_tokens: u32,
    /// Decrease of `ttft_ms` for each token by which a prompt is shorter than `ttft_prompt_tokens`, ms.
    pub ttft_ms_per_token_fewer: f64,
}

impl SloTargets {
    /// Returns the targets of a request with a prompt of this length.
    #[must_use]
    pub fn of_prompt(&self, prompt_tokens: u32) -> SloTargets {
        let more = f64::from(prompt_tokens.saturating_sub(self.ttft_prompt_tokens));
        let fewer = f64::from(self.ttft_prompt_tokens.saturating_sub(prompt_tokens));
        let added_ms = self.ttft_ms_per_token * more - self.ttft_ms_per_token_fewer * fewer;
        SloTargets { ttft_ms: self.ttft_ms.map(|ms| ms + added_ms), ..*self }
    }

    /// Returns the targets of a request: those of its tier (`self`), replaced by those that the request states.
    /// Unless the request `may_tighten` its targets, it can only loosen targets that its tier has, and gets no others.
    #[must_use]
    pub fn with_stated(&self, stated: &SloTargets, may_tighten: bool) -> SloTargets {
        let pick = |own: Option<f64>, stated: Option<f64>| match (own, stated) {
            (_, Some(stated)) if may_tighten => Some(stated),
            (Some(own), Some(stated)) => Some(own.max(stated)),
            (own, _) => own,
        };
        SloTargets {
            ttft_ms: pick(self.ttft_ms, stated.ttft_ms),
            tpot_ms: pick(self.tpot_ms, stated.tpot_ms),
            e2e_ms: pick(self.e2e_ms, stated.e2e_ms),
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
        assert_eq!(own.of_prompt(10), own);
        assert_eq!(own.of_prompt(300).ttft_ms, Some(300.0));
        let shrinks = SloTargets { ttft_ms_per_token_fewer: 0.25, ..own };
        assert_eq!(shrinks.of_prompt(60).ttft_ms, Some(190.0));
        assert_eq!(shrinks.of_prompt(300).ttft_ms, Some(300.0));
        let some =
            |ms| SloTargets { ttft_ms: Some(ms), tpot_ms: Some(ms), ..SloTargets::default() };
        let found = |stated: SloTargets, may| {
            let targets = own.with_stated(&stated, may);
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
        (slo.standard.ttft_ms_per_token_fewer, slo.standard.ttft_prompt_tokens) = (0.5, 999);
        slo.check().expect("a prompt of one token has 1 ms");
        slo.standard.ttft_prompt_tokens = 1_000;
        let error = slo.check().expect_err("an empty prompt has none").to_string();
        assert!(error.contains("slo.standard.ttft_ms_per_token_fewer"), "{error}");
        slo.standard.ttft_ms = Target::Auto;
        slo.standard.ttft_ms_per_token = 0.0;
        let error = slo.check().expect_err("auto derives this too").to_string();
        assert!(error.contains("slo.standard.ttft_ms_per_token_fewer"), "{error}");
    }
}
