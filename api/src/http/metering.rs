//! Metering: charges requests to the limits of their API keys, and tells clients what is left.

use crate::http::{ApiError, Caller, Record};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::Clock;
use tiercel_policy::admission::{Charge, KeyUsage, OverLimit, Remaining};

/// Names of the headers that say what is left of a rate: limit, remaining and time until all of it is back.
const HEADERS: [[HeaderName; 3]; 2] = [
    [
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
    ],
    [
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ],
];

/// Retry time of clients that have too many live requests, ms: one of them may end at any time.
const LIVE_RETRY_MS: u64 = 1_000;
/// Part of the places in the engine that one tenant may take if there are several tenants, percent. The engine has
/// `admission.max_requests` places, and a request takes one place for each of its choices.
const TENANT_PLACES_PERCENT: u32 = 75;

/// Meters of all API keys and of their tenants.
pub(crate) struct Meters {
    clock: Clock,
    /// Most live choices of a tenant if there are several tenants.
    tenant_places: u32,
    usage: Mutex<Usage>,
}

/// Use of keys and tenants. A key that is renamed begins anew.
#[derive(Default)]
struct Usage {
    /// Use of each key that has been used, by its name.
    keys: HashMap<Arc<str>, KeyUsage>,
    /// Live choices of each tenant that has any.
    tenants: HashMap<Arc<str>, u32>,
}

/// Places of a request, which count towards the places of its tenant until this value is dropped.
pub(crate) struct Places {
    meters: Arc<Meters>,
    tenant: Arc<str>,
    choices: u32,
}

/// A request that counts towards the limits of its key and of its tenant. When this value is dropped, the request has
/// ended: its choices no longer count as live, and the tokens that it was charged and did not use are refunded.
pub(crate) struct Metered {
    places: Places,
    caller: Caller,
    /// Charge of the key, and the number of prompt tokens; `None` until the tokens are known.
    charged: Option<(Charge, u64)>,
    /// Record of the request, which counts its output tokens; `None` until the engine has accepted the request.
    record: Option<Rc<Record>>,
}

impl Meters {
    /// Makes meters for an engine with `places` places.
    pub(crate) fn new(clock: Clock, places: u32) -> Meters {
        let tenant_places = (places * TENANT_PLACES_PERCENT / 100).max(1);
        Meters { clock, tenant_places, usage: Mutex::default() }
    }

    /// Counts a request with `choices` choices as live, and charges it to the rate of requests of its key, before its
    /// prompts are tokenized. So requests that wait for the tokenizer count too. `shared` says whether there are
    /// several tenants.
    ///
    /// # Errors
    /// 429 if the request exceeds the key's rate of requests or its live choices, or its tenant would have too many of
    /// the places, and 400 if it alone has more choices than its key, or its tenant, may have live.
    pub(crate) fn enter(
        self: &Arc<Meters>,
        caller: &Caller,
        (choices, shared): (u32, bool),
    ) -> Result<Metered, ApiError> {
        if let Some(limit) = caller.limits.live.filter(|limit| choices > *limit) {
            let message = format!(
                "{choices} choices are more than this API key may have at a time, which is {limit}"
            );
            return Err(ApiError::param("n", message));
        }
        let places = self.take_places(&caller.tenant, (choices, shared))?;
        let mut usage = self.usage();
        let of_key = usage.keys.entry(caller.key.clone()).or_default();
        let entered = of_key.enter(&caller.limits, choices, self.clock.now());
        // Unlock the mutex before `places` may be dropped, which locks the mutex.
        drop(usage);
        entered?;
        Ok(Metered { places, caller: caller.clone(), charged: None, record: None })
    }

    /// Takes `choices` places of a tenant. `shared` says whether there are several tenants.
    ///
    /// # Errors
    /// 429 if the tenant would have too many of the places, and 400 if `choices` alone are more than a tenant may have.
    pub(crate) fn take_places(
        self: &Arc<Meters>,
        tenant: &Arc<str>,
        (choices, shared): (u32, bool),
    ) -> Result<Places, ApiError> {
        if shared && choices > self.tenant_places {
            let message = format!(
                "{choices} choices are more than the {} that one tenant may have while others share this server",
                self.tenant_places
            );
            return Err(ApiError::param("n", message));
        }
        let mut usage = self.usage();
        let live = usage.tenants.get(tenant).copied().unwrap_or(0);
        if shared && live + choices > self.tenant_places {
            return Err(self.too_many(live));
        }
        usage.tenants.insert(tenant.clone(), live + choices);
        Ok(Places { meters: self.clone(), tenant: tenant.clone(), choices })
    }

    /// Makes the error for a request whose tenant has as many places as one tenant may have.
    fn too_many(&self, live: u32) -> ApiError {
        let message = format!(
            "the clients of this tenant have {live} live requests (choices), of {} that one tenant may have while \
             others share this server; wait for one to end",
            self.tenant_places
        );
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
            .code("rate_limit_exceeded")
            .retry_after_ms(LIVE_RETRY_MS)
    }

    /// Returns what is left of the rates of requests and of tokens of the caller's key, and its number of live choices.
    pub(crate) fn of_key(&self, caller: &Caller) -> ([Option<Remaining>; 2], u32) {
        let usage = self.usage().keys.get(&caller.key).copied().unwrap_or_default();
        (usage.remaining(&caller.limits, self.clock.now()), usage.live())
    }

