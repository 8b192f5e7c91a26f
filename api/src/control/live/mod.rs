//! Endpoint that the live page and other live views poll: one document about the whole engine, which all of them share.
//!
//! | file | one job |
//! |---|---|
//! | `document` | the document, and how it is kept small |
//! | `tiers` | numbers of requests, blocks and latencies by tier |
//! | `tenants` | live requests, memory and usage of the tenants with the most memory, requests and usage |
//! | `rows` | the requests that are shown, with their moments |

mod document;
mod rows;
mod tenants;
mod tiers;

pub(crate) use document::LiveDocument;

use crate::boot::App;
use crate::control::views::snapshot_age_ms;
use crate::http::ApiError;
use actix_web::http::header;
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse};
use document::{Parts, Shown};
use tiercel_actors::EngineHandle;
use tiercel_config::Role;
use tiercel_device::SeqId;

/// Age up to which views share a document, ms, if few requests are live; as with listings it is longer if many are.
const DOCUMENT_AGE_MS: u64 = 450;

/// Endpoint `GET /control/v1/live`: what live views show, made at most about twice a second.
pub(crate) async fn live(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let engine = &app.loaded()?.engine;
    let age_ms = DOCUMENT_AGE_MS.max(snapshot_age_ms(engine.places()));
    let json = app.document.young(&app.clock, age_ms, document(&app, engine, age_ms / 2)).await?;
    Ok(HttpResponse::Ok()
        .content_type("application/json")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .body(json))
}

/// Makes a document from a snapshot of at most `age_ms`, with few small messages to the actors.
async fn document(app: &App, engine: &EngineHandle, age_ms: u64) -> Result<Bytes, ApiError> {
    let snapshot = engine.snapshot(age_ms).await?;
    let shown = rows::shown(&snapshot);
    let seqs: Vec<SeqId> = shown.iter().map(|(view, _)| view.seq).collect();
    let inspected = engine.inspect(&seqs).await?;
    let blocks = engine.block_map(snapshot.clone()).await?;
    let parts = Parts {
        blocks,
        work: engine.work().await?,
        slo: engine.slo().await?,
        status: engine.status().await?,
        now: app.clock.now(),
    };
    let requests = rows::rows(app, &shown, inspected);
    document::json(app, engine, &parts, Shown { snapshot: &snapshot, requests }).await
}
