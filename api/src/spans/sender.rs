//! Makes the spans of ended requests and sends them to the collector, on a thread of its own. The thread waits for a
//! slow collector, and nothing else does.

use crate::boot::BootError;
use crate::spans::counts::{self, Outcome};
use crate::spans::open::OpenSpan;
use crate::spans::request::{Ended, record};
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor,
};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tiercel_actors::EndedTimeline;
use tiercel_device::{Clock, Timestamp};
use tokio::sync::{mpsc, oneshot};
use ureq::Agent;

/// Most ended requests that the thread takes from the queue at once.
const REQUESTS: usize = 256;
/// Number of spans from which on they are sent without waiting for those of further requests.
const SPANS: usize = 512;
/// Time for which ended requests gather in the queue before the thread takes them, us.
const GATHER_US: u64 = 200_000;
/// Longest wait for the ends of sequences in the engine, us, from the time at which the thread takes their requests
/// from the queue. Sequences whose client has left end with the step in flight.
const SEQUENCES_US: u64 = 2_000_000;
/// Longest time until the collector accepts a connection.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Longest time of one request to the collector, from the look-up of its name to the end of its answer.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time after which no attempt to send the same spans begins.
const RETRY_TIME: Duration = Duration::from_secs(10);
/// Longest answer of the collector that is read, bytes.
const ANSWER_BYTES: u64 = 65_536;

/// Message to the thread that sends spans.
pub(super) enum Message {
    /// A request has ended.
    Ended(Box<(Ended, OpenSpan)>),
    /// The server stops, and waits until the spans of all requests before have been sent.
    Finish(oneshot::Sender<()>),
}

/// Maker and sender of spans.
pub(super) struct Sender {
    clock: Clock,
    tracer: SdkTracer,
    /// Spans that have been made and not been sent.
    made: Made,
    collector: SpanExporter,
    /// Whether the collector did not take the latest spans.
    failing: bool,
}

impl Sender {
    /// Makes a sender to the collector that the environment names.
    ///
    /// # Errors
    /// If the collector's URL cannot be used.
    pub(super) fn new(clock: Clock) -> Result<Sender, BootError> {
        let mut collector = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(RETRY_TIME)
            .with_http_client(Client::new())
            .build()
            .map_err(|error| BootError::Spans(error.to_string()))?;
        collector.set_resource(&resource());
        let made = Made::default();
        let provider = SdkTracerProvider::builder().with_span_processor(made.clone()).build();
        Ok(Sender { clock, tracer: provider.tracer("tiercel"), made, collector, failing: false })
    }

    /// Handles the messages of the queue until the exporter is dropped.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut taken = Vec::new();
        while queue.recv_many(&mut taken, REQUESTS).await > 0 {
            let few = taken.len() < REQUESTS;
            self.handle(&mut taken).await;
            if few {
                self.clock.sleep_us(GATHER_US).await;
            }
        }
    }

    async fn handle(&mut self, taken: &mut Vec<Message>) {
        let until = self.clock.now() + SEQUENCES_US;
        let mut requests = 0;
        for message in taken.drain(..) {
            match message {
                Message::Ended(request) => {
                    let (ended, mut open) = *request;
                    requests += u64::from(self.make(&ended, &mut open, until).await);
                    if self.made.count() >= SPANS {
                        self.send(std::mem::take(&mut requests)).await;
                    }
                }
                Message::Finish(finished) => {
                    self.send(std::mem::take(&mut requests)).await;
                    // Ignore a failed send: the server did not wait so long.
                    let _ = finished.send(());
                }
            }
        }
        self.send(requests).await;
    }

    /// Makes the spans of a request. Returns false if the request is not sampled, so that it has none.
    async fn make(&self, ended: &Ended, open: &mut OpenSpan, until: Timestamp) -> bool {
        let choices = std::mem::take(&mut open.choices);
        let mut timelines = Vec::with_capacity(choices.len());
        // Choices that were refused, or that do not end in time, have no timeline.
        for choice in choices {
            let left_us = until.since_us(self.clock.now());
            let timeline: Option<EndedTimeline> =
                self.clock.timeout_us(left_us, choice).await.and_then(Result::ok);
            timelines.push(timeline);
        }
        record(&self.tracer, self.clock.wall_times(), open, ended, &timelines)
    }

    /// Sends the spans that have been made, which are those of this many requests.
    async fn send(&mut self, requests: u64) {
        let spans = self.made.take();
        if spans.is_empty() {
            return;
        }
        let sent = self.collector.export(spans).await;
        counts::add(if sent.is_ok() { Outcome::Sent } else { Outcome::Failed }, requests);
        // Failures that follow each other are logged once.
        match sent {
            Err(error) if !self.failing => {
                tracing::warn!("the collector does not take spans: {error}");
            }
            Ok(()) if self.failing => tracing::info!("the collector takes spans again"),
            _ => return,
        }
        self.failing = !self.failing;
    }
}

/// Spans that have ended, until they are taken.
#[derive(Debug, Default, Clone)]
struct Made(Arc<Mutex<Vec<SpanData>>>);

impl Made {
    fn spans(&self) -> std::sync::MutexGuard<'_, Vec<SpanData>> {
        // Ignore that the mutex is poisoned: a list stays valid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.spans().len()
    }

    fn take(&self) -> Vec<SpanData> {
        std::mem::take(&mut self.spans())
    }
}

impl SpanProcessor for Made {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        self.spans().push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// HTTP client for the collector. It blocks its thread.
#[derive(Debug)]
struct Client(Agent);

impl Client {
    fn new() -> Client {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIME))
            .timeout_global(Some(REQUEST_TIME))
            .build();
        Client(Agent::new_with_config(config))
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, mut body) = self.0.run(request.map(|body| body.to_vec()))?.into_parts();
        let bytes = body.with_config().limit(ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, bytes.into()))
    }
}

type Sending<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

// The crate of the trait declares the trait's function by the macro `async_trait`. This signature is the macro's
// output.
impl HttpClient for Client {
    fn send_bytes<'client, 'sending>(&'client self, request: Request<Bytes>) -> Sending<'sending>
    where
        'client: 'sending,
        Self: 'sending,
    {
        let answer = self.send(request);
        if let Err(error) = &answer {
            tracing::debug!(%error, "the collector cannot be reached");
        }
        Box::pin(std::future::ready(answer.map_err(HttpError::from)))
    }
}

/// Returns the resource that spans belong to: what the environment says, with the service `tiercel` if it names none.
fn resource() -> Resource {
    let named = std::env::var("OTEL_SERVICE_NAME").is_ok_and(|name| !name.is_empty())
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
    let resource = Resource::builder();
    if named { resource.build() } else { resource.with_service_name("tiercel").build() }
}
