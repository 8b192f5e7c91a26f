//! Stand-in for the exporter of spans in builds without the feature `otel`. Its types have no values, so the server
//! never has an exporter.

use crate::boot::BootError;
use crate::http::Facts;
use crate::spans::collector_is_named;
use actix_web::HttpRequest;
use std::sync::Arc;
use tiercel_actors::EndedTimeline;
use tiercel_device::{Clock, Timestamp};
use tokio::sync::oneshot;

/// Exporter of spans, which this build does not have.
pub(crate) enum Spans {}

/// Spans of a running request, which this build does not have.
pub(crate) enum OpenSpan {}

impl Spans {
    /// Returns no exporter, and logs that the build has none if the environment names a collector.
    pub(crate) fn from_environment(_: &Clock, _: bool) -> Result<Option<Spans>, BootError> {
        if collector_is_named() {
            tracing::info!(
                "spans are not exported: this program was built without --features otel"
            );
        }
        Ok(None)
    }

    pub(crate) fn begin(&self, _: &HttpRequest) -> Option<OpenSpan> {
        match *self {}
    }

    pub(crate) fn end(&self, _: OpenSpan, _: (&Arc<str>, Facts), _: (Timestamp, Timestamp)) {
        match *self {}
    }

    pub(crate) async fn finish(&self) {
        match *self {}
    }
}

impl OpenSpan {
    pub(crate) fn choice(&mut self) -> oneshot::Sender<EndedTimeline> {
        match *self {}
    }
}
