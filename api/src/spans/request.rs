//! Makes the spans of one ended request: one of the request itself, and in it one for each stretch of each choice.

use crate::http::Facts;
use crate::spans::open::OpenSpan;
use crate::spans::stretches::{Doing, Stretch, stretches};
use opentelemetry::trace::{Event, Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SdkTracer;
use std::sync::Arc;
use tiercel_actors::EndedTimeline;
use tiercel_device::{Timestamp, WallTimes};

/// Outcomes of requests whose output is complete.
const COMPLETE: [&str; 3] = ["stop", "length", "tool_calls"];

/// A request that has ended. Spans get nothing of its texts, which are not here.
pub(super) struct Ended {
    pub(super) request_id: Arc<str>,
    pub(super) facts: Facts,
    pub(super) began: Timestamp,
    pub(super) ended: Timestamp,
}

/// Records the spans of a request with this route and parent. `choices` has the timelines of its choices, as far as
/// they are known. Returns false if the request is not sampled, so that nothing was recorded.
pub(super) fn record(
    tracer: &SdkTracer,
    times: WallTimes,
    open: &OpenSpan,
    ended: &Ended,
    choices: &[Option<EndedTimeline>],
) -> bool {
    let mut span = tracer
        .span_builder(format!("POST {}", open.route.0))
        .with_kind(SpanKind::Server)
        .with_start_time(times.of(ended.began))
        .with_attributes(attributes(open, ended, choices))
        .start_with_context(tracer, &open.parent);
    if !span.is_recording() {
        return false;
    }
    if failed(&ended.facts).is_some() {
        span.set_status(Status::error(""));
    }
    let inside = Context::new().with_remote_span_context(span.span_context().clone());
    for (choice, timeline) in choices.iter().enumerate() {
        for stretch in timeline.iter().flat_map(stretches) {
            record_stretch(tracer, times, &inside, (choice, stretch));
        }
    }
    span.end_with_timestamp(times.of(ended.ended));
    true
}

fn record_stretch(
    tracer: &SdkTracer,
    times: WallTimes,
    inside: &Context,
    (choice, stretch): (usize, Stretch),
) {
    let mut attributes = vec![KeyValue::new("tiercel.choice", choice as i64)];
    let name = match stretch.doing {
        Doing::Queue => "queue",
        Doing::Prefill => "prefill",
        Doing::Decode => "decode",
        Doing::Preempted { swap } => {
            let strategy = if swap { "swap" } else { "recompute" };
            attributes.push(KeyValue::new("tiercel.preemption.strategy", strategy));
            "preempted"
        }
        Doing::Copying => "copying",
    };
    let command = |(at, what)| Event::new(what, times.of(at), Vec::new(), 0);
    tracer
        .span_builder(name)
        .with_start_time(times.of(stretch.from))
        .with_attributes(attributes)
        .with_events(stretch.commands.into_iter().map(command).collect())
        .start_with_context(tracer, inside)
        .end_with_timestamp(times.of(stretch.to));
}

/// Returns the type of the error by which the server failed a request: the code of the error, or the status if the
/// error has no code. `None` if the output is complete, if the client left, or if the status is 400 to 499. By
/// OpenTelemetry's conventions for servers a status of 400 to 499 is no error: the request was wrong, or refused within
/// a limit.
fn failed(facts: &Facts) -> Option<String> {
    let status = facts.status?;
    match facts.ended_as() {
        Some("cancelled") => None,
        Some(outcome) if COMPLETE.contains(&outcome) => None,
        // An error after the head of the response ends a response that has the status of success.
        Some(code) if status.is_success() || status.is_server_error() => Some(code.to_owned()),
        _ => status.is_server_error().then(|| status.as_u16().to_string()),
    }
}

/// Returns the attributes of a request's span. Those with other prefixes than `tiercel` follow OpenTelemetry's
/// conventions for HTTP servers and for generative AI.
fn attributes(open: &OpenSpan, ended: &Ended, choices: &[Option<EndedTimeline>]) -> Vec<KeyValue> {
    let (facts, (route, operation)) = (&ended.facts, open.route);
    let text = |text: &Arc<str>| Value::from(text.to_string());
    let number = |number: u32| Value::from(i64::from(number));
    let complete = facts.ended_as().filter(|outcome| COMPLETE.contains(outcome));
    let reasons =
        |reason: &'static str| Value::Array(Array::String(vec![StringValue::from(reason)]));
    let ttft_ms = facts.first_token.map(|at| at.since_ms(ended.began));
    let choice_count = Some(facts.all_choices).filter(|count| *count > 1);
    let dropped = choices.iter().flatten().map(|choice| choice.timeline.dropped()).sum::<u64>();
    let known = [
        ("http.request.method", Some("POST".into())),
        ("http.route", Some(route.into())),
        ("http.response.status_code", facts.status.map(|it| number(it.as_u16().into()))),
        ("url.path", Some(route.into())),
        ("url.scheme", Some(if open.secure { "https" } else { "http" }.into())),
        ("error.type", failed(facts).map(Value::from)),
        ("gen_ai.operation.name", Some(operation.into())),
        ("gen_ai.provider.name", Some("tiercel".into())),
        ("gen_ai.request.model", facts.model.as_ref().map(text)),
        ("gen_ai.request.choice.count", choice_count.map(number)),
        ("gen_ai.request.stream", facts.streamed.then_some(true.into())),
        ("gen_ai.response.id", facts.id.clone().map(Value::from)),
        ("gen_ai.response.model", facts.model.as_ref().filter(|_| ttft_ms.is_some()).map(text)),
        ("gen_ai.response.finish_reasons", complete.map(reasons)),
        ("gen_ai.usage.input_tokens", facts.prompt_tokens.map(number)),
        ("gen_ai.usage.cache_read.input_tokens", facts.cached_tokens.map(number)),
        ("gen_ai.usage.output_tokens", facts.output_tokens.map(number)),
        ("tiercel.request_id", Some(text(&ended.request_id))),
        ("tiercel.key", facts.key.as_ref().map(text)),
        ("tiercel.tenant", facts.tenant.as_ref().map(text)),
        ("tiercel.tier", facts.tier.map(|tier| tier.to_string().into())),
        ("tiercel.outcome", facts.ended_as().map(Value::from)),
        ("tiercel.ttft_ms", ttft_ms.map(Value::from)),
        ("tiercel.tpot_ms", facts.tpot_ms().map(Value::from)),
        ("tiercel.moments_dropped", Some(dropped).filter(|n| *n > 0).map(|n| (n as i64).into())),
    ];
    known.into_iter().filter_map(|(name, value)| Some(KeyValue::new(name, value?))).collect()
}
