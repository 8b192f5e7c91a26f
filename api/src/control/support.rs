//! Endpoint of a document about the whole engine, for support tickets.

use crate::boot::App;
use crate::control::query::LIMIT_MAX;
use crate::control::row::rows;
use crate::control::server::status_of;
use crate::http::ApiError;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};
use tiercel_config::{Role, SloTargets};
use tiercel_device::{Clock, Tier};

/// Version of the document's form.
const FORMAT: u32 = 1;

/// Endpoint `GET /control/v1/snapshot`: status, live requests (at most as many as a listing may have), settings and
/// latency targets, as they were within a few milliseconds. The document has names of keys and tenants, and neither API
/// keys nor prompts nor outputs.
pub(crate) async fn snapshot(
    app: Data<App>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let serving = app.loaded()?;
    let engine = &serving.engine;
    // Hold the settings, so that no operator changes them between the parts of the document.
    let settings = serving.settings.lock().await;
    let snapshot = engine.snapshot(0).await?;
    let status = engine.status().await?;
    let requests = app.live.of(snapshot.sequences.iter().map(|view| view.seq));
    let mut rows = rows(&snapshot, &requests, app.clock.now());
    let total = rows.len();
    rows.truncate(LIMIT_MAX);
    let targets: Value = [Tier::Premium, Tier::Standard, Tier::Background]
        .iter()
        .map(|tier| (tier.name().to_owned(), of_tier(&status.targets.of(*tier))))
        .collect();
    Ok(HttpResponse::Ok().json(json!({
        "format": FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
        "unix_s": Clock::unix_s(),
        "models": serving.names,
        "device": engine.info().name,
        "step": snapshot.step.0,
        "status": status_of(&app, engine, &status),
        "total": total,
        "requests": rows,
        "settings": *settings,
        "targets": targets,
    })))
}

fn of_tier(targets: &SloTargets) -> Value {
    json!({
        "ttft_ms": targets.ttft_ms,
        "ttft_ms_per_token": targets.ttft_ms_per_token,
        "ttft_prompt_tokens": targets.ttft_prompt_tokens,
        "tpot_ms": targets.tpot_ms,
        "e2e_ms": targets.e2e_ms,
    })
}
