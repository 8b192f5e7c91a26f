//! Endpoint that lists the API keys in force.

use crate::boot::App;
use crate::control::query::page_of;
use crate::http::{Accepted, ApiError, Meters};
use actix_web::http::StatusCode;
use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use tiercel_config::{AboveHighest, Role, utc_text};
use tiercel_device::Clock;
use tiercel_policy::admission::Remaining;

/// Query parameters of the listing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Listing {
    /// Show only keys of this tenant.
    tenant: Option<String>,
    /// Most keys in the answer.
    limit: Option<usize>,
    /// Number of keys to skip.
    offset: usize,
}

/// Limit of a rate, and what is left of it.
#[derive(Debug, PartialEq, Serialize)]
struct RateRow {
    /// Amount per minute that the key allows.
    limit: u64,
    /// Amount that may come at once now.
    remaining: u64,
    /// Time after which as much may come at once as ever, ms.
    reset_ms: u64,
}

/// An API key as the control API shows it: everything but the key and its hash.
#[derive(Debug, PartialEq, Serialize)]
struct KeyRow {
    name: Arc<str>,
    tenant: Arc<str>,
    /// Weight of the tenant in the fair queues.
    share: f64,
    highest_tier: &'static str,
    default_tier: &'static str,
    above_highest: AboveHighest,
    /// Whether requests with the key may state tighter targets than those of their tier.
    may_tighten_targets: bool,
    /// What the key may do on the control API; `None` for nothing.
    role: Option<Role>,
    /// Time in UTC from which the key is refused; `None` if it does not expire.
    expires: Option<String>,
    expired: bool,
    /// Rate of requests; `None` for no limit.
    requests_per_min: Option<RateRow>,
    /// Rate of tokens; `None` for no limit.
    tokens_per_min: Option<RateRow>,
    /// Live choices now.
    live: u32,
    /// Most live choices; `None` for no limit.
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
    let page = page_of(shown, limit, offset)?;
    let now_s = Clock::unix_s() as i64;
    let rows: Vec<KeyRow> =
        page.rows.into_iter().map(|key| row(key, &app.meters, may_tighten, now_s)).collect();
    Ok(HttpResponse::Ok().json(json!({
        "total": page.total,
        "keys": rows,
        "next_offset": page.next_offset,
    })))
}

/// Returns a key as the control API shows it. `may_tighten` is the setting `slo.requests_may_tighten`, and `now_s` the time
/// now, seconds since 1970.
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
