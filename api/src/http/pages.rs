//! HTTP endpoints for models, health, metrics and steps, and the answers to unknown paths and wrong methods.

use crate::boot::{App, Serving, Stage};
use crate::document::schema;
use crate::http::{ApiError, Surface, unserved};
use actix_web::http::{StatusCode, header};
use actix_web::web::{Data, Path, Query};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde::{Deserialize, Serialize};
use tiercel_config::EngineSettings;
use tiercel_device::{DeviceInfo, DeviceProfile, StepRecord};
use utoipa::ToSchema;
use utoipa::openapi::path::Parameter;

/// Timeout of the engine's answer in a health check, us; an engine that does not answer in time is reported as not
/// healthy.
const STATUS_TIMEOUT_US: u64 = 2_000_000;

/// List of the names of the served model.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// `list`.
    object: &'static str,
    data: Vec<ModelCard>,
}

/// The served model under one of its names.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelCard {
    id: String,
    /// `model`.
    object: &'static str,
    /// When the model was loaded, seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Context length, tokens (prompt and output together).
    max_model_len: u32,
}

/// Endpoint `GET /v1/models`: lists the served model under each of its names.
pub(crate) async fn models(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.caller(&request)?;
    let serving = app.accepting()?;
    let data = serving.names.iter().map(|name| describe(serving, name)).collect();
    Ok(HttpResponse::Ok().json(ModelList { object: "list", data }))
}

/// Endpoint `GET /v1/models/{id}`: describes the served model if `id` is one of its names, which may contain slashes.
pub(crate) async fn model(
    app: Data<App>,
    request: HttpRequest,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    app.keys.caller(&request)?;
    let serving = app.accepting()?;
    let name = serving.check_model(Some(&id))?;
    Ok(HttpResponse::Ok().json(describe(serving, name)))
}

/// Returns the served model's description in OpenAI's form, under one of its names.
fn describe(serving: &Serving, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: serving.created_unix_s,
        owned_by: "tiercel",
        max_model_len: serving.context_tokens,
    }
}

/// Whether the server can serve requests.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ready`, `loading`, `draining` or `engine does not answer`.
    status: &'static str,
}

/// Endpoint `GET /health`: answers 200 while requests can be served, otherwise 503.
pub(crate) async fn health(app: Data<App>) -> HttpResponse {
    let (code, status) = match app.stage() {
        Stage::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        Stage::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Stage::Ready => match engine_answers(&app).await {
            true => (StatusCode::OK, "ready"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "engine does not answer"),
        },
    };
    HttpResponse::build(code).json(Health { status })
}

async fn engine_answers(app: &App) -> bool {
    let Ok(serving) = app.accepting() else { return false };
    let status = app.clock.timeout_us(STATUS_TIMEOUT_US, serving.engine.status()).await;
    matches!(status, Some(Ok(_)))
}

/// Endpoint `GET /metrics`: returns the server's metrics in Prometheus' text format, on the listeners that
/// `http.metrics` names.
///
/// # Errors
/// 404 on another listener.
pub(crate) async fn metrics(
    app: Data<App>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let elsewhere = match request.app_data::<Surface>() {
        Some(surface) if surface.has_metrics(app.http.metrics) => None,
        Some(Surface::Control) => Some("public"),
        Some(Surface::Public) | None => Some("control"),
    };
    if let Some(elsewhere) = elsewhere {
        let message = format!(
            "the metrics are on the {elsewhere} listener (setting http.metrics), not on this one"
        );
        return Err(ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url"));
    }
    Ok(HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(app.metrics.render()))
}

/// Query parameters of the endpoint `GET /debug/steps`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StepsQuery {
    /// Step number after which the answer begins: only records of steps with a higher number are returned.
    after: u64,
}

impl StepsQuery {
    /// Returns the parameters for the document.
    pub(crate) fn parameters() -> [Parameter; 1] {
        let about = "Only steps with a higher number are returned.";
        [schema::query("after", schema::count(0..=u64::MAX, about))]
    }
}

/// Contents and times of the latest steps, and what a profile of this server needs beside them.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatestSteps<'a> {
    /// Sizes of the device.
    #[schema(value_type = Object)]
    device: &'a DeviceInfo,
    /// Speeds that the device measured of itself.
    #[schema(value_type = Object)]
    measured: &'a DeviceProfile,
    /// Settings that the engine was started with.
    #[schema(value_type = Object)]
    settings: &'a EngineSettings,
    /// TPOT target of the standard tier that is in effect, ms.
    #[schema(required)]
    standard_tpot_ms: Option<f64>,
    #[schema(value_type = Vec<Object>)]
    steps: Vec<StepRecord>,
}

/// Endpoint `GET /debug/steps`, used by `tiercel bench --calibrate`. Returns the contents and times of the latest
/// steps, the device, its measured profile, the engine's settings and the TPOT target of the standard tier.
pub(crate) async fn steps(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.caller(&request)?;
    let asked = Query::<StepsQuery>::from_query(request.query_string()).map_err(|error| {
        let message = format!("{error}; expected /debug/steps?after=STEP, a whole number");
        ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_query")
    })?;
    let engine = &app.accepting()?.engine;
    let steps = engine.steps(asked.after).await?;
    let targets = engine.status().await?.targets;
    Ok(HttpResponse::Ok().json(LatestSteps {
        device: engine.info(),
        measured: engine.profile(),
        settings: engine.settings(),
        standard_tpot_ms: targets.standard.tpot_ms,
        steps,
    }))
}

/// Version of the server.
#[derive(Serialize, ToSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// Endpoint `GET /version`: returns the version of the server, in vLLM's form. The OpenAPI document states the version
/// too, so the endpoint needs no key.
pub(crate) async fn version() -> HttpResponse {
    HttpResponse::Ok().json(Version { version: env!("CARGO_PKG_VERSION") })
}

/// The OpenAPI document of a listener, as JSON.
pub(crate) struct Document(pub(crate) String);

/// Endpoint `GET /openapi.json`: the OpenAPI document of this listener. The document says nothing that the public
/// source does not say, so it needs no key.
pub(crate) async fn openapi(document: Data<Document>) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(document.0.clone())
}

/// Answers requests for unknown paths. A path that OpenAI's API (or a known extension of it) has and this server does
/// not gets status 400, because clients take a 404 to mean that the model does not exist; all other paths get 404.
pub(crate) async fn elsewhere(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let path: String = request.path().chars().take(100).collect();
    if let Some(instead) = unserved::instead(&path) {
        let message = format!("{path} is not supported: {instead}");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("unsupported"));
    }
    let hint = unserved::meant(&path).map_or(String::new(), |meant| format!("; {meant}"));
    let message = format!("there is nothing at {} {path}{hint}", request.method());
    Err(ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url"))
}

/// Answers a request for a known path with a wrong method: status 405, with the allowed methods in the header `Allow`.
pub(crate) async fn wrong_method(request: HttpRequest, allowed: String) -> HttpResponse {
    let message = format!("{} takes {allowed}, not {}", request.path(), request.method());
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed");
    let mut response = error.error_response();
    let value = header::HeaderValue::try_from(allowed).expect("names of methods are ASCII");
    response.headers_mut().insert(header::ALLOW, value);
    response
}
