//! Metric of ended requests, by what became of their spans.

use metrics::{counter, describe_counter};

const NAME: &str = "tiercel_span_exports_total";

/// What became of the spans of an ended request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// The collector took the spans.
    Sent,
    /// The collector did not take the spans.
    Failed,
    /// Too many ended requests were waiting.
    Dropped,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Sent => "sent",
            Outcome::Failed => "failed",
            Outcome::Dropped => "dropped",
        }
    }
}

/// Describes the metric, and shows each outcome from the start.
pub(super) fn describe() {
    describe_counter!(
        NAME,
        "Ended requests, by what became of their spans: sent to the collector, failed (the collector did not take \
         them), or dropped because too many ended requests were waiting"
    );
    for outcome in [Outcome::Sent, Outcome::Failed, Outcome::Dropped] {
        add(outcome, 0);
    }
}

/// Counts ended requests.
pub(super) fn add(outcome: Outcome, requests: u64) {
    counter!(NAME, "result" => outcome.name()).increment(requests);
}
