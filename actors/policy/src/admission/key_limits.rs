//! Limits of an API key: requests per minute, tokens per minute, and live requests.

use crate::admission::rate::{Gcra, Rate};
use tiercel_device::Timestamp;

/// Limits of an API key; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyLimits {
    /// Rate of requests.
    pub requests: Option<Rate>,
    /// Rate of tokens: prompt and output together.
    pub tokens: Option<Rate>,
    /// Most live choices; a request for `n` choices has `n`.
    pub live: Option<u32>,
}

/// Use of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct KeyUsage {
    requests: Gcra,
    tokens: Gcra,
    /// Number of live choices.
    live: u32,
}

/// Charge of a request to the rate of tokens. At the end of the request, [`KeyUsage::settle`] refunds the part of the
/// charge that the request did not use, or charges the tokens that it used beyond the charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Charge {
    tokens: u64,
}

/// Reason why the limits of its key refuse a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverLimit {
    /// The key's requests come faster than its rate allows.
    #[error("this API key may send {per_min} requests per minute; retry in {} s", retry_after_ms.div_ceil(1000))]
    Requests {
        /// Requests per minute that the key allows.
        per_min: u64,
        /// Time after which the request would be accepted, ms.
        retry_after_ms: u64,
    },
    /// The key's tokens come faster than its rate allows.
    #[error(
        "this API key may use {per_min} tokens per minute (prompt and max_tokens); retry in {} s",
        retry_after_ms.div_ceil(1000)
    )]
    Tokens {
        /// Tokens per minute that the key allows.
        per_min: u64,
        /// Time after which the request would be accepted if nothing is refunded meanwhile, ms.
        retry_after_ms: u64,
    },
    /// The key's live choices and the choices of the request are together more than the limit.
    #[error(
        "this API key may have {limit} live requests (choices), and has {live}; wait for one to end"
    )]
    Live {
        /// Most live choices that the key allows.
        limit: u32,
        /// Live choices of the key.
        live: u32,
    },
}

/// What is left of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// Amount per minute that the key allows.
    pub limit: u64,
    /// Amount that may come at once now.
    pub remaining: u64,
    /// Time after which as much may come at once as ever, ms.
    pub reset_ms: u64,
}

impl KeyUsage {
    /// Counts the choices of a request as live and charges the request to the rate of requests, if both limits allow
    /// it. [`KeyUsage::charge`] charges the request's tokens after tokenizing. A request that the rate of tokens then
    /// refuses stays charged to the rate of requests, because it has been tokenized.
    ///
    /// # Errors
    /// [`OverLimit::Live`]. If the rate of requests refuses the request: [`OverLimit::Requests`], or
    /// [`OverLimit::Tokens`] if the rate of tokens would make even one token wait longer. The request is then neither
    /// counted nor charged.
    pub fn enter(
        &mut self,
        limits: &KeyLimits,
        choices: u32,
        now: Timestamp,
    ) -> Result<(), OverLimit> {
        if let Some(limit) = limits.live
            && self.live.saturating_add(choices) > limit
        {
            return Err(OverLimit::Live { limit, live: self.live });
        }
        if let Some(rate) = limits.requests {
            self.requests.charge_if_conforming(rate, 1, now).map_err(|requests_us| {
                let tokens_us = limits.tokens.map_or(0, |rate| self.tokens.wait_us(rate, 1, now));
                let retry_after_ms = requests_us.max(tokens_us).div_ceil(1_000);
                match limits.tokens.filter(|_| tokens_us > requests_us) {
                    Some(rate) => OverLimit::Tokens { per_min: rate.per_min, retry_after_ms },
                    None => OverLimit::Requests { per_min: rate.per_min, retry_after_ms },
                }
            })?;
        }
        self.live += choices;
        Ok(())
    }

    /// Charges a request that has entered, and that uses at most `tokens` tokens (prompt and output), to the rate of
    /// tokens. A request is charged at most as many tokens as may come at once; if it uses more, the rest is charged at
    /// its end. So a rate never refuses a request for good.
    ///
    /// # Errors
    /// [`OverLimit::Tokens`] if the rate does not allow the tokens; they are then not charged.
    pub fn charge(
        &mut self,
        limits: &KeyLimits,
        tokens: u64,
        now: Timestamp,
    ) -> Result<Charge, OverLimit> {
        let Some(rate) = limits.tokens else { return Ok(Charge { tokens }) };
        let tokens = tokens.min(rate.burst());
        self.tokens.charge_if_conforming(rate, tokens, now).map_err(|tokens_us| {
            // When the client comes back, the rate of requests must allow one more request too.
            let requests_us = limits.requests.map_or(0, |rate| self.requests.wait_us(rate, 1, now));
            let retry_after_ms = tokens_us.max(requests_us).div_ceil(1_000);
            OverLimit::Tokens { per_min: rate.per_min, retry_after_ms }
        })?;
        Ok(Charge { tokens })
    }

