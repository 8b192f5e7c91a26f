//! One request of the load client: sends it, follows its response stream and measures its latencies.

use crate::http::{HttpError, header_text, read_all};
use crate::run::Context;
use crate::sse::SseReader;
use futures_util::future::{Either, select};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::{Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::pin::pin;
use tiercel_device::{Tier, Timestamp};
use tiercel_workload::Planned;
use tokio::sync::watch;

/// Maximum length of a recorded failure reason, characters; longer reasons are cut.
const MAX_REASON_CHARS: usize = 160;
/// Time that the client waits after `[DONE]` for the server to close the connection, us.
const CLOSE_US: u64 = 1_000_000;

/// How a request of the load client ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The response stream ended with `[DONE]`.
    Completed,
    /// The server refused the request with 429 or 503. Holds the server's `Retry-After` time, s.
    Refused(Option<u64>),
    /// The request ended in an error; holds the failure reason.
    Failed(String),
    /// The request timed out: the server sent nothing for longer than the idle timeout. Holds a text that says what the
    /// client was waiting for.
    TimedOut(&'static str),
    /// The run ended while the request was still running.
    Unfinished,
    /// The client did not send the request because too many of its requests were in flight.
    NotSent,
}

impl Outcome {
    /// Returns the name of the outcome in files.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Refused(_) => "refused",
            Outcome::Failed(_) => "failed",
            Outcome::TimedOut(_) => "timed-out",
            Outcome::Unfinished => "unfinished",
            Outcome::NotSent => "not-sent",
        }
    }
}

/// Outcome and time measurements of one request of the load client.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) planned: Planned,
    pub(crate) outcome: Outcome,
    /// Time at which the request was due. Latencies count from the due time, so that a client that sends late cannot
    /// hide a wait.
    pub(crate) due: Timestamp,
    pub(crate) sent: Timestamp,
    pub(crate) first: Option<Timestamp>,
    pub(crate) last: Timestamp,
    pub(crate) ended: Timestamp,
    pub(crate) max_gap_us: u64,
    /// Number of response events with text that arrived (an output without text counts as one event);
    /// `chunks_in_window` counts those that arrived in the measured window.
    pub(crate) chunks: u64,
    pub(crate) chunks_in_window: u64,
    pub(crate) usage: Option<Usage>,
    /// Whether the server reported that it served the request in a tier other than the requested one.
    pub(crate) other_tier: bool,
}

/// Token counts of a request, as the server reports them.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
    error: Option<Value>,
    #[serde(borrow)]
    service_tier: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

impl Record {
    pub(crate) fn new(planned: Planned, due: Timestamp, now: Timestamp) -> Record {
        Record {
            planned,
            outcome: Outcome::NotSent,
            due,
            sent: now,
            first: None,
            last: now,
            ended: now,
            max_gap_us: 0,
            chunks: 0,
            chunks_in_window: 0,
            usage: None,
            other_tier: false,
        }
    }

    /// Processes one server-sent event of the response stream. Returns whether the stream goes on, is done or failed.
    fn on_event(&mut self, data: &[u8], now: Timestamp, context: &Context) -> Progress {
        if data == b"[DONE]" {
            self.ended = now;
            return Progress::Done;
        }
        let chunk: Chunk<'_> = match serde_json::from_slice(data) {
            Ok(chunk) => chunk,
            Err(error) => return Progress::Failed(format!("an event is not a chunk: {error}")),
        };
        if let Some(error) = chunk.error {
            return Progress::Failed(error_message(&error));
        }
        let asked = context.workload.classes[self.planned.class].tier;
        self.other_tier |= chunk.service_tier.is_some_and(|served| served != service_tier(asked));
        self.usage = chunk.usage.or(self.usage);
        let text = chunk.choices.iter().any(|choice| {
            choice.text.as_ref().is_some_and(|text| !text.is_empty())
                || (self.first.is_none() && choice.finish_reason.is_some())
        });
        if text {
            self.on_text(now, context.in_window(now));
        }
        Progress::More
    }

    fn on_text(&mut self, now: Timestamp, in_window: bool) {
        if self.first.is_none() {
            self.first = Some(now);
        } else {
            self.max_gap_us = self.max_gap_us.max(now.since_us(self.last));
        }
        self.last = now;
        self.chunks += 1;
        self.chunks_in_window += u64::from(in_window);
    }
}

enum Progress {
    More,
    Done,
    Failed(String),
}

/// Returns the value of the request field `service_tier` that asks for a tier, such as `priority` for premium.
pub(crate) fn service_tier(tier: Tier) -> &'static str {
    match tier {
        Tier::System | Tier::Premium => "priority",
        Tier::Standard => "default",
        Tier::Background => "flex",
    }
}

/// Returns the value of the request field `priority` for a tier. A vLLM server that runs with `--scheduling-policy
/// priority` serves requests with lower values first.
fn priority(tier: Tier) -> u8 {
    match tier {
        Tier::System | Tier::Premium => 0,
        Tier::Standard => 1,
        Tier::Background => 2,
    }
}

