//! Sends a workload to a server and collects the measurements of its requests.

use crate::collected::Collected;
use crate::http::Endpoint;
use crate::measurement::Measurement;
use crate::prompt::Vocabulary;
use crate::report::Report;
use crate::request::{Outcome, Record, perform};
use crate::server::discover;
use futures_util::future::{Either, select};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tiercel_device::{Clock, Timestamp};
use tiercel_workload::{Arrival, MAX_REQUESTS, Workload, arrivals, closed_request, seconds};
use tokio::sync::{Semaphore, mpsc, watch};

/// Capacity, in finished requests, of the channel from the tasks that send requests to the task that adds up their
/// measurements.
const RECORDS_WAITING: usize = 1024;
const SECOND_US: u64 = 1_000_000;

/// Server that the load client sends a workload to, and how to reach it.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// Base URL of the server, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// API key of the server, sent as a bearer token if given.
    pub api_key: Option<String>,
    /// File of the certificates (PEM) to trust for https; without it, those that browsers trust.
    pub ca_file: Option<PathBuf>,
    /// Model that requests ask for; without it, the first model that the server lists.
    pub model: Option<String>,
    /// Whether requests also have the field `priority`, a number for each tier, for servers without the field
    /// `service_tier`.
    pub send_priority: bool,
    /// Limits that the load client sets itself: requests in flight and idle timeout.
    pub limits: Limits,
}

/// Limits that the load client sets itself, whatever the workload asks for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of open-loop requests in flight. A request that is due beyond this limit is counted as not sent.
    pub max_in_flight: usize,
    /// Idle timeout, ms: a request that receives nothing from the server for this long has failed.
    pub idle_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_in_flight: 4096, idle_timeout_ms: 120_000 }
    }
}

/// Progress of a load client's run, reported once a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// Time since the start of the run, s.
    pub elapsed_s: f64,
    /// Number of requests that came due so far, warm-up included.
    pub sent: u64,
    /// Number of requests that are still running.
    pub in_flight: u64,
    /// Number of requests that ended without `[DONE]`: refused, failed, unfinished when the run ended, or not sent.
    pub unsuccessful: u64,
}

/// What the load client tells during a run.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Progress of the run, once a second.
    Progress(&'a Progress),
    /// A request has ended.
    Ended(&'a Measurement),
}

/// Reason why a run of the load client could not start.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The workload is invalid. Possible for a workload that was built in code instead of loaded from a file.
    #[error("the workload can't be run: {field} {problem}")]
    Workload {
        /// Name of the invalid workload field.
        field: String,
        /// What is wrong with the workload field.
        problem: String,
    },
    /// The server's URL cannot be used.
    #[error("the URL {url} can't be used: {problem}")]
    Url {
        /// The unusable URL.
        url: String,
        /// Why the URL cannot be used.
        problem: String,
    },
    /// The server cannot be reached, or no model was given and the server reports none.
    #[error("no usable server at {url}: {problem}; is it running and ready?")]
    Server {
        /// Base URL of the server.
        url: String,
        /// What went wrong when the client asked the server for its model and for token ids.
        problem: String,
    },
}

/// State that all tasks of one run of the load client share.
pub(crate) struct Context {
    pub(crate) workload: Workload,
    pub(crate) endpoint: Endpoint,
    pub(crate) model: String,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) salt: u64,
    pub(crate) send_priority: bool,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) start: Timestamp,
    pub(crate) begun: AtomicU64,
}

impl Context {
    fn at(&self, s: f64) -> Timestamp {
        self.start + seconds(s)
    }

    /// Whether a point in time lies in the measured window of the workload, between warm-up and cool-down.
    pub(crate) fn in_window(&self, at: Timestamp) -> bool {
        let window = self.workload.window_s();
        (self.at(window.start)..self.at(window.end)).contains(&at)
    }