    /// Writes into the headers of a response what is left of the caller's rates.
    pub(crate) fn tell(&self, caller: &Caller, headers: &mut HeaderMap) {
        let (remaining, _) = self.of_key(caller);
        for (names, left) in HEADERS.into_iter().zip(remaining) {
            let Some(Remaining { limit, remaining, reset_ms }) = left else { continue };
            let values = [limit.to_string(), remaining.to_string(), format!("{reset_ms}ms")];
            for (name, value) in names.into_iter().zip(values) {
                let value = HeaderValue::from_str(&value).expect("digits and letters");
                headers.insert(name, value);
            }
        }
    }

    /// Forgets the keys that are not among `names` and have no live request.
    pub(crate) fn retain(&self, names: &[Arc<str>]) {
        self.usage().keys.retain(|key, usage| usage.live() > 0 || names.contains(key));
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        // Ignore that the mutex is poisoned: the numbers that it guards stay valid after a panic.
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metered {
    /// Charges the request to the rate of tokens of its key. Its prompts have `prompt_tokens` tokens, and its output at
    /// most `output_tokens`.
    ///
    /// # Errors
    /// 429 if the request exceeds the key's rate of tokens.
    pub(crate) fn charge(
        &mut self,
        prompt_tokens: u64,
        output_tokens: u64,
    ) -> Result<(), ApiError> {
        let tokens = prompt_tokens.saturating_add(output_tokens);
        let now = self.places.meters.clock.now();
        let mut usage = self.places.meters.usage();
        let of_key = usage.keys.entry(self.caller.key.clone()).or_default();
        let charge = of_key.charge(&self.caller.limits, tokens, now)?;
        drop(usage);
        self.charged = Some((charge, prompt_tokens));
        Ok(())
    }

    /// Records that the engine has accepted the request, so that its prompt and output count.
    pub(crate) fn accepted(&mut self, record: Rc<Record>) {
        self.record = Some(record);
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let Caller { key, limits, .. } = &self.caller;
        let now = self.places.meters.clock.now();
        let mut usage = self.places.meters.usage();
        let Some(of_key) = usage.keys.get_mut(key) else { return };
        if let Some((charge, prompt_tokens)) = self.charged {
            let output = |record: &Rc<Record>| prompt_tokens + u64::from(record.output_tokens());
            let used = self.record.as_ref().map_or(0, output);
            of_key.settle(limits, charge, used, now);
        }
        of_key.leave(self.places.choices);
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut usage = self.meters.usage();
        if let Some(live) = usage.tenants.get_mut(&self.tenant) {
            *live = live.saturating_sub(self.choices);
            if *live == 0 {
                usage.tenants.remove(&self.tenant);
            }
        }
    }
}

impl From<OverLimit> for ApiError {
    fn from(over: OverLimit) -> ApiError {
        let retry_after_ms = match over {
            OverLimit::Requests { retry_after_ms, .. }
            | OverLimit::Tokens { retry_after_ms, .. } => retry_after_ms,
            OverLimit::Live { .. } => LIVE_RETRY_MS,
        };
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, over.to_string())
            .code("rate_limit_exceeded")
            .retry_after_ms(retry_after_ms)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use crate::http::caller::Rights;
    use actix_web::ResponseError;
    use tiercel_policy::Weight;
    use tiercel_policy::admission::{KeyLimits, Rate};
    use tiercel_policy::blocks::Salt;

    fn caller(live: Option<u32>) -> Caller {
        Caller {
            key: "key".into(),
            tenant: "tenant".into(),
            limits: KeyLimits { live, ..KeyLimits::default() },
            salt: Salt([0; 16]),
            weight: Weight::default(),
            rights: Rights::ALL,
        }
    }

    #[test]
    fn a_request_has_its_places_before_its_tokens_are_known_and_until_it_ends() {
        let meters = Arc::new(Meters::new(Clock::wall(), 16));
        for (caller, shared) in [(caller(None), true), (caller(Some(12)), false)] {
            let enter = |choices| meters.enter(&caller, (choices, shared));
            let Ok(tokenized) = enter(12) else { panic!("12 of 16 places are free") };
            let refused = |choices| enter(choices).err().map(|refused| refused.status_code());
            assert_eq!(refused(1), Some(StatusCode::TOO_MANY_REQUESTS));
            assert_eq!(refused(13), Some(StatusCode::BAD_REQUEST));
            assert_eq!(meters.of_key(&caller).1, 12);
            drop(tokenized);
            assert_eq!(meters.of_key(&caller).1, 0);
            assert!(enter(12).is_ok());
        }
    }

    #[test]
    fn a_request_that_its_key_refuses_gives_its_places_back() {
        let meters = Arc::new(Meters::new(Clock::wall(), 32));
        let caller = caller(Some(12));
        let Ok(entered) = meters.enter(&caller, (12, true)) else { panic!("all places are free") };
        assert!(meters.enter(&caller, (1, true)).is_err());
        assert_eq!(meters.usage().tenants.get(&caller.tenant), Some(&12));
        drop(entered);
        assert!(meters.usage().tenants.is_empty());
    }

    #[test]
    fn a_request_that_the_engine_has_not_accepted_gets_its_tokens_back() {
        let meters = Arc::new(Meters::new(Clock::wall(), 16));
        // One token may come at once, and one more comes after each minute.
        let tokens = Some(Rate { per_min: 1 });
        let caller =
            Caller { limits: KeyLimits { tokens, ..KeyLimits::default() }, ..caller(None) };
        let enter = || meters.enter(&caller, (1, false)).ok().unwrap();
        let mut first = enter();
        first.charge(1, 0).unwrap();
        let mut second = enter();
        assert!(second.charge(1, 0).is_err());
        drop(first);
        second.charge(1, 0).unwrap();
    }
}