/// Sends a request and reads its response stream until the request or the run ends. Returns the measurements of the
/// request.
pub(crate) async fn perform(
    context: &Context,
    planned: Planned,
    due: Timestamp,
    stop: &mut watch::Receiver<bool>,
) -> Record {
    let mut record = Record::new(planned, due, context.clock.now());
    let outcome = {
        let attempt = pin!(attempt(context, &mut record));
        let stopped = pin!(stop.wait_for(|stop| *stop));
        match select(attempt, stopped).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Outcome::Unfinished,
        }
    };
    if outcome != Outcome::Completed {
        record.ended = context.clock.now();
    }
    record.outcome = outcome;
    record
}

async fn attempt(context: &Context, record: &mut Record) -> Outcome {
    let body = body(context, &record.planned);
    let idle_us = context.limits.idle_timeout_ms * 1000;
    let sending = context.endpoint.send("/v1/completions", Some(body));
    let answer = match context.clock.timeout_us(idle_us, sending).await {
        Some(Ok(answer)) => answer,
        Some(Err(error)) => return failed(error.to_string()),
        None => return Outcome::TimedOut("no answer within the idle timeout"),
    };
    if !answer.status().is_success() {
        let reading = context.clock.timeout_us(idle_us, refusal(answer)).await;
        return reading.unwrap_or_else(|| failed("an error without an end".into()));
    }
    follow(context, record, answer).await
}

fn body(context: &Context, planned: &Planned) -> Vec<u8> {
    let class = &context.workload.classes[planned.class];
    let mut body = json!({
        "model": context.model,
        "prompt": context.vocabulary.prompt(context.workload.seed, context.salt, planned),
        "max_tokens": planned.output_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
        "service_tier": service_tier(class.tier),
        "ignore_eos": class.ignore_eos,
        "temperature": class.sampling.temperature,
    });
    if let Some(top_p) = class.sampling.top_p {
        body["top_p"] = top_p.into();
    }
    if let Some(top_k) = class.sampling.top_k {
        body["top_k"] = top_k.into();
    }
    if context.send_priority {
        body["priority"] = priority(class.tier).into();
    }
    body.to_string().into_bytes()
}

/// Turns an HTTP response with an error status into the outcome of the request: refused (429 or 503) or failed.
async fn refusal(answer: Response<Incoming>) -> Outcome {
    let status = answer.status();
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        let wait_s = header_text(&answer, header::RETRY_AFTER).and_then(|s| s.trim().parse().ok());
        return Outcome::Refused(wait_s);
    }
    let said = match read_all(answer).await {
        Ok(body) => match serde_json::from_slice::<Value>(&body) {
            Ok(body) => error_message(body.get("error").unwrap_or(&body)),
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        },
        Err(error) => error.to_string(),
    };
    failed(format!("HTTP {}: {said}", status.as_u16()))
}

/// Reads the event stream of a response up to `[DONE]` and records when text arrives.
async fn follow(context: &Context, record: &mut Record, answer: Response<Incoming>) -> Outcome {
    let mut body = answer.into_body();
    let mut reader = SseReader::default();
    loop {
        let bytes = match next_bytes(context, &mut body).await {
            Ok(bytes) => bytes,
            Err(outcome) => return outcome,
        };
        let now = context.clock.now();
        let mut progress = Progress::More;
        let pushed = reader.push(&bytes, |event| {
            progress = record.on_event(event, now, context);
            matches!(progress, Progress::More)
        });
        if let Err(too_long) = pushed {
            return failed(too_long.to_string());
        }
        match progress {
            Progress::More => {}
            Progress::Failed(reason) => return failed(reason),
            Progress::Done => {
                // After `[DONE]`, let the server close the connection first: a server takes a client that closes first
                // for a client that went away.
                let _ = context.clock.timeout_us(CLOSE_US, body.frame()).await;
                return Outcome::Completed;
            }
        }
    }
}

async fn next_bytes(context: &Context, body: &mut Incoming) -> Result<Bytes, Outcome> {
    let idle_us = context.limits.idle_timeout_ms * 1000;
    match context.clock.timeout_us(idle_us, body.frame()).await {
        Some(Some(Ok(frame))) => Ok(frame.into_data().unwrap_or_default()),
        Some(Some(Err(error))) => Err(failed(HttpError::Exchange(error).to_string())),
        Some(None) => Err(failed("the stream ended before [DONE]".into())),
        None => Err(Outcome::TimedOut("the stream fell silent for longer than the idle timeout")),
    }
}

fn error_message(error: &Value) -> String {
    error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned)
}

/// Returns the outcome "failed", with the reason cut to one line of bounded length.
fn failed(reason: String) -> Outcome {
    let line = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
    Outcome::Failed(line.take(MAX_REASON_CHARS).collect())
}
