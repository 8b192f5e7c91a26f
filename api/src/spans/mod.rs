//! Spans of requests for OpenTelemetry. Builds without the feature `otel` have a stand-in that exports nothing.
//!
//! | file | what it does |
//! |---|---|
//! | `off.rs` | the stand-in |
//! | `open.rs` | a running request, and the span of its client |
//! | `exporter.rs` | takes ended requests into a queue |
//! | `sender.rs` | makes the spans of the queue's requests, and sends them to the collector |
//! | `request.rs` | one ended request to spans |
//! | `stretches.rs` | one timeline to stretches of waiting, prefill, decode and so on |
//! | `counts.rs` | the metric |

#[cfg(feature = "otel")]
mod counts;
#[cfg(feature = "otel")]
mod exporter;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod open;
#[cfg(feature = "otel")]
mod request;
#[cfg(feature = "otel")]
mod sender;
#[cfg(feature = "otel")]
mod stretches;

#[cfg(feature = "otel")]
pub(crate) use exporter::Spans;
#[cfg(not(feature = "otel"))]
pub(crate) use off::{OpenSpan, Spans};
#[cfg(feature = "otel")]
pub(crate) use open::OpenSpan;

/// Variables of the environment that name the collector. Spans are exported if one of them is set.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Returns whether a variable of the environment names a collector. An empty variable counts as unset.
fn collector_is_named() -> bool {
    ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
