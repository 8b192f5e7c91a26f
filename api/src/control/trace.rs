//! Endpoint that takes a trace of the engine over some seconds, and answers with a Perfetto file.

use crate::boot::App;
use crate::control::audit::Event;
use crate::control::views;
use crate::document::schema;
use crate::http::ApiError;
use crate::live::LiveRequest;
use actix_web::http::{StatusCode, header};
use actix_web::web::{self, Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use tiercel_config::Role;
use tiercel_device::SeqId;
use tiercel_simulation::{EngineFacts, Named, perfetto};
use utoipa::openapi::path::Parameter;

/// Lengths of a trace, seconds.
pub(crate) const SECONDS: RangeInclusive<u64> = 1..=60;
/// Length of a trace if the query states none, seconds.
pub(crate) const SECONDS_BY_DEFAULT: u64 = 10;

/// Query parameters of a trace.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TraceQuery {
    /// Length of the trace, seconds.
    seconds: u64,
}

impl Default for TraceQuery {
    fn default() -> TraceQuery {
        TraceQuery { seconds: SECONDS_BY_DEFAULT }
    }
}

impl TraceQuery {
    /// Returns the parameters for the document.
    pub(crate) fn parameters() -> [Parameter; 1] {
        let about = format!("Length of the trace, seconds; {SECONDS_BY_DEFAULT} by default.");
        [schema::query("seconds", schema::count(SECONDS, &about))]
    }

    fn read(request: &HttpRequest) -> Result<TraceQuery, ApiError> {
        let wrong = |why: String| {
            let (least, most) = (SECONDS.start(), SECONDS.end());
            let message =
                format!("{why}; expected ?seconds=N, a whole number from {least} to {most}");
            ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_query")
        };
        let query = Query::<TraceQuery>::from_query(request.query_string())
            .map_err(|error| wrong(error.to_string()))?
            .into_inner();
        if !SECONDS.contains(&query.seconds) {
            return Err(wrong(format!("'seconds' is {}", query.seconds)));
        }
        Ok(query)
    }
}

/// Endpoint `GET /control/v1/trace`: takes a trace of the engine from now on, and answers after that time with a
/// Perfetto file of steps, copies and request lanes. If the client leaves, the trace ends. If the server is drained
/// meanwhile, the trace ends with the engine. The file has ids of requests, and neither prompts nor outputs.
pub(crate) async fn trace(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let viewer = app.keys.operator(&request, Role::Viewer)?;
    let TraceQuery { seconds } = TraceQuery::read(&request)?;
    let engine = &app.loaded()?.engine;
    let capture = engine.capture().await?.map_err(|busy| {
        let message =
            format!("{busy}; the event `trace` names its key; try again when that trace has ended");
        ApiError::new(StatusCode::CONFLICT, message).code("trace_running")
    })?;
    let _answering = app.traces.begin();
    app.audit.record(&Event {
        by: &viewer.name,
        action: "trace",
        deadline_ms: Some(seconds * 1_000),
        ..Event::default()
    });
    // If the client leaves, this future and the capture are dropped, and dropping the capture ends the capture.
    let views = views::all(&app, engine).await?;
    let mut names = names(&app);
    let time = async {
        app.clock.sleep_us(seconds * 1_000_000).await;
        names.extend(self::names(&app));
    };
    let capture = capture.finish(time).await?;
    let facts = EngineFacts {
        device: engine.info().name.clone(),
        device_blocks: engine.info().device_blocks,
        host_blocks: engine.info().host_blocks,
    };
    // Writing the file of a full server takes longer than an HTTP worker may be held up.
    let written = web::block(move || {
        let named = Named { views, names };
        perfetto(&capture, &facts, &named)
    });
    let failed = |why: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why);
    let file = written.await.map_err(|error| failed(error.to_string()))?;
    let file = file.map_err(|error| failed(error.to_string()))?;
    Ok(HttpResponse::Ok()
        .content_type("application/json")
        .insert_header((header::CONTENT_DISPOSITION, "attachment; filename=\"tiercel-trace.json\""))
        .body(file))
}

/// Returns the names of all live requests, by sequence.
fn names(app: &App) -> HashMap<SeqId, String> {
    let name = |request: &LiveRequest| {
        let LiveRequest { id, request_id, tenant, .. } = request;
        format!("{id} ({request_id}, tenant {tenant})")
    };
    let requests = app.live.of(app.live.sequences().into_iter());
    requests.into_iter().map(|(seq, request)| (seq, name(&request))).collect()
}
