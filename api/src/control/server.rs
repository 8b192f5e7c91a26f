//! Endpoints about the server as a whole: status, load, drain and events.

use crate::boot::{App, Stage};
use crate::control::audit::Event;
use crate::control::body::read_if;
use crate::control::usage::{Usage, usage_of};
use crate::document::schema;
use crate::http::{Answering, ApiError, JsonRequest};
use actix_web::http::{StatusCode, header};
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;
use tiercel_actors::{EngineHandle, EngineStatus};
use tiercel_config::Role;
use tiercel_device::{Clock, Tier};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

/// Most listeners of the event stream.
const LISTENERS_MAX: usize = 16;
/// Longest deadline of a drain, ms.
const DEADLINE_MAX_MS: u64 = 86_400_000;

/// Numbers of requests by their tiers.
#[derive(Serialize, ToSchema)]
struct ByTier {
    premium: u32,
    standard: u32,
    background: u32,
}

/// State of the server.
#[derive(Serialize, ToSchema)]
pub(crate) struct Status {
    /// `ready` or `draining`.
    stage: &'static str,
    /// Time left until the deadline of the drain, ms; null while the server does not drain.
    #[schema(required)]
    deadline_in_ms: Option<u64>,
    /// Requests in the server, waiting or running; a choice counts as a request.
    requests: u32,
    max_requests: u32,
    /// Requests without a first token.
    queued: ByTier,
    running: u32,
    preempted: u32,
    /// Blocks of the device pool.
    device_blocks: u32,
    device_blocks_free: u32,
    /// Blocks of the host pool.
    host_blocks: u32,
    host_blocks_free: u32,
    /// Steps since the start.
    steps: u64,
    usage: Usage,
}

/// What a router needs to choose between servers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Load {
    /// Whether the server accepts requests.
    accepts: bool,
    /// Requests in the server, waiting or running; a choice counts as a request.
    requests: u32,
    max_requests: u32,
    /// Requests without a first token.
    queued: ByTier,
    running: u32,
    preempted: u32,
    /// Share of the device pool that is in use, from 0 to 1.
    kv_used: f64,
}

/// Endpoint `GET /control/v1/status`: the stage of the server's life, the time left of a drain, queues, memory and
/// counters.
pub(crate) async fn status(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let engine = &app.loaded()?.engine;
    let status = engine.status().await?;
    Ok(HttpResponse::Ok().json(status_of(&app, engine, &status)))
}

/// Returns the state of the server and its engine.
pub(super) fn status_of(app: &App, engine: &EngineHandle, status: &EngineStatus) -> Status {
    let counters = status.counters;
    Status {
        stage: app.stage().name(),
        deadline_in_ms: app.deadline_in_ms(),
        requests: status.places,
        max_requests: engine.settings().admission.max_requests,
        queued: by_tier(status.queued),
        running: status.running,
        preempted: status.preempted,
        device_blocks: status.device_blocks,
        device_blocks_free: status.device_blocks_free,
        host_blocks: status.host_blocks,
        host_blocks_free: status.host_blocks_free,
        steps: counters.steps,
        usage: usage_of(&app.keys, &status.usage),
    }
}

/// Endpoint `GET /load`: what a router needs to choose between servers.
pub(crate) async fn load(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let engine = &app.loaded()?.engine;
    let status = engine.status().await?;
    let EngineStatus { queued, running, preempted, places, device_blocks, .. } = status;
    let used = device_blocks.saturating_sub(status.device_blocks_free);
    Ok(HttpResponse::Ok().json(Load {
        accepts: app.stage() == Stage::Ready,
        requests: places,
        max_requests: engine.settings().admission.max_requests,
        queued: by_tier(queued),
        running,
        preempted,
        kv_used: f64::from(used) / f64::from(device_blocks.max(1)),
    }))
}

fn by_tier(counts: [u32; Tier::ALL.len()]) -> ByTier {
    let of = |tier: Tier| counts[tier.index()];
    ByTier {
        premium: of(Tier::Premium),
        standard: of(Tier::Standard),
        background: of(Tier::Background),
    }
}

