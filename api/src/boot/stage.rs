//! The stage of the server's life, and its metrics.

use metrics::{describe_gauge, gauge};

/// Stage of the server's life: loading, ready or draining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server's socket listens, but the model is not ready: requests are answered with 503.
    Loading,
    /// The model is loaded, and the server accepts requests.
    Ready,
    /// The server shuts down: it refuses new requests, and running requests may finish.
    Draining,
}

impl Stage {
    /// Returns the name of the stage in the control API and in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Loading => "loading",
            Stage::Ready => "ready",
            Stage::Draining => "draining",
        }
    }
}

/// Registers the descriptions of the metrics.
pub(crate) fn describe() {
    describe_gauge!(
        "tiercel_stage",
        "Stage of the server's life: 1 for the present one of loading, ready and draining, 0 for the others"
    );
    describe_gauge!(
        "tiercel_drain_deadline_timestamp_seconds",
        "Deadline of the drain, seconds since 1970; 0 while the server does not drain"
    );
}

/// Sets the metric of the stage.
pub(super) fn set(stage: Stage) {
    for each in [Stage::Loading, Stage::Ready, Stage::Draining] {
        let present = if each == stage { 1.0 } else { 0.0 };
        gauge!("tiercel_stage", "stage" => each.name()).set(present);
    }
    if stage != Stage::Draining {
        gauge!("tiercel_drain_deadline_timestamp_seconds").set(0.0);
    }
}

/// Sets the metrics of a drain that has the deadline `deadline_unix_s`, seconds since 1970.
pub(super) fn drains(deadline_unix_s: f64) {
    set(Stage::Draining);
    gauge!("tiercel_drain_deadline_timestamp_seconds").set(deadline_unix_s);
}
