//! Metric of refused requests, by tier and by the code of the error.

use crate::http::ApiError;
use metrics::{counter, describe_counter};
use tiercel_device::Tier;

const NAME: &str = "tiercel_refused_requests_total";
/// Codes of errors whose metric has a value before the first such refusal.
const USUAL: [&str; 3] = ["queue_full", "overloaded", "rate_limit_exceeded"];

/// Registers the description of the metric, and its value for the usual refusals.
pub(crate) fn describe() {
    describe_counter!(
        NAME,
        "Requests refused or ended with the status 429, 503 or 504, by tier and code of the error"
    );
    for tier in [Tier::Premium, Tier::Standard, Tier::Background] {
        for code in USUAL {
            counter!(NAME, "tier" => tier.name(), "code" => code).increment(0);
        }
    }
}

/// Counts a request that was refused with `error`. Codes are words of the program, so their number is bounded.
pub(super) fn count(tier: Option<Tier>, error: &ApiError) {
    let tier = tier.map_or("unknown", Tier::name);
    counter!(NAME, "tier" => tier, "code" => error.outcome().unwrap_or("unknown")).increment(1);
}
