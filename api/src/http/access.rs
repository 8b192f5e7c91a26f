//! Access log: one line for each HTTP request if the operator wants it, and in any case one line for each refused
//! request, up to a limit per second.

use crate::http::{ApiError, Caller, Facts, RequestId, refusals};
use crate::spans::{OpenSpan, Spans};
use actix_web::dev::ServiceResponse;
use actix_web::{HttpMessage, HttpRequest};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use tiercel_actors::EndedTimeline;
use tiercel_device::{Clock, Tier, Timestamp};
use tokio::sync::oneshot;

/// Maximum number of log lines about refused requests in one second. Refusals beyond the limit are only counted.
const REFUSALS_PER_S: u32 = 10;
/// Maximum length of a request's path in the access log, characters; longer paths are cut.
const PATH_CHARS: usize = 100;
/// Paths of requests that get no line in the access log, because monitoring asks for them all the time.
const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];

/// Access log of HTTP requests, shared by all HTTP workers.
pub(crate) struct AccessLog {
    every_request: bool,
    clock: Clock,
    refusals: Mutex<Allowance>,
    /// Exporter of spans, if the server has one.
    spans: Option<Spans>,
}

impl AccessLog {
    /// Makes an access log with a line for every request, or for refused requests alone.
    pub(crate) fn new(every_request: bool, spans: Option<Spans>, clock: Clock) -> AccessLog {
        AccessLog { every_request, clock, refusals: Mutex::default(), spans }
    }

    /// Ends the access log of a server that stops: logs the rest, and exports the last spans. That takes a few seconds
    /// at most.
    pub(crate) async fn finish(&self) {
        self.tell_left_out();
        if let Some(spans) = &self.spans {
            spans.finish().await;
        }
    }

    /// Logs how many refused requests got no log line since the last call, if there are any.
    pub(crate) fn tell_left_out(&self) {
        let left_out = std::mem::take(&mut self.allowance().left_out);
        tell_left_out(left_out);
    }

