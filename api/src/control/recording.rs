//! Endpoints that record live traffic: begin, look, end, and fetch the file.

use crate::boot::{App, Serving};
use crate::control::audit::Event;
use crate::control::body::read_if;
use crate::control::recorded::Facts;
use crate::control::{recording_file, views};
use crate::document::schema;
use crate::http::{ApiError, JsonRequest};
use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use tiercel_actors::recording::{Recorder, RecordingLimits, RecordingState, RecordingStatus};
use tiercel_config::Role;
use tiercel_device::{Clock, Timestamp};
use tiercel_workload::MAX_RECORDED;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

/// Longest recording, s.
const MAX_S: u64 = 86_400;
/// Length at which a recording ends if its operator states none, s.
const DEFAULT_S: u64 = 3_600;
/// Most sequences of a recording if its operator states no limit.
const DEFAULT_SEQUENCES: u32 = 100_000;
/// Interval at which the steps of a recorded engine are fetched, us. The engine keeps the last few thousand steps.
const STEPS_US: u64 = 500_000;
/// Longest time, us, of each of two waits during which new requests are held back: until the requests that are being
/// submitted have an answer, and until the views of the live requests are up to date.
const SUBMITTED_US: u64 = 1_000_000;

/// Body of a request to begin a recording.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RecordingRequest {
    /// Most sequences, at which the recording ends; 100,000 by default. A request for `n` choices has `n` sequences.
    #[schema(schema_with = sequences_schema)]
    max_sequences: Option<u32>,
    /// Time after which the recording ends, s; an hour by default.
    #[schema(schema_with = seconds_schema)]
    max_s: Option<u64>,
}

impl RecordingRequest {
    fn is_in_range(&self) -> bool {
        let sequences = self.max_sequences.is_none_or(|most| (1..=MAX_RECORDED).contains(&most));
        sequences && self.max_s.is_none_or(|most| (1..=MAX_S).contains(&most))
    }
}

fn sequences_schema() -> RefOr<Schema> {
    let about = "Most sequences, at which the recording ends; 100,000 by default.";
    schema::nullable(schema::count(1..=u64::from(MAX_RECORDED), about))
}

fn seconds_schema() -> RefOr<Schema> {
    let about = "Time after which the recording ends, s; an hour by default.";
    schema::nullable(schema::count(1..=MAX_S, about))
}

/// The recording that the server keeps: the one that runs, or the last one.
#[derive(Serialize, ToSchema)]
pub(crate) struct RecordingView {
    /// `none`, `running` or `ended`.
    state: &'static str,
    /// Recorded sequences.
    sequences: u32,
    /// Recorded sequences that are live, or were when the recording ended.
    live: u32,
    /// Recorded steps.
    steps: u32,
    /// Whether later steps are left out, because the recording has its most steps (100,000).
    steps_cut: bool,
    /// Number of prompts of which block names are missing, because the recording has its most block names (524,288). A
    /// replay does not know which later prompts begin like these prompts.
    prefixes_cut: u32,
    /// Time for which the recording has run, s.
    elapsed_s: f64,
    /// Most sequences; null without a recording.
    #[schema(required)]
    max_sequences: Option<u32>,
    /// Time after which the recording ends, s; null without a recording.
    #[schema(required)]
    max_s: Option<u64>,
    /// Limit that ended the recording, `sequences` or `time`; null if none did.
    #[schema(required)]
    cut: Option<&'static str>,
}

/// Endpoint `GET /control/v1/recording`: shows the state of the running recording, or of the last recording if none
/// runs.
pub(crate) async fn show(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    Ok(HttpResponse::Ok().json(view(app.loaded()?.engine.recorder())))
}

/// Endpoint `POST /control/v1/recording`: begins a recording, in place of one that has ended.
pub(crate) async fn start(
    app: Data<App>,
    request: HttpRequest,
    body: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(&request, Role::Operator)?;
    let expected = format!(
        "expected {{\"max_sequences\": 1 to {MAX_RECORDED}, \"max_s\": 1 to {MAX_S}}}, whole numbers, or {{}}"
    );
    let asked = read_if(body.body, ("body", expected), RecordingRequest::is_in_range)?;
    let max_sequences = asked.max_sequences.unwrap_or(DEFAULT_SEQUENCES);
    let max_s = asked.max_s.unwrap_or(DEFAULT_S);
    let serving = app.accepting()?;
    let limits = RecordingLimits { max_sequences, max_us: max_s * 1_000_000 };
    begin(&app, serving, limits).await?;
    let requests = serving.engine.places();
    app.audit.record(&Event {
        by: &operator.name,
        action: "record_start",
        requests: Some(requests),
        deadline_ms: Some(max_s * 1_000),
        ..Event::default()
    });
    Ok(HttpResponse::Ok().json(view(serving.engine.recorder())))
}

