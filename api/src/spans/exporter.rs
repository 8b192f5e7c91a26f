//! Exporter of spans: takes requests that have ended into a queue, without ever waiting, for the thread that makes and
//! sends their spans.

use crate::boot::BootError;
use crate::http::Facts;
use crate::spans::collector_is_named;
use crate::spans::counts::{self, Outcome};
use crate::spans::open::OpenSpan;
use crate::spans::request::Ended;
use crate::spans::sender::{Message, Sender};
use actix_web::HttpRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tiercel_device::{Clock, Timestamp};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

/// Most ended requests that wait for the thread. Requests beyond the limit get no spans and are counted.
const QUEUE: usize = 1024;
/// Longest time for which a server that stops waits for the spans of ended requests, us.
const FINISH_US: u64 = 6_000_000;
/// Exporter of spans to a collector, shared by all HTTP workers.
pub(crate) struct Spans {
    queue: mpsc::Sender<Message>,
    clock: Clock,
    /// Whether clients speak TLS with the server.
    secure: bool,
    /// Whether the log has said that requests were dropped.
    told: AtomicBool,
}

impl Spans {
    /// Starts an exporter as the environment says; `None` if the environment names no collector. `secure` says whether
    /// clients speak TLS with the server.
    ///
    /// # Errors
    /// If the collector's URL cannot be used, or if the operating system refuses to start the thread.
    pub(crate) fn from_environment(
        clock: &Clock,
        secure: bool,
    ) -> Result<Option<Spans>, BootError> {
        if !collector_is_named() {
            return Ok(None);
        }
        let sender = Sender::new(clock.clone())?;
        let (queue, messages) = mpsc::channel(QUEUE);
        let failed = |source| BootError::System { what: "the thread that sends spans", source };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        std::thread::Builder::new()
            .name("tiercel-spans".into())
            .spawn(move || runtime.block_on(sender.run(messages)))
            .map_err(failed)?;
        counts::describe();
        tracing::info!("spans of requests are exported");
        Ok(Some(Spans { queue, clock: clock.clone(), secure, told: AtomicBool::new(false) }))
    }

    /// Begins the spans of a request; `None` if requests of its route have none.
    pub(crate) fn begin(&self, request: &HttpRequest) -> Option<OpenSpan> {
        OpenSpan::begin(request, self.secure)
    }

    /// Ends the spans of a request that began and ended at the given times, without waiting for anything.
    pub(crate) fn end(
        &self,
        open: OpenSpan,
        (request_id, facts): (&Arc<str>, Facts),
        (began, ended): (Timestamp, Timestamp),
    ) {
        let ended = Ended { request_id: request_id.clone(), facts, began, ended };
        let queued = self.queue.try_send(Message::Ended(Box::new((ended, open))));
        if queued.is_err() {
            counts::add(Outcome::Dropped, 1);
            if !self.told.swap(true, Ordering::Relaxed) {
                tracing::warn!("requests end faster than their spans are sent, so some have none");
            }
        }
    }

    /// Waits until the spans of all requests that have ended are sent, at most a few seconds.
    pub(crate) async fn finish(&self) {
        let (sender, finished) = oneshot::channel();
        let sent = async {
            self.queue.send(Message::Finish(sender)).await.is_ok() && finished.await.is_ok()
        };
        if self.clock.timeout_us(FINISH_US, sent).await != Some(true) {
            tracing::warn!("the last spans were not all sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spans::open::ROUTES;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use opentelemetry::Context;

    #[test]
    fn a_request_beyond_the_limit_of_the_queue_is_dropped_and_counted() {
        let (queue, mut messages) = mpsc::channel(2);
        let clock = Clock::wall();
        let spans = Spans { queue, clock, secure: false, told: AtomicBool::new(false) };
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for _ in 0..5 {
                let open = OpenSpan {
                    route: ROUTES[0],
                    secure: false,
                    parent: Context::new(),
                    choices: Vec::new(),
                };
                let times = (Timestamp(0), Timestamp(1));
                spans.end(open, (&"id".into(), Facts::default()), times);
            }
        });
        let shown = recorder.handle().render();
        assert!(shown.contains("tiercel_span_exports_total{result=\"dropped\"} 3"), "{shown}");
        assert!(messages.try_recv().is_ok() && messages.try_recv().is_ok());
        assert!(messages.try_recv().is_err(), "the queue holds two");
    }
}
