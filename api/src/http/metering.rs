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
/// Part of all places in the engine that one tenant may take if there are several tenants.
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

/// A request that was charged to its key. When this value is dropped, the request has ended: the tokens that it did not
/// use are refunded.
pub(crate) struct Metered {
    meters: Arc<Meters>,
    caller: Caller,
    choices: u32,
    /// Charge of the key.
    charge: Charge,
    prompt_tokens: u64,
    /// Record of the request, which counts its output tokens; `None` until the engine has accepted the request.
    record: Option<Rc<Record>>,
}

impl Meters {
    /// Makes meters for an engine with `places` places.
    pub(crate) fn new(clock: Clock, places: u32) -> Meters {
        let tenant_places = (places * TENANT_PLACES_PERCENT / 100).max(1);
        Meters { clock, tenant_places, usage: Mutex::default() }
    }

    /// Charges a request with `choices` choices, whose prompts have `prompt_tokens` tokens and whose output at most
    /// `output_tokens`, to the caller's key. `shared` says whether there are several tenants.
    ///
    /// # Errors
    /// 429 if the request exceeds a limit of the key, or its tenant would have too many of the places, and 400 if it alone
    /// has more choices than its key, or its tenant, may have live.
    pub(crate) fn admit(
        self: &Arc<Meters>,
        caller: &Caller,
        (choices, shared): (u32, bool),
        (prompt_tokens, output_tokens): (u64, u64),
    ) -> Result<Metered, ApiError> {
        let tokens = (choices, prompt_tokens.saturating_add(output_tokens));
        let mut usage = self.usage();
        self.check_places(&usage, caller, (choices, shared))?;
        let of_key = usage.keys.entry(caller.key.clone()).or_default();
        let charge = of_key.admit(&caller.limits, tokens, self.clock.now())?;
        *usage.tenants.entry(caller.tenant.clone()).or_default() += choices;
        drop(usage);
        let (meters, caller) = (self.clone(), caller.clone());
        Ok(Metered { meters, caller, choices, charge, prompt_tokens, record: None })
    }

    /// Checks the limits of the caller's key and tenant for a request with `choices` choices, before the request is
    /// tokenized and without charging the key. Does not check the rate of tokens: the number of tokens is not known
    /// yet, and the retry time depends on this number. `shared` says whether there are several tenants.
    ///
    /// # Errors
    /// The errors of [`Meters::admit`], but none for the rate of tokens.
    pub(crate) fn check(
        &self,
        caller: &Caller,
        (choices, shared): (u32, bool),
    ) -> Result<(), ApiError> {
        let usage = self.usage();
        self.check_places(&usage, caller, (choices, shared))?;
        let mut of_key = usage.keys.get(&caller.key).copied().unwrap_or_default();
        match of_key.admit(&caller.limits, (choices, 1), self.clock.now()) {
            Ok(_) | Err(OverLimit::Tokens { .. }) => Ok(()),
            Err(over) => Err(over.into()),
        }
    }

    /// Checks the number of choices of a request against the limits of its key and of its tenant.
    fn check_places(
        &self,
        usage: &Usage,
        caller: &Caller,
        (choices, shared): (u32, bool),
    ) -> Result<(), ApiError> {
        if let Some(limit) = caller.limits.live.filter(|limit| choices > *limit) {
            let message = format!(
                "{choices} choices are more than this API key may have at a time, which is {limit}"
            );
            return Err(ApiError::param("n", message));
        }
        if shared && choices > self.tenant_places {
            let message = format!(
                "{choices} choices are more than the {} that one tenant may have while others share this server",
                self.tenant_places
            );
            return Err(ApiError::param("n", message));
        }
        let live = usage.tenants.get(&caller.tenant).copied().unwrap_or(0);
        match shared && live + choices > self.tenant_places {
            true => Err(self.too_many(live)),
            false => Ok(()),
        }
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
    /// Records that the engine has accepted the request, so that its prompt and output count.
    pub(crate) fn accepted(&mut self, record: Rc<Record>) {
        self.record = Some(record);
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let output = |record: &Rc<Record>| self.prompt_tokens + u64::from(record.output_tokens());
        let used = self.record.as_ref().map_or(0, output);
        let Caller { key, tenant, limits, .. } = &self.caller;
        let now = self.meters.clock.now();
        let mut usage = self.meters.usage();
        if let Some(of_key) = usage.keys.get_mut(key) {
            of_key.settle(limits, self.charge, used, now);
        }
        if let Some(live) = usage.tenants.get_mut(tenant) {
            *live = live.saturating_sub(self.choices);
            if *live == 0 {
                usage.tenants.remove(tenant);
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