async fn begin(
    app: &Data<App>,
    serving: &Serving,
    limits: RecordingLimits,
) -> Result<(), ApiError> {
    let engine = &serving.engine;
    let running = || {
        let message = "a recording runs already; stop it first";
        ApiError::new(StatusCode::CONFLICT, message).code("recording")
    };
    if runs(engine.recorder()) {
        return Err(running());
    }
    // Hold the settings, so that no operator changes them while the recording begins.
    let settings = serving.settings.lock().await;
    let targets = engine.status().await?.targets;
    let last_step = views::shared(engine).await?.step.0;
    let block_size = settings.prefix_cache.enabled.then(|| engine.info().block_size);
    let mut live = views::all(app, engine).await?;
    // Hold new requests back, so that each request is either among the live ones or arrives later, with all its
    // choices.
    let late = || {
        let message = "the requests that arrive were not submitted within a second, so no recording began; try again";
        ApiError::unavailable(message, "recording")
    };
    let held_back = app.clock.timeout_us(SUBMITTED_US, app.live.hold_back()).await;
    let held_back = held_back.ok_or_else(late)?;
    let updated = app.clock.timeout_us(SUBMITTED_US, views::update(app, engine, &mut live)).await;
    updated.ok_or_else(late)??;
    let began = engine.recorder().begin(limits, block_size, &live);
    drop(held_back);
    let began = began.ok_or_else(running)?;
    app.recorded.begin(Facts {
        unix_s: Clock::unix_s(),
        settings: settings.clone(),
        settings_changed: false,
        targets_changed: false,
        targets,
    });
    actix_rt::spawn(collect_steps(app.clone(), began, last_step));
    Ok(())
}

/// Adds the engine's steps to the recording that began at `began`, and notes changes of the latency targets, until the
/// recording ends.
async fn collect_steps(app: Data<App>, began: Timestamp, mut last: u64) {
    let Ok(Serving { engine, .. }) = app.loaded() else { return };
    loop {
        app.clock.sleep_us(STEPS_US).await;
        let Ok(steps) = engine.steps(last).await else {
            engine.recorder().end();
            return;
        };
        last = steps.last().map_or(last, |step| step.step);
        if !engine.recorder().add_steps(began, &steps) {
            return;
        }
        if let Ok(status) = engine.status().await {
            app.recorded.note_targets(&status.targets);
        }
    }
}

/// Endpoint `POST /control/v1/recording/stop`: ends the recording. The server keeps it until the next one begins.
pub(crate) async fn stop(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(&request, Role::Operator)?;
    let engine = &app.loaded()?.engine;
    let recorder = engine.recorder();
    if recorder.status().is_none() {
        return Err(nothing());
    }
    // Add the steps since the last look. An engine that has stopped has no steps, and its recording ends too.
    if let Some((began, last)) = recorder.newest_step()
        && let Ok(steps) = engine.steps(last).await
    {
        recorder.add_steps(began, &steps);
    }
    if recorder.end() {
        app.audit.record(&Event {
            by: &operator.name,
            action: "record_stop",
            requests: recorder.status().map(|status| status.sequences),
            ..Event::default()
        });
    }
    Ok(HttpResponse::Ok().json(view(recorder)))
}

/// Endpoint `GET /control/v1/recording/file`: sends the ended recording as a file. A recording holds the arrivals and
/// lengths of all tenants' requests, and no text. The caller needs the role operator.
pub(crate) async fn file(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(&request, Role::Operator)?;
    let engine = app.loaded()?.engine.clone();
    let status = engine.recorder().status().ok_or_else(nothing)?;
    let facts = app.recorded.facts().ok_or_else(nothing)?;
    let busy = |message| ApiError::new(StatusCode::CONFLICT, message).code("recording");
    let sending = app.recorded.sending().ok_or_else(|| {
        busy("another client is being sent the recording; try again when it has the file")
    })?;
    let Some(recording) = engine.recorder().ended() else {
        return Err(busy("the recording runs; stop it first"));
    };
    app.audit.record(&Event {
        by: &operator.name,
        action: "record_read",
        requests: Some(status.sequences),
        ..Event::default()
    });
    // The thread that writes the text holds the right, so that no second text is written at the same time, even if the
    // client leaves while the first text is written.
    let written = actix_web::web::block(move || {
        let text = recording_file::text(&recording, &facts, &engine);
        (text, sending)
    });
    let (text, sending) = written.await.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the recording could not be written")
    })?;
    Ok(HttpResponse::Ok().content_type(CONTENT_TYPE).body(sending.body(text)))
}

/// Content type of a recording's file.
pub(crate) const CONTENT_TYPE: &str = "application/x-ndjson";

/// Whether a recording runs.
pub(super) fn runs(recorder: &Recorder) -> bool {
    recorder.status().is_some_and(|status| status.state == RecordingState::Running)
}

fn nothing() -> ApiError {
    let message = "there is no recording; begin one with POST /control/v1/recording";
    ApiError::new(StatusCode::NOT_FOUND, message).code("no_recording")
}

fn view(recorder: &Recorder) -> RecordingView {
    let status: Option<RecordingStatus> = recorder.status();
    let cut = status.and_then(|status| status.cut);
    RecordingView {
        state: match status.map(|status| status.state) {
            None => "none",
            Some(RecordingState::Running) => "running",
            Some(RecordingState::Ended) => "ended",
        },
        sequences: status.map_or(0, |status| status.sequences),
        live: status.map_or(0, |status| status.live),
        steps: status.map_or(0, |status| status.steps),
        steps_cut: status.is_some_and(|status| status.steps_cut),
        prefixes_cut: status.map_or(0, |status| status.prefixes_cut),
        elapsed_s: status.map_or(0.0, |status| status.elapsed_us as f64 / 1e6),
        max_sequences: status.map(|status| status.limits.max_sequences),
        max_s: status.map(|status| status.limits.max_us / 1_000_000),
        cut: cut.map(recording_file::limit),
    }
}
