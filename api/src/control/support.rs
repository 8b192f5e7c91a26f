//! Endpoint of a document about the whole engine, for support tickets.

use crate::boot::App;
use crate::control::query::LIMIT_MAX;
use crate::control::row::Row;
use crate::control::server::{Status, status_of};
use crate::control::views::listed;
use crate::http::ApiError;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use std::collections::BTreeMap;
use tiercel_config::{EngineSettings, Role, SloTargets};
use tiercel_device::{Clock, Tier};
use utoipa::ToSchema;

/// Version of the document's form.
const FORMAT: u32 = 1;

/// Document about the whole engine.
#[derive(Serialize, ToSchema)]
pub(crate) struct SupportSnapshot<'a> {
    /// Version of the document's form.
    format: u32,
    /// Version of the server.
    version: &'static str,
    /// Time at which the document was made, seconds since 1970.
    unix_s: u64,
    /// Names of the served model.
    models: &'a [String],
    device: &'a str,
    /// Step that was planned last.
    step: u64,
    status: Status,
    /// Number of live choices.
    total: usize,
    /// Live choices, at most 1,000, in the order of service.
    requests: Vec<&'a Row>,
    /// Settings of the engine.
    #[schema(value_type = Object)]
    settings: &'a EngineSettings,
    /// Latency targets in effect, by tier.
    targets: BTreeMap<&'static str, TierTargets>,
}

/// Latency targets of a tier; null where the tier has none.
#[derive(Serialize, ToSchema)]
struct TierTargets {
    #[schema(required)]
    ttft_ms: Option<f64>,
    /// Time by which each prompt token beyond `ttft_prompt_tokens` lengthens the TTFT target, ms.
    ttft_ms_per_token: f64,
    ttft_prompt_tokens: u32,
    /// Time by which the TTFT target is shorter for each token that a prompt lacks to `ttft_prompt_tokens`, ms.
    ttft_ms_per_token_fewer: f64,
    #[schema(required)]
    tpot_ms: Option<f64>,
    #[schema(required)]
    e2e_ms: Option<f64>,
}

/// Endpoint `GET /control/v1/snapshot`: status, live requests (at most as many as a listing may have), settings and
/// latency targets. The requests are those of the listing that is shared, which is at most 250 ms old, or a second with
/// 10,000 live requests. The document has names of keys and tenants, and neither API
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
    let (snapshot, rows) = listed(&app, engine, &app.rows).await?;
    let status = engine.status().await?;
    let targets = [Tier::Premium, Tier::Standard, Tier::Background]
        .map(|tier| (tier.name(), of_tier(&status.targets.of(tier))));
    Ok(HttpResponse::Ok().json(SupportSnapshot {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        unix_s: Clock::unix_s(),
        models: &serving.names,
        device: &engine.info().name,
        step: snapshot.step.0,
        status: status_of(&app, engine, &status),
        total: rows.len(),
        requests: rows.in_order(None).take(LIMIT_MAX).collect(),
        settings: &settings,
        targets: targets.into(),
    }))
}

fn of_tier(targets: &SloTargets) -> TierTargets {
    TierTargets {
        ttft_ms: targets.ttft_ms,
        ttft_ms_per_token: targets.ttft_ms_per_token,
        ttft_prompt_tokens: targets.ttft_prompt_tokens,
        ttft_ms_per_token_fewer: targets.ttft_ms_per_token_fewer,
        tpot_ms: targets.tpot_ms,
        e2e_ms: targets.e2e_ms,
    }
}
