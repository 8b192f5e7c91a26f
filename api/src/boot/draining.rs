//! The drain of a server, and reports of how far it is.

use crate::boot::App;
use crate::control::{AuditEvent, SERVER};
use std::pin::pin;
use tiercel_actors::EngineHandle;

/// Interval between two reports of a drain, us.
const REPORT_US: u64 = 1_000_000;
/// Longest wait for the listeners of the event stream to read its end, us.
const LISTENERS_US: u64 = 1_000_000;
/// Longest time that a stopping server waits for trace files to be written, us.
const TRACES_US: u64 = 10_000_000;
/// Interval at which a stopping server counts the listeners of the event stream and the unanswered traces, us.
const LOOK_US: u64 = 5_000;

/// Records that the server begins to drain although no operator asked for it.
pub(super) fn tell(app: &App, engine: &EngineHandle, grace_ms: u64) {
    app.audit.record(&AuditEvent {
        by: SERVER,
        action: "drain",
        deadline_ms: Some(grace_ms),
        requests: Some(engine.places()),
        ..AuditEvent::default()
    });
}

/// Drains the server: refuses new requests, lets running ones finish for at most `grace_ms`, and ends the rest. Once a
/// second, and at the end, an event says how far the drain is.
pub(super) async fn drain(app: &App, engine: &EngineHandle, grace_ms: u64) {
    app.drain(grace_ms);
    let mut drain = pin!(engine.drain(grace_ms));
    let drained = loop {
        if let Some(drained) = app.clock.timeout_us(REPORT_US, drain.as_mut()).await {
            break drained;
        }
        app.audit.record(&AuditEvent {
            by: SERVER,
            action: "draining",
            requests: Some(engine.places()),
            deadline_in_ms: app.deadline_in_ms(),
            ..AuditEvent::default()
        });
    };
    app.audit.record(&AuditEvent {
        by: SERVER,
        action: "drained",
        finished: drained.map(|drained| drained.finished),
        ended: drained.map(|drained| drained.ended),
        other: drained.map(|drained| drained.other),
        ..AuditEvent::default()
    });
    app.audit.end();
}

/// Waits until no trace is left without an answer, for at most 10 s. Returns whether there was such a trace.
pub(super) async fn traces_answered(app: &App) -> bool {
    let any = app.traces.any();
    let answered = async {
        while app.traces.any() {
            app.clock.sleep_us(LOOK_US).await;
        }
    };
    // Ignore the timeout: the client of a trace file that takes longer gets no answer.
    let _ = app.clock.timeout_us(TRACES_US, answered).await;
    any
}

/// Waits until the listeners of the event stream have read its end, for at most a second.
pub(super) async fn listeners_left(app: &App) {
    let left = async {
        while app.audit.listeners() > 0 {
            app.clock.sleep_us(LOOK_US).await;
        }
    };
    // Ignore listeners that do not read.
    let _ = app.clock.timeout_us(LISTENERS_US, left).await;
}