/// Body of a request to drain the server.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DrainRequest {
    /// Longest time that running requests have to finish, ms; `http.drain_grace_ms` by default.
    #[schema(schema_with = deadline_schema)]
    deadline_ms: Option<u64>,
}

fn deadline_schema() -> RefOr<Schema> {
    let about =
        "Longest time that running requests have to finish, ms; http.drain_grace_ms by default.";
    schema::nullable(schema::count(0..=DEADLINE_MAX_MS, about))
}

/// A drain that has begun.
#[derive(Serialize, ToSchema)]
pub(crate) struct Draining {
    /// Longest time that running requests have to finish, ms.
    deadline_ms: u64,
    /// Requests that may finish.
    requests: u32,
}

/// Endpoint `POST /control/v1/drain`: refuses new requests, lets running ones finish until the deadline, ends the
/// others with an error of code `drained`, and stops the server with exit code 0.
pub(crate) async fn drain(
    app: Data<App>,
    request: HttpRequest,
    body: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(&request, Role::Operator)?;
    let expected = format!(
        "expected {{\"deadline_ms\": a whole number up to {DEADLINE_MAX_MS}}}, or {{}} for http.drain_grace_ms"
    );
    let in_range = |asked: &DrainRequest| asked.deadline_ms.is_none_or(|ms| ms <= DEADLINE_MAX_MS);
    let asked = read_if(body.body, ("deadline_ms", expected), in_range)?;
    let deadline_ms = asked.deadline_ms.unwrap_or(app.http.drain_grace_ms);
    let requests = app.loaded()?.engine.places();
    if !app.ask_to_drain(deadline_ms) {
        let message = "the server is draining already";
        return Err(ApiError::new(StatusCode::CONFLICT, message).code("draining"));
    }
    app.audit.record(&Event {
        by: &operator.name,
        action: "drain",
        deadline_ms: Some(deadline_ms),
        requests: Some(requests),
        ..Event::default()
    });
    Ok(HttpResponse::Accepted().json(Draining { deadline_ms, requests }))
}

/// Endpoint `GET /control/v1/events`: sends every change that is made from now on, and how far a drain is, as
/// server-sent events.
pub(crate) async fn events(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    if app.audit.listeners() >= LISTENERS_MAX {
        let message = format!("{LISTENERS_MAX} clients listen already; close one of them");
        return Err(
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("too_many_listeners")
        );
    }
    let state = (app.audit.listen(), app.clock.clone(), app.http.comment_interval_ms * 1_000);
    // While the client listens its connection is busy, so that a full listener does not evict it as idle.
    let answering = Answering::begin(&request);
    let begin = Bytes::from_static(b": events from now on\n\n");
    let rest = stream::unfold(state, |(mut events, clock, interval_us)| async move {
        let bytes = next_event(&mut events, &clock, interval_us).await?;
        Some((Ok(bytes), (events, clock, interval_us)))
    });
    let first = stream::once(std::future::ready(Ok::<Bytes, Infallible>(begin)));
    let body = first.chain(rest).inspect(move |_| _ = &answering);
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .streaming(body))
}

/// Returns the next event, or a comment if there is none for `interval_us`; `None` when the server ends.
async fn next_event(
    events: &mut Receiver<Option<Arc<str>>>,
    clock: &Clock,
    interval_us: u64,
) -> Option<Bytes> {
    match clock.timeout_us(interval_us, events.recv()).await {
        None => Some(Bytes::from_static(b": waiting\n\n")),
        Some(Ok(Some(json))) => Some(Bytes::from(format!("data: {json}\n\n"))),
        Some(Err(RecvError::Lagged(lost))) => {
            Some(Bytes::from(format!("event: lost\ndata: {{\"lost\": {lost}}}\n\n")))
        }
        Some(Ok(None) | Err(RecvError::Closed)) => None,
    }
}
