//! Endpoints that list, show and change live requests.

use crate::boot::{App, Serving};
use crate::control::audit::Event;
use crate::control::body::read;
use crate::control::query::Listing;
use crate::control::row::Row;
use crate::control::timeline::TimelineView;
use crate::control::views::{listed, row_of};
use crate::http::{ApiError, JsonRequest, tier_of};
use crate::live::LiveRequest;
use actix_web::http::StatusCode;
use actix_web::web::{Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tiercel_actors::{Changed, Control, SequenceView, Timeline};
use tiercel_config::{KeyTier, Role};
use tiercel_device::{SeqId, Tier};
use utoipa::ToSchema;

/// Most choices that are shown, if many requests have the id that is asked for.
const SHOWN_MAX: usize = 100;

/// Description of the path parameter with the id of a request.
pub(crate) const ID: &str =
    "Id of a request: the one in its response, its `X-Request-Id`, or the number of a sequence.";

/// Page of a listing of live requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestList<'a> {
    /// Step that was planned last.
    step: u64,
    /// Number of requests that match.
    total: usize,
    /// Choices of these requests, in the order that the query asks for.
    requests: Vec<&'a Row>,
    /// Offset of the next page; null on the last one.
    #[schema(required)]
    next_offset: Option<usize>,
}

/// Live requests with one id.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestsShown {
    /// Step that was planned last.
    step: u64,
    /// Number of choices of all live requests that have the id. Ended choices of these requests count.
    total: usize,
    /// The live ones among the first 100 of these choices by age.
    requests: Vec<Row>,
}

/// Effect of an operator's command on each choice of a request.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestChanges {
    /// Id of the request in its response.
    id: String,
    changes: Vec<RequestChange>,
}

/// A choice of a request before and after a change.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequestChange {
    /// Step that was planned last before the change, which takes effect in a later one.
    #[schema(required)]
    step: Option<u64>,
    #[schema(required)]
    before: Option<Row>,
    /// Null if the change ended the choice.
    #[schema(required)]
    after: Option<Row>,
}

/// Endpoint `GET /control/v1/requests`: lists live requests.
pub(crate) async fn list(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    listing(&app, &request, None).await
}

/// Endpoint `GET /v1/requests`: lists the live requests of the caller's tenant.
pub(crate) async fn own(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let caller = app.keys.caller(&request)?;
    listing(&app, &request, Some(&caller.tenant)).await
}

async fn listing(
    app: &App,
    request: &HttpRequest,
    of: Option<&str>,
) -> Result<HttpResponse, ApiError> {
    let listing = Listing::read(request)?;
    let engine = &app.loaded()?.engine;
    let kept = if of.is_some() { &app.own_rows } else { &app.rows };
    let (snapshot, rows) = listed(app, engine, kept).await?;
    let page = listing.page(&rows, of)?;
    Ok(HttpResponse::Ok().json(RequestList {
        step: snapshot.step.0,
        total: page.total,
        requests: page.rows,
        next_offset: page.next_offset,
    }))
}

/// Endpoint `GET /control/v1/requests/{id}`: shows the requests with an id, which may be any of the three ids of a
/// request, with their timelines. The engine is asked for these requests alone. Their positions are those of the
/// listing that is shared.
pub(crate) async fn show(
    app: Data<App>,
    request: HttpRequest,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let found = app.live.find(&id, None);
    if found.is_empty() {
        return Err(unknown(&id));
    }
    let engine = &app.loaded()?.engine;
    let seqs: Vec<SeqId> = found.iter().flat_map(|request| &request.sequences).copied().collect();
    let inspected = engine.inspect(&seqs[..seqs.len().min(SHOWN_MAX)]).await?;
    let (_, listing) = listed(&app, engine, &app.rows).await?;
    let now = app.clock.now();
    let row = |(view, timeline): &(SequenceView, Timeline)| {
        let request = found.iter().find(|request| request.sequences.contains(&view.seq))?;
        let in_line = view.first_token_at.is_none() && !view.paused;
        let listed = row_of(&listing, view.seq).filter(|_| in_line);
        Some(Row {
            position: listed.and_then(|row| row.position),
            first_token_in_ms: listed.and_then(|row| row.first_token_in_ms),
            timeline: Some(TimelineView::new(timeline, view.arrival)),
            ..Row::new(view, request, now)
        })
    };
    Ok(HttpResponse::Ok().json(RequestsShown {
        step: inspected.step.0,
        total: seqs.len(),
        requests: inspected.live.iter().filter_map(row).collect(),
    }))
}

/// Change of a request that an operator asks for.
#[derive(Debug, Clone, Copy)]
enum Change {
    Reprioritize { tier: Tier, priority: Option<i32> },
    Pause,
    Resume,
    Cancel,
}

/// Body of a request to change tier and priority.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reprioritize {
    #[schema(schema_with = crate::document::schema::tier)]
    tier: KeyTier,
    /// Priority within the tier; the lower number goes first. 0 by default.
    priority: Option<i32>,
}