    /// Settles a request that was charged `charge` and used `used` tokens: refunds the tokens that it did not use, or
    /// charges those that it used beyond its charge.
    pub fn settle(&mut self, limits: &KeyLimits, charge: Charge, used: u64, now: Timestamp) {
        let Some(rate) = limits.tokens else { return };
        match used.checked_sub(charge.tokens) {
            Some(more) => self.tokens.charge(rate, more, now),
            None => self.tokens.refund(rate, charge.tokens - used),
        }
    }

    /// Ends a request that has entered with `choices` choices: its choices no longer count as live.
    pub fn leave(&mut self, choices: u32) {
        self.live = self.live.saturating_sub(choices);
    }

    /// Returns the number of live choices.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Returns what is left of the rates of requests and of tokens; `None` without such a rate.
    pub fn remaining(&self, limits: &KeyLimits, now: Timestamp) -> [Option<Remaining>; 2] {
        let of = |gcra: &Gcra, rate: Option<Rate>| {
            let rate = rate?;
            let (remaining, reset_us) = (gcra.remaining(rate, now), gcra.reset_us(now));
            Some(Remaining { limit: rate.per_min, remaining, reset_ms: reset_us.div_ceil(1_000) })
        };
        [of(&self.requests, limits.requests), of(&self.tokens, limits.tokens)]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000;

    fn limits(requests: u64, tokens: u64, live: u32) -> KeyLimits {
        let rate = |per_min: u64| (per_min > 0).then_some(Rate { per_min });
        KeyLimits {
            requests: rate(requests),
            tokens: rate(tokens),
            live: (live > 0).then_some(live),
        }
    }

    #[test]
    fn unused_tokens_are_refunded_and_used_ones_beyond_the_charge_are_owed() {
        let limits = limits(0, 6_000, 0);
        let mut usage = KeyUsage::default();
        let now = Timestamp(5 * S);
        let left = |usage: &KeyUsage| usage.remaining(&limits, now)[1].unwrap().remaining;
        assert_eq!(left(&usage), 1_000, "ten seconds' worth at once");
        let charge = usage.charge(&limits, 700, now).unwrap();
        assert_eq!(left(&usage), 300);
        assert!(matches!(
            usage.charge(&limits, 400, now),
            Err(OverLimit::Tokens { retry_after_ms: 1_000, .. })
        ));
        usage.settle(&limits, charge, 100, now);
        assert_eq!(left(&usage), 900);
        // A request for more than may come at once is charged 1000 tokens, and owes the rest at its end.
        assert!(usage.charge(&limits, 50_000, now).is_err(), "100 are missing");
        let later = Timestamp(6 * S);
        let charge = usage.charge(&limits, 50_000, later).unwrap();
        usage.settle(&limits, charge, 3_000, later);
        assert_eq!(usage.remaining(&limits, later)[1].unwrap().reset_ms, 30_000);
        assert!(matches!(
            usage.charge(&limits, 1, later),
            Err(OverLimit::Tokens { retry_after_ms: 20_010, .. })
        ));
    }

    #[test]
    fn a_refused_request_is_neither_counted_nor_charged() {
        let limits = limits(6, 600, 2);
        let mut usage = KeyUsage::default();
        let now = Timestamp(0);
        usage.enter(&limits, 1, now).unwrap();
        let _charge = usage.charge(&limits, 10, now).unwrap();
        let before = usage;
        let live = Err(OverLimit::Live { limit: 2, live: 1 });
        assert_eq!(usage.enter(&limits, 2, now), live);
        // The next request may come after 10 s.
        let over = OverLimit::Requests { per_min: 6, retry_after_ms: 10_000 };
        assert_eq!(usage.enter(&limits, 1, now), Err(over));
        let tokens = OverLimit::Tokens { per_min: 600, retry_after_ms: 10_000 };
        assert_eq!(usage.charge(&limits, 100, now), Err(tokens));
        assert_eq!(usage, before);
    }

    #[test]
    fn a_request_beyond_both_rates_is_told_the_longer_time() {
        let limits = limits(60, 6_000, 0);
        let mut usage = KeyUsage::default();
        let now = Timestamp(0);
        for _ in 0..10 {
            usage.enter(&limits, 1, now).unwrap();
            let _charge = usage.charge(&limits, 100, now).unwrap();
        }
        let over = OverLimit::Requests { per_min: 60, retry_after_ms: 1_000 };
        assert_eq!(usage.clone().enter(&limits, 1, now), Err(over));
        // The last request used 499 tokens more than it was charged. So a request of one token has to wait for 5 s.
        usage.settle(&limits, Charge { tokens: 100 }, 599, now);
        let over = OverLimit::Tokens { per_min: 6_000, retry_after_ms: 5_000 };
        assert_eq!(usage.enter(&limits, 1, now), Err(over));
    }

    #[test]
    fn a_request_that_the_rate_of_tokens_refuses_counts_as_a_request() {
        let limits = limits(12, 6_000, 0);
        let mut usage = KeyUsage::default();
        usage.enter(&limits, 1, Timestamp(0)).unwrap();
        let _charge = usage.charge(&limits, 1_000, Timestamp(0)).unwrap();
        usage.enter(&limits, 1, Timestamp(0)).unwrap();
        assert!(usage.charge(&limits, 1_000, Timestamp(0)).is_err());
        let over = OverLimit::Requests { per_min: 12, retry_after_ms: 5_000 };
        assert_eq!(usage.enter(&limits, 1, Timestamp(0)), Err(over));
    }

    #[test]
    fn a_request_enters_although_its_key_owes_tokens() {
        let limits = limits(0, 600, 0);
        let mut usage = KeyUsage::default();
        let _charge = usage.charge(&limits, 100, Timestamp(0)).unwrap();
        assert!(usage.charge(&limits, 1, Timestamp(0)).is_err());
        assert_eq!(usage.enter(&limits, 1, Timestamp(0)), Ok(()));
    }

    #[test]
    fn live_choices_are_counted_until_their_requests_end() {
        let limits = limits(0, 0, 3);
        let mut usage = KeyUsage::default();
        usage.enter(&limits, 2, Timestamp(0)).unwrap();
        assert!(usage.enter(&limits, 2, Timestamp(0)).is_err());
        usage.leave(2);
        assert_eq!(usage.live(), 0);
        assert!(usage.enter(&limits, 3, Timestamp(0)).is_ok());
        assert_eq!(usage.remaining(&limits, Timestamp(0)), [None, None]);
    }

    proptest! {
        /// Property: in a flood, a key gets its rate of requests and of tokens within 1 % (or one request, for few),
        /// beyond one burst.
        #[test]
        fn a_flood_gets_the_rate_and_one_burst(
            requests in 10_u64..2_000,
            tokens in 1_000_u64..200_000,
            cost in 1_u64..400,
            every_us in 500_u64..5_000,
        ) {
            let limits = limits(requests, tokens, 0);
            let mut usage = KeyUsage::default();
            let (mut entered, mut used) = (0_u64, 0_u64);
            let mut now = Timestamp(0);
            while now.0 < 60 * S {
                now = now + every_us;
                if usage.enter(&limits, 1, now).is_err() {
                    continue;
                }
                entered += 1;
                if let Ok(charge) = usage.charge(&limits, cost, now) {
                    usage.settle(&limits, charge, cost, now);
                    used += cost;
                }
            }
            let burst = |per_min: u64| (per_min / 6).max(1);
            let most = |per_min: u64, one: u64| per_min + burst(per_min) + per_min / 100 + one;
            prop_assert!(entered <= most(requests, 1), "{entered} of {requests}");
            prop_assert!(used <= most(tokens, cost), "{used} of {tokens}");
            // One of the two rates is the limit, or the clients do not send faster.
            let offered = 60 * S / every_us;
            let full = |got: u64, per_min: u64, one: u64| {
                got + one >= per_min + burst(per_min) - per_min / 100 - per_min * every_us / (60 * S)
            };
            prop_assert!(
                full(entered, requests, 2) || full(used, tokens, 2 * cost) || entered + 1 >= offered,
                "{entered} requests and {used} tokens"
            );
        }
    }
}
