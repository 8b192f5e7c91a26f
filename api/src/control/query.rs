//! Queries: which requests a listing shows, in which order, and how many.

use crate::control::row::{Row, STATES, state_schema};
use crate::control::sorted::{Sort, SortedRows};
use crate::document::schema;
use crate::http::{ApiError, tier_of};
use actix_web::HttpRequest;
use actix_web::http::StatusCode;
use actix_web::web::Query;
use serde::Deserialize;
use tiercel_config::KeyTier;
use utoipa::openapi::path::Parameter;

/// Most rows in one answer.
pub(crate) const LIMIT_MAX: usize = 1_000;
/// Rows in one answer if the query states no number.
const LIMIT: usize = 100;

/// Query parameters of a listing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Listing {
    /// Show only requests of this tier.
    tier: Option<KeyTier>,
    /// Show only requests in this state.
    state: Option<String>,
    /// Show only paused requests, or only others.
    paused: Option<bool>,
    /// Show only requests of this tenant.
    tenant: Option<String>,
    /// Show only requests with this `X-Request-Id`.
    request_id: Option<String>,
    /// Order of the answer; without it, the order of service.
    sort: Option<Sort>,
    /// Most requests in the answer.
    limit: Option<usize>,
    /// Number of requests to skip.
    offset: usize,
}

/// A page of a listing.
pub(crate) struct Page<T> {
    /// Number of rows that match.
    pub(crate) total: usize,
    pub(crate) rows: Vec<T>,
    /// Offset of the next page; `None` on the last one.
    pub(crate) next_offset: Option<usize>,
}

/// Returns the page of `rows`, of which there are `total`, from `offset` on, with at most `limit` rows; 100 if the
/// query states no limit.
///
/// # Errors
/// 400 for a limit that is not allowed.
pub(crate) fn page_of<T>(
    rows: impl Iterator<Item = T>,
    total: usize,
    limit: Option<usize>,
    offset: usize,
) -> Result<Page<T>, ApiError> {
    let limit = limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        let message = format!("'limit' must be a number from 1 to {LIMIT_MAX}");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_query"));
    }
    let rows: Vec<T> = rows.skip(offset).take(limit).collect();
    let next = offset.saturating_add(rows.len());
    Ok(Page { total, rows, next_offset: (next < total).then_some(next) })
}

impl Listing {
    /// Returns the parameters for the document.
    pub(crate) fn parameters() -> [Parameter; 8] {
        let limit = format!("Most requests in the answer; {LIMIT} by default.");
        let sort = schema::word(
            &["slack", "age", "output"],
            "Order: the least slack first, the oldest first, or the longest output first; by default the order of service.",
        );
        [
            schema::query("tier", schema::tier()),
            schema::query("state", state_schema()),
            schema::query("paused", schema::flag("Only paused requests, or only others.")),
            schema::query("tenant", schema::text("Only requests of this tenant.")),
            schema::query("request_id", schema::text("Only requests with this `X-Request-Id`.")),
            schema::query("sort", sort),
            schema::query("limit", schema::count(1..=LIMIT_MAX as u64, &limit)),
            schema::query("offset", schema::count(0..=u64::MAX, "Number of requests to skip.")),
        ]
    }

    /// Reads the query parameters of a listing.
    ///
    /// # Errors
    /// 400 for a parameter that is unknown or that has a value that is not allowed.
    pub(crate) fn read(request: &HttpRequest) -> Result<Listing, ApiError> {
        let wrong = |message: String| {
            Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_query"))
        };
        let listing = match Query::<Listing>::from_query(request.query_string()) {
            Ok(listing) => listing.into_inner(),
            Err(error) => {
                return wrong(format!(
                    "{error}; the parameters are tier, state, paused, tenant, request_id, sort (slack, age or output), \
                     limit and offset"
                ));
            }
        };
        if listing.state.as_ref().is_some_and(|state| !STATES.contains(&state.as_str())) {
            return wrong(format!("'state' must be one of {}", STATES.join(", ")));
        }
        Ok(listing)
    }

    /// Returns the page of `rows` that the query asks for, of the requests of the tenant `of` only if it is given.
    ///
    /// # Errors
    /// 400 for a limit that is not allowed.
    pub(crate) fn page<'a>(
        &self,
        rows: &'a SortedRows,
        of: Option<&str>,
    ) -> Result<Page<&'a Row>, ApiError> {
        let in_order = rows.in_order(self.sort);
        if of.is_none() && !self.filters() {
            return page_of(in_order, rows.len(), self.limit, self.offset);
        }
        let of_tenant = |row: &Row| of.is_none_or(|tenant| *row.tenant == *tenant);
        let shown: Vec<&Row> = in_order.filter(|row| of_tenant(row) && self.matches(row)).collect();
        let total = shown.len();
        page_of(shown.into_iter(), total, self.limit, self.offset)
    }

    /// Returns whether the query may leave out requests.
    fn filters(&self) -> bool {
        let Listing { tier, state, paused, tenant, request_id, .. } = self;
        tier.is_some()
            || state.is_some()
            || paused.is_some()
            || tenant.is_some()
            || request_id.is_some()
    }

    fn matches(&self, row: &Row) -> bool {
        self.tier.is_none_or(|tier| row.tier == tier_of(tier).name())
            && self.state.as_ref().is_none_or(|state| row.state == state)
            && self.paused.is_none_or(|paused| row.paused == paused)
            && self.tenant.as_ref().is_none_or(|tenant| *row.tenant == **tenant)
            && self.request_id.as_ref().is_none_or(|id| *row.request_id == **id)
    }
}