    fn measurement(&self, record: &Record) -> Measurement {
        let tier = self.workload.classes[record.planned.class].tier;
        let due_s = record.due.since_us(self.start) as f64 / 1e6;
        Measurement::of(record, tier, due_s, self.in_window(record.due))
    }

    /// Counts a request that is about to be sent. Returns false, so that it is not sent, if the run has reached
    /// `MAX_REQUESTS`.
    fn begin(&self) -> bool {
        self.begun.fetch_add(1, Ordering::Relaxed) < MAX_REQUESTS
    }
}

/// Runs a workload against a server to its end and calls `watch` once a second and at the end of each request. Needs a
/// tokio runtime with I/O and time. Dropping the future ends all requests of the run.
///
/// # Errors
/// [`BenchError`] if the run cannot start. Errors after the start are counted in the report instead.
pub async fn run(
    workload: &Workload,
    target: &Target,
    watch: impl FnMut(Event<'_>),
) -> Result<Report, BenchError> {
    if let Some((field, problem)) = workload.problem() {
        return Err(BenchError::Workload { field, problem });
    }
    let url = target.url.clone();
    let endpoint = Endpoint::parse(&url, target.api_key.as_deref(), target.ca_file.as_deref())
        .map_err(|problem| BenchError::Url { url: url.clone(), problem })?;
    let clock = Clock::wall();
    let found = clock
        .timeout_us(
            target.limits.idle_timeout_ms * 1000,
            discover(&endpoint, target.model.as_deref()),
        )
        .await
        .ok_or_else(|| "it does not answer".to_owned())
        .and_then(|found| found.map_err(|error| error.to_string()))
        .map_err(|problem| BenchError::Server { url: url.clone(), problem })?;
    let started_unix_s = Clock::unix_s();
    let context = Arc::new(Context {
        workload: workload.clone(),
        endpoint,
        model: found.model,
        vocabulary: found.vocabulary,
        salt: started_unix_s,
        send_priority: target.send_priority,
        limits: target.limits,
        start: clock.now(),
        clock,
        begun: AtomicU64::new(0),
    });
    let (stop, stopped) = watch::channel(false);
    let records = start(&context, &stopped);
    let collected = collect(&context, records, &stop, watch).await;
    Ok(collected.report(&context, found.server, url, started_unix_s))
}

/// Starts the tasks that send the requests: one task per open-loop class and one per stream of a closed-loop class.
/// Returns the channel on which the measurements of ended requests come.
fn start(context: &Arc<Context>, stop: &watch::Receiver<bool>) -> mpsc::Receiver<Record> {
    let (sender, records) = mpsc::channel(RECORDS_WAITING);
    let slots = Arc::new(Semaphore::new(context.limits.max_in_flight));
    // Marker that each open-loop class with requests to send and each of its running requests holds. As long as one of
    // them does, closed-loop streams keep up the load.
    let open_work = Arc::new(());
    for (class, spec) in context.workload.classes.iter().enumerate() {
        let task = Task { context: context.clone(), stop: stop.clone(), records: sender.clone() };
        match &spec.arrival {
            Arrival::Closed(closed) => {
                for stream in 0..closed.streams {
                    let hold = Arc::downgrade(&open_work);
                    tokio::spawn(task.clone().closed_stream(class, stream, hold));
                }
            }
            Arrival::Poisson(_) | Arrival::Trace(_) | Arrival::Share(_) => {
                tokio::spawn(task.open_class(class, slots.clone(), open_work.clone()));
            }
        }
    }
    records
}

#[derive(Clone)]
struct Task {
    context: Arc<Context>,
    stop: watch::Receiver<bool>,
    records: mpsc::Sender<Record>,
}

impl Task {
    /// Sends each request of an open-loop class when it is due, without waiting for earlier requests.
    async fn open_class(mut self, class: usize, slots: Arc<Semaphore>, open_work: Arc<()>) {
        let context = self.context.clone();
        for planned in arrivals(&context.workload, class) {
            let due = context.start + planned.at_us;
            if self.stopped_before(due).await || !context.begin() {
                return;
            }
            let Ok(slot) = slots.clone().try_acquire_owned() else {
                let record = Record::new(planned, due, context.clock.now());
                let _ = self.records.send(record).await;
                continue;
            };
            let (mut task, open_work) = (self.clone(), open_work.clone());
            tokio::spawn(async move {
                let record = perform(&task.context, planned, due, &mut task.stop).await;
                let _ = task.records.send(record).await;
                drop((slot, open_work));
            });
        }
    }

    /// Sends the requests of one stream of a closed-loop class, each after the previous one has ended. Stops once the
    /// workload's duration is over and no open-loop request runs any more.
    async fn closed_stream(mut self, class: usize, stream: u32, open_work: Weak<()>) {
        let context = self.context.clone();
        let end = context.at(context.workload.duration_s);
        for number in 0.. {
            let planned = closed_request(&context.workload, class, stream, number);
            if self.stopped_before(context.start + planned.at_us).await {
                return;
            }
            let due = context.clock.now();
            if (due >= end && open_work.strong_count() == 0) || !context.begin() {
                return;
            }
            let record = perform(&context, planned, due, &mut self.stop).await;
            let pause_us = pause_us(&record.outcome);
            let _ = self.records.send(record).await;
            if self.stopped_before(context.clock.now() + pause_us).await {
                return;
            }
        }
    }

    /// Waits until the given time. Returns true if the run was stopped before that time.
    async fn stopped_before(&mut self, at: Timestamp) -> bool {
        if self.stop.has_changed().is_err() || *self.stop.borrow() {
            return true;
        }
        let waited = pin!(self.context.clock.sleep_until(at));
        let stopped = pin!(self.stop.wait_for(|stop| *stop));
        matches!(select(waited, stopped).await, Either::Right(_))
    }
}

/// Returns the pause of a closed-loop stream before its next request, us. After a completed request it is 0. After a
/// refusal it is the server's retry time, limited to 0.1 to 5 s; after a refusal without one or a failure it is 1 s, so
/// that a server in trouble is not flooded.
fn pause_us(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Completed => 0,
        Outcome::Refused(Some(wait_s)) => {
            wait_s.saturating_mul(SECOND_US).clamp(SECOND_US / 10, 5 * SECOND_US)
        }
        Outcome::Refused(None)
        | Outcome::Failed(_)
        | Outcome::TimedOut(_)
        | Outcome::Unfinished
        | Outcome::NotSent => SECOND_US,
    }
}

