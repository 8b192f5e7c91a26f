//! Endpoint that lists the API keys in force.

use crate::boot::App;
use crate::control::query::{LIMIT_MAX, Page, page_of};
use crate::document::schema;
use crate::http::{Accepted, ApiError, Meters};
use actix_web::http::StatusCode;
use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tiercel_config::{AboveHighest, Role, utc_text};
use tiercel_device::Clock;
use tiercel_policy::admission::Remaining;
use utoipa::ToSchema;
use utoipa::openapi::path::Parameter;

/// Query parameters of the listing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Listing {
    /// Show only keys of this tenant.
    tenant: Option<String>,
    /// Most keys in the answer.
    limit: Option<usize>,
    /// Number of keys to skip.
    offset: usize,
}

impl Listing {
    /// Returns the parameters for the document.
    pub(crate) fn parameters() -> [Parameter; 3] {
        let limit = schema::count(1..=LIMIT_MAX as u64, "Most keys in the answer; 100 by default.");
        [
            schema::query("tenant", schema::text("Only keys of this tenant.")),
            schema::query("limit", limit),
            schema::query("offset", schema::count(0..=u64::MAX, "Number of keys to skip.")),
        ]
    }
}

/// Page of the listing of API keys.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyList {
    /// Number of keys that match.
    total: usize,
    keys: Vec<KeyRow>,
    /// Offset of the next page; null on the last one.
    #[schema(required)]
    next_offset: Option<usize>,
}

/// Limit of a rate, and what is left of it.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct RateRow {
    /// Amount per minute that the key allows.
    limit: u64,
    /// Amount that may come at once now.
    remaining: u64,
    /// Time after which as much may come at once as ever, ms.
    reset_ms: u64,
}

/// An API key as the control API shows it: everything but the key and its hash.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct KeyRow {
    #[schema(value_type = String)]
    name: Arc<str>,
    #[schema(value_type = String)]
    tenant: Arc<str>,
    /// Weight of the tenant in the fair queues.
    share: f64,
    #[schema(schema_with = schema::tier)]
    highest_tier: &'static str,
    #[schema(schema_with = schema::tier)]
    default_tier: &'static str,
    /// What happens to a request above the highest tier: `cap` or `refuse`.
    #[schema(value_type = String)]
    above_highest: AboveHighest,
    /// Whether requests with the key may state tighter targets than those of their tier.
    may_tighten_targets: bool,
    /// What the key may do on the control API: `viewer`, `operator`, or null for nothing.
    #[schema(required, value_type = Option<String>)]
    role: Option<Role>,
    /// Time in UTC from which the key is refused; null if it does not expire.
    #[schema(required)]
    expires: Option<String>,
    expired: bool,
    /// Rate of requests; null for no limit.
    #[schema(required)]
    requests_per_min: Option<RateRow>,
    /// Rate of tokens; null for no limit.
    #[schema(required)]
    tokens_per_min: Option<RateRow>,
    /// Live choices now.
    live: u32,
    /// Most live choices; null for no limit.
    #[schema(required)]
    max_live: Option<u32>,
}

/// Endpoint `GET /control/v1/keys`: lists the API keys in force. A server without keys has none.
pub(crate) async fn list(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let listing = Query::<Listing>::from_query(request.query_string()).map_err(|error| {
        let message = format!("{error}; the parameters are tenant, limit and offset");
        ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_query")
    })?;
    let Listing { tenant, limit, offset } = listing.into_inner();
    let may_tighten = app.loaded()?.settings.lock().await.slo.requests_may_tighten;
    let keys = app.keys.in_force();
    let of_tenant = |key: &&Accepted| tenant.as_ref().is_none_or(|t| *key.caller.tenant == **t);
    let shown: Vec<&Accepted> = keys.iter().filter(of_tenant).collect();
    let count = shown.len();
    let Page { total, rows, next_offset } = page_of(shown.into_iter(), count, limit, offset)?;
    let now_s = Clock::unix_s() as i64;
    let keys = rows.into_iter().map(|key| row(key, &app.meters, may_tighten, now_s)).collect();
    Ok(HttpResponse::Ok().json(KeyList { total, keys, next_offset }))
}

/// Returns a key as the control API shows it. `may_tighten` is the setting `slo.requests_may_tighten`, and `now_s` the
/// time now, seconds since 1970.
fn row(key: &Accepted, meters: &Meters, may_tighten: bool, now_s: i64) -> KeyRow {
    let caller = &key.caller;
    let ([requests, tokens], live) = meters.of_key(caller);
    let rate = |left: Remaining| {
        let Remaining { limit, remaining, reset_ms } = left;
        RateRow { limit, remaining, reset_ms }
    };
    KeyRow {
        name: caller.key.clone(),
        tenant: caller.tenant.clone(),
        share: caller.weight.get(),
        highest_tier: caller.rights.highest_tier.name(),
        default_tier: caller.rights.default_tier.name(),
        above_highest: caller.rights.above_highest,
        may_tighten_targets: caller.rights.may_tighten.unwrap_or(may_tighten),
        role: key.role,
        expires: key.expires_unix_s.map(utc_text),
        expired: key.expires_unix_s.is_some_and(|at| at <= now_s),
        requests_per_min: requests.map(rate),
        tokens_per_min: tokens.map(rate),
        live,
        max_live: caller.limits.live,
    }
}
