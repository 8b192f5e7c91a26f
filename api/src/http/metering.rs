//! Metering: charges requests to the limits of their API keys, and tells clients what is left.

use crate::http::{ApiError, Caller, Record};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::Clock;
use tiercel_policy::admission::{Charge, KeyLimits, KeyUsage, OverLimit, Remaining};

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

/// Meters of all API keys with limits, by the names of the keys. A key that is renamed begins anew.
pub(crate) struct Meters {
    clock: Clock,
    usage: Mutex<HashMap<Arc<str>, KeyUsage>>,
}

/// A request that was charged to its key. When this value is dropped, the request has ended: the tokens that it did not
/// use are refunded.
pub(crate) struct Metered {
    meters: Arc<Meters>,
    key: Arc<str>,
    limits: KeyLimits,
    charge: Charge,
    prompt_tokens: u64,
    /// Record of the request, which counts its output tokens; `None` until the engine has accepted the request.
    record: Option<Rc<Record>>,
}

impl Meters {
    pub(crate) fn new(clock: Clock) -> Meters {
        Meters { clock, usage: Mutex::default() }
    }

    /// Charges a request with `choices` choices, whose prompts have `prompt_tokens` tokens and whose output at most
    /// `output_tokens`, to the caller's key. `None` for a key without limits.
    ///
    /// # Errors
    /// 429 if the request exceeds a limit of the key, and 400 if it alone has more choices than may be live.
    pub(crate) fn admit(
        self: &Arc<Meters>,
        caller: &Caller,
        choices: u32,
        (prompt_tokens, output_tokens): (u64, u64),
    ) -> Result<Option<Metered>, ApiError> {
        if caller.limits == KeyLimits::default() {
            return Ok(None);
        }
        if let Some(limit) = caller.limits.live.filter(|limit| choices > *limit) {
            let message = format!(
                "{choices} choices are more than this API key may have at a time, which is {limit}"
            );
            return Err(ApiError::param("n", message));
        }
        let now = self.clock.now();
        let tokens = prompt_tokens.saturating_add(output_tokens);
        let mut usage = self.usage();
        let of_key = usage.entry(caller.key.clone()).or_default();
        let charge = of_key.admit(&caller.limits, (choices, tokens), now)?;
        drop(usage);
        Ok(Some(Metered {
            meters: self.clone(),
            key: caller.key.clone(),
            limits: caller.limits,
            charge,
            prompt_tokens,
            record: None,
        }))
    }

    /// Writes into the headers of a response what is left of the caller's rates.
    pub(crate) fn tell(&self, caller: &Caller, headers: &mut HeaderMap) {
        let usage = self.usage().get(&caller.key).copied().unwrap_or_default();
        let remaining = usage.remaining(&caller.limits, self.clock.now());
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
        self.usage().retain(|key, usage| usage.live() > 0 || names.contains(key));
    }

    fn usage(&self) -> MutexGuard<'_, HashMap<Arc<str>, KeyUsage>> {
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
        let now = self.meters.clock.now();
        if let Some(usage) = self.meters.usage().get_mut(&self.key) {
            usage.settle(&self.limits, self.charge, used, now);
        }
    }
}

impl From<OverLimit> for ApiError {
    fn from(over: OverLimit) -> ApiError {
        // A place may come free at any time, so clients that have too many live requests shall come back after a second.
        let retry_after_ms = match over {
            OverLimit::Requests { retry_after_ms, .. }
            | OverLimit::Tokens { retry_after_ms, .. } => retry_after_ms,
            OverLimit::Live { .. } => 1_000,
        };
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, over.to_string())
            .code("rate_limit_exceeded")
            .retry_after_ms(retry_after_ms)
    }
}
