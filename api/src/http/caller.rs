//! Caller: the client of an HTTP request, with the rights that its API key gives it.

use crate::http::ApiError;
use actix_web::http::StatusCode;
use std::sync::Arc;
use tiercel_config::{AboveHighest, ApiKey, KeyTier};
use tiercel_device::Tier;
use tiercel_policy::Weight;
use tiercel_policy::admission::{KeyLimits, Rate};
use tiercel_policy::blocks::Salt;

/// Rights of the clients that use an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Highest tier that a request may be served in.
    pub(crate) highest_tier: Tier,
    /// Tier of a request that asks for none.
    pub(crate) default_tier: Tier,
    pub(crate) above_highest: AboveHighest,
    /// Whether a priority below 0 lets a request go before other requests of its tier. True only on a server without
    /// keys: with keys, a client could go before the requests of other tenants.
    may_go_first: bool,
    /// Whether a request may state tighter targets than those of its tier; `None` for what `slo.requests_may_tighten`
    /// says.
    pub(crate) may_tighten: Option<bool>,
}

/// Client of an HTTP request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Name of the client's API key.
    pub(crate) key: Arc<str>,
    /// Name of the client's tenant.
    pub(crate) tenant: Arc<str>,
    /// Limits of the client's API key.
    pub(crate) limits: KeyLimits,
    /// Salt of the client's tenant. Only requests of one tenant share prefix-cache blocks.
    pub(crate) salt: Salt,
    /// Weight of the client's tenant in the fair queues.
    pub(crate) weight: Weight,
    pub(crate) rights: Rights,
}

impl Rights {
    /// Rights of every client of a server without keys.
    pub(crate) const ALL: Rights = Rights {
        highest_tier: Tier::Premium,
        default_tier: Tier::Standard,
        above_highest: AboveHighest::Cap,
        may_go_first: true,
        may_tighten: None,
    };

    /// Rights of the keys that stand in `http.api_keys`.
    pub(crate) const STANDARD: Rights =
        Rights { highest_tier: Tier::Standard, may_go_first: false, ..Rights::ALL };

    pub(crate) fn of(key: &ApiKey) -> Rights {
        Rights {
            highest_tier: tier_of(key.highest_tier),
            default_tier: tier_of(key.default_tier),
            above_highest: key.above_highest,
            may_go_first: false,
            may_tighten: key.may_tighten_targets,
        }
    }

    /// Returns the tier that a request is served in that asks for the tier `asked`.
    ///
    /// # Errors
    /// 403 if the key does not allow the tier, and its requests are to be refused rather than served in a lower tier.
    pub(crate) fn tier(&self, asked: Option<Tier>) -> Result<Tier, ApiError> {
        let asked = asked.unwrap_or(self.default_tier);
        match self.above_highest {
            _ if asked >= self.highest_tier => Ok(asked),
            AboveHighest::Cap => Ok(self.highest_tier),
            AboveHighest::Refuse => {
                let (asked, highest) = (asked.name(), self.highest_tier.name());
                let message = format!(
                    "this API key may not ask for the tier {asked}; its highest tier is {highest}"
                );
                let error = ApiError::new(StatusCode::FORBIDDEN, message);
                Err(error.about("service_tier").code("tier_not_allowed"))
            }
        }
    }

    /// Returns the priority within its tier that a request has which asks for the priority `asked`; a lower number goes
    /// first.
    pub(crate) fn priority(&self, asked: i32) -> i32 {
        if self.may_go_first { asked } else { asked.max(0) }
    }
}

/// Returns the limits of an API key.
pub(crate) fn limits_of(key: &ApiKey) -> KeyLimits {
    let rate = |per_min: Option<u64>| per_min.map(|per_min| Rate { per_min });
    KeyLimits {
        requests: rate(key.requests_per_min),
        tokens: rate(key.tokens_per_min),
        live: key.max_live,
    }
}

/// Returns the tier that an operator names.
pub(crate) fn tier_of(tier: KeyTier) -> Tier {
    match tier {
        KeyTier::Premium => Tier::Premium,
        KeyTier::Standard => Tier::Standard,
        KeyTier::Background => Tier::Background,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [Tier; 3] = [Tier::Premium, Tier::Standard, Tier::Background];

    fn rights(highest_tier: Tier, above_highest: AboveHighest) -> Rights {
        Rights { highest_tier, above_highest, default_tier: Tier::Background, ..Rights::ALL }
    }

    #[test]
    fn a_request_above_the_highest_tier_of_its_key_is_capped_or_refused() {
        use Tier::{Background, Premium, Standard};
        let cap = |highest| {
            let rights = rights(highest, AboveHighest::Cap);
            TIERS.map(|asked| rights.tier(Some(asked)).unwrap())
        };
        assert_eq!(cap(Premium), TIERS);
        assert_eq!(cap(Standard), [Standard, Standard, Background]);
        assert_eq!(cap(Background), [Background; 3]);
        let refuse = rights(Standard, AboveHighest::Refuse);
        let error = refuse.tier(Some(Premium)).expect_err("premium is not allowed");
        assert_eq!(error.outcome(), Some("tier_not_allowed"));
        assert!(error.to_string().contains("premium") && error.to_string().contains("standard"));
        assert_eq!(refuse.tier(Some(Standard)).unwrap(), Standard);
    }

    #[test]
    fn only_without_keys_a_priority_goes_before_other_requests() {
        assert_eq!([-5, 0, 5].map(|asked| Rights::ALL.priority(asked)), [-5, 0, 5]);
        assert_eq!([-5, 0, 5].map(|asked| Rights::STANDARD.priority(asked)), [0, 0, 5]);
    }

    #[test]
    fn a_request_that_asks_for_no_tier_has_the_default_of_its_key() {
        let rights = rights(Tier::Standard, AboveHighest::Refuse);
        assert_eq!(rights.tier(None).unwrap(), Tier::Background);
        assert_eq!(Rights::ALL.tier(None).unwrap(), Tier::Standard);
    }
}