/// Endpoint `POST /control/v1/requests/{id}/reprioritize`: changes the tier of a request and its priority within the
/// tier, which is 0 if none is given.
pub(crate) async fn reprioritize(
    app: Data<App>,
    request: HttpRequest,
    id: Path<String>,
    body: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(&request, Role::Operator)?;
    let Reprioritize { tier, priority } = read(body.body).map_err(|error| {
        let message = format!(
            "{error}; expected {{\"tier\": \"premium\", \"standard\" or \"background\", \"priority\": a whole number}}"
        );
        ApiError::param("tier", message)
    })?;
    let target = only(app.live.find(&id, None), &id)?;
    apply(app, operator.name, target, Change::Reprioritize { tier: tier_of(tier), priority }).await
}

/// Endpoint `POST /control/v1/requests/{id}/pause`: stops scheduling a request.
pub(crate) async fn pause(
    app: Data<App>,
    request: HttpRequest,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    change(app, &request, &id, Change::Pause).await
}

/// Endpoint `POST /control/v1/requests/{id}/resume`: schedules a paused request again.
pub(crate) async fn resume(
    app: Data<App>,
    request: HttpRequest,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    change(app, &request, &id, Change::Resume).await
}

/// Endpoint `POST /control/v1/requests/{id}/cancel`: ends a request with an error of code `cancelled`.
pub(crate) async fn cancel(
    app: Data<App>,
    request: HttpRequest,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    change(app, &request, &id, Change::Cancel).await
}

/// Endpoint `POST /v1/requests/{id}/cancel`: cancels a request of the caller's tenant.
pub(crate) async fn cancel_own(
    app: Data<App>,
    request: HttpRequest,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let caller = app.keys.caller(&request)?;
    let target = only(app.live.find(&id, Some(caller.salt)), &id)?;
    apply(app, caller.key, target, Change::Cancel).await
}

async fn change(
    app: Data<App>,
    request: &HttpRequest,
    id: &str,
    change: Change,
) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(request, Role::Operator)?;
    let target = only(app.live.find(id, None), id)?;
    apply(app, operator.name, target, change).await
}

/// Changes all choices of a request that are live, and answers with each of them before and after the change. The
/// change is completed and audited even if the client leaves meanwhile.
async fn apply(
    app: Data<App>,
    by: Arc<str>,
    target: Arc<LiveRequest>,
    change: Change,
) -> Result<HttpResponse, ApiError> {
    let applied = actix_rt::spawn(async move { apply_all(&app, &by, &target, change).await });
    applied.await.expect("a change neither panics nor is aborted")
}

async fn apply_all(
    app: &App,
    by: &str,
    target: &LiveRequest,
    change: Change,
) -> Result<HttpResponse, ApiError> {
    let serving = app.loaded()?;
    let mut changes = Vec::new();
    for seq in &target.sequences {
        let Some(changed) = command(serving, *seq, change).await? else { continue };
        if let Some(view) = &changed.after {
            target.set_tier(view.tier);
        }
        let now = app.clock.now();
        let row = |view: &Option<_>| view.as_ref().map(|view| Row::new(view, target, now));
        let (before, after) = (row(&changed.before), row(&changed.after));
        let step = Some(changed.step.0);
        let event = Event { by, action: action(change), step, before, after, ..Event::default() };
        app.audit.record(&event);
        changes.push(RequestChange { step, before: event.before, after: event.after });
    }
    if changes.is_empty() {
        return Err(unknown(&target.id));
    }
    Ok(HttpResponse::Ok().json(RequestChanges { id: target.id.clone(), changes }))
}

/// Gives the engine the command for one sequence; `None` if the sequence has ended.
async fn command(
    serving: &Serving,
    seq: SeqId,
    change: Change,
) -> Result<Option<Changed>, ApiError> {
    let control = match change {
        Change::Reprioritize { tier, priority } => {
            Control::Reprioritize { seq, tier, priority: priority.unwrap_or(0) }
        }
        Change::Pause => Control::Pause(seq),
        Change::Resume => Control::Resume(seq),
        Change::Cancel => Control::Cancel(seq),
    };
    let changed = serving.engine.command(control).await?;
    Ok(changed.known.then_some(changed))
}

fn action(change: Change) -> &'static str {
    match change {
        Change::Reprioritize { .. } => "reprioritize",
        Change::Pause => "pause",
        Change::Resume => "resume",
        Change::Cancel => "cancel",
    }
}

/// Returns the only request of those found under an id.
///
/// # Errors
/// 404 if there is none, and 409 if there are several, because clients choose `X-Request-Id`.
fn only(found: Vec<Arc<LiveRequest>>, id: &str) -> Result<Arc<LiveRequest>, ApiError> {
    match found.as_slice() {
        [] => Err(unknown(id)),
        [one] => Ok(one.clone()),
        several => {
            let ids: Vec<&str> =
                several.iter().take(10).map(|request| request.id.as_str()).collect();
            let message = format!(
                "{} requests have this id; name one of them: {}",
                several.len(),
                ids.join(", ")
            );
            Err(ApiError::new(StatusCode::CONFLICT, message).code("ambiguous_id"))
        }
    }
}

fn unknown(id: &str) -> ApiError {
    let short: String = id.chars().take(150).collect();
    let message = format!("no live request has the id {short:?}; it may have ended");
    ApiError::new(StatusCode::NOT_FOUND, message).code("request_not_found")
}