/// Adds up the measurements of ended requests until every sending task has ended, and tells `watch` of each of them
/// and, once a second, of the progress. Cancels requests that still run when the workload's drain time is over.
async fn collect(
    context: &Context,
    mut records: mpsc::Receiver<Record>,
    stop: &watch::Sender<bool>,
    mut watch: impl FnMut(Event<'_>),
) -> Collected {
    let mut collected = Collected::default();
    let deadline = context.at(context.workload.duration_s + context.workload.drain_s);
    let mut next_tick = context.start + SECOND_US;
    loop {
        let wake = if *stop.borrow() { next_tick } else { next_tick.min(deadline) };
        let received = {
            let record = pin!(records.recv());
            match select(record, pin!(context.clock.sleep_until(wake))).await {
                Either::Left((record, _)) => Some(record),
                Either::Right(_) => None,
            }
        };
        match received {
            Some(Some(record)) => {
                watch(Event::Ended(&context.measurement(&record)));
                collected.add(context, &record);
            }
            Some(None) => return collected,
            None => {}
        }
        let now = context.clock.now();
        if now >= deadline {
            stop.send_replace(true);
        }
        if now >= next_tick {
            next_tick = now + SECOND_US;
            watch(Event::Progress(&collected.progress(context)));
        }
    }
}