    fn allowance(&self) -> std::sync::MutexGuard<'_, Allowance> {
        // Ignore that the mutex is poisoned: it guards plain counters, which stay valid after a panic.
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell_left_out(refusals: u64) {
    if refusals > 0 {
        tracing::info!("{refusals} more requests were refused");
    }
}

/// Rate limit of log lines about refused requests: lines written in the current second, and refusals that got no line.
#[derive(Debug, Default)]
struct Allowance {
    second: u64,
    lines: u32,
    left_out: u64,
}

impl Allowance {
    /// Asks the rate limit for a log line about a refused request. Returns the number of refusals that got no line
    /// before this one, or `None` if the lines of the current second are used up; the refusal then counts as left out.
    fn take(&mut self, now: Timestamp) -> Option<u64> {
        let second = now.0 / 1_000_000;
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        if self.lines >= REFUSALS_PER_S {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Data of a running HTTP request for its line in the access log. Each part of the server that works on the answer
/// holds a handle; the line is written when the last handle is dropped.
pub(crate) struct Record {
    log: Arc<AccessLog>,
    began: Timestamp,
    method: String,
    path: String,
    request_id: Arc<str>,
    facts: RefCell<Facts>,
    /// The request's spans, if they will be exported.
    open: RefCell<Option<OpenSpan>>,
}

impl Record {
    /// Begins the access-log record of a request and stores it in the request's extensions.
    pub(crate) fn begin(log: &Arc<AccessLog>, request: &HttpRequest) -> Rc<Record> {
        let record = Rc::new(Record {
            log: Arc::clone(log),
            began: log.clock.now(),
            method: request.method().to_string(),
            path: request.path().chars().take(PATH_CHARS).collect(),
            request_id: RequestId::of(request),
            facts: RefCell::default(),
            open: RefCell::new(log.spans.as_ref().and_then(|spans| spans.begin(request))),
        });
        request.extensions_mut().insert(record.clone());
        record
    }

    /// Returns the access-log record that is stored in the request's extensions.
    pub(crate) fn of(request: &HttpRequest) -> Rc<Record> {
        let record = request.extensions().get::<Rc<Record>>().cloned();
        record.expect("the server begins the record of every request before it is routed")
    }

    /// Records the names of the client's API key and tenant for the access log.
    pub(crate) fn caller(&self, caller: &Caller) {
        let mut facts = self.facts.borrow_mut();
        (facts.key, facts.tenant) = (Some(caller.key.clone()), Some(caller.tenant.clone()));
    }

    /// Records the request's tier for the access log.
    pub(crate) fn tier(&self, tier: Tier) {
        self.facts.borrow_mut().tier = Some(tier);
    }

    /// Records for spans the served model that the request is for, and whether the client asked for a stream.
    pub(crate) fn model(&self, name: &str, streamed: bool) {
        let mut facts = self.facts.borrow_mut();
        (facts.model, facts.streamed) = (Some(name.into()), streamed);
    }

    /// Records for the access log that the request is about to be submitted to the engine.
    pub(crate) fn submitted(&self, id: &str, prompt_tokens: u32, choices: u32) {
        let mut facts = self.facts.borrow_mut();
        facts.id = Some(id.to_owned());
        facts.prompt_tokens = Some(prompt_tokens);
        facts.output_tokens = Some(0);
        (facts.choices, facts.all_choices) = (choices, choices);
    }

    /// Returns the channel on which the engine shall send the timeline of the request's next choice, if the spans of
    /// the request will be exported.
    pub(crate) fn timeline(&self) -> Option<oneshot::Sender<EndedTimeline>> {
        self.open.borrow_mut().as_mut().map(OpenSpan::choice)
    }

    /// Returns how long ago the request's head came, ms.
    pub(crate) fn waited_ms(&self) -> u64 {
        self.log.clock.now().since_us(self.began) / 1000
    }

    /// Records for the access log that an output token has arrived; the first one sets the TTFT.
    pub(crate) fn token(&self) {
        let mut facts = self.facts.borrow_mut();
        facts.output_tokens = Some(facts.output_tokens.unwrap_or(0) + 1);
        let now = self.log.clock.now();
        facts.first_token.get_or_insert(now);
        facts.last_token = Some(now);
    }

    /// Records for the access log that a choice of the request is complete. If any choice ended at its length limit,
    /// the outcome of the request is `length`.
    pub(crate) fn finished(&self, reason: &'static str, cached_tokens: u32) {
        let mut facts = self.facts.borrow_mut();
        facts.choices = facts.choices.saturating_sub(1);
        facts.cached_tokens = Some(facts.cached_tokens.unwrap_or(0) + cached_tokens);
        if facts.outcome != Some("length") {
            facts.outcome = Some(reason);
        }
    }

    /// Returns the number of output tokens so far.
    pub(crate) fn output_tokens(&self) -> u32 {
        self.facts.borrow().output_tokens.unwrap_or(0)
    }

    /// Records for the access log that the request ends with an error.
    pub(crate) fn failed(&self, error: &ApiError) {
        let mut facts = self.facts.borrow_mut();
        facts.choices = 0;
        facts.outcome = error.outcome();
        if error.is_refusal() {
            refusals::count(facts.tier, error);
            facts.refused = Some(error.to_string());
        }
    }

    /// Records for the access log the HTTP status of the answer, once its response head is complete.
    pub(crate) fn answered<B>(&self, answer: &Result<ServiceResponse<B>, actix_web::Error>) {
        let (status, error) = match answer {
            Ok(answer) => (answer.status(), answer.response().error()),
            Err(error) => (error.as_response_error().status_code(), Some(error)),
        };
        self.facts.borrow_mut().status = Some(status);
        if let Some(error) = error.and_then(|error| error.as_error::<ApiError>()) {
            self.failed(error);
        }
    }

    fn write(&self, facts: &Facts) {
        let since_ms = |at: Timestamp| (at.since_ms(self.began) * 10.0).round() / 10.0;
        tracing::info!(
            id = facts.id.as_deref().map(tracing::field::display),
            request_id = %self.request_id,
            key = facts.key.as_deref(),
            tenant = facts.tenant.as_deref(),
            tier = facts.tier.map(tracing::field::display),
            status = facts.status.map(|status| status.as_u16()),
            outcome = facts.ended_as().map(tracing::field::display),
            prompt = facts.prompt_tokens,
            cached = facts.cached_tokens,
            output = facts.output_tokens,
            ttft_ms = facts.first_token.map(since_ms),
            tpot_ms = facts.tpot_ms(),
            total_ms = since_ms(self.log.clock.now()),
            "{} {}",
            self.method,
            self.path,
        );
    }

    fn write_refusal(&self, facts: &Facts, why: &str) {
        let log = &self.log;
        let Some(left_out) = log.allowance().take(log.clock.now()) else { return };
        tell_left_out(left_out);
        tracing::info!(
            request_id = %self.request_id,
            key = facts.key.as_deref(),
            tenant = facts.tenant.as_deref(),
            tier = facts.tier.map(tracing::field::display),
            status = facts.status.map(|status| status.as_u16()),
            outcome = facts.outcome.map(tracing::field::display),
            prompt = facts.prompt_tokens,
            "refused {} {}: {why}",
            self.method,
            self.path,
        );
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let facts = self.facts.take();
        if self.log.every_request && !PROBES.contains(&self.path.as_str()) {
            self.write(&facts);
        }
        if let Some(why) = &facts.refused {
            self.write_refusal(&facts, why);
        }
        if let (Some(spans), Some(open)) = (&self.log.spans, self.open.take()) {
            spans.end(open, (&self.request_id, facts), (self.began, self.log.clock.now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_allowance_of_a_second_are_counted() {
        let mut allowance = Allowance::default();
        let at = |ms: u64| Timestamp(ms * 1_000);
        for _ in 0..REFUSALS_PER_S {
            assert_eq!(allowance.take(at(1_500)), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(allowance.take(at(1_999)), None);
        }
        assert_eq!(
            allowance.take(at(2_000)),
            Some(7),
            "a new second, and who was left out is told"
        );
        assert_eq!(allowance.take(at(2_001)), Some(0));
    }
}
