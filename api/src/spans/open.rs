//! Spans of a running request: its route, the span that it belongs to, and the channels for its timelines.

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tiercel_actors::EndedTimeline;
use tokio::sync::oneshot;

/// Routes whose requests have spans, with the name of the operation in OpenTelemetry's conventions.
pub(super) const ROUTES: [(&str, &str); 2] =
    [("/v1/chat/completions", "chat"), ("/v1/completions", "text_completion")];

/// Spans of a running request.
pub(crate) struct OpenSpan {
    /// Route of the request, and the name of its operation.
    pub(super) route: (&'static str, &'static str),
    /// Whether the client speaks TLS with the server.
    pub(super) secure: bool,
    /// Context with the span that the request belongs to, if its client named a span.
    pub(super) parent: Context,
    /// Channels on which the engine sends the timelines of the request's choices.
    pub(super) choices: Vec<oneshot::Receiver<EndedTimeline>>,
}

impl OpenSpan {
    /// Begins the spans of a request; `None` if requests of its route have none.
    pub(super) fn begin(request: &HttpRequest, secure: bool) -> Option<OpenSpan> {
        let route = ROUTES.into_iter().find(|(route, _)| *route == request.path())?;
        (request.method() == Method::POST).then(|| OpenSpan {
            route,
            secure,
            parent: parent(request.headers()),
            choices: Vec::new(),
        })
    }

    /// Returns the channel on which the engine shall send the timeline of the request's next choice.
    pub(crate) fn choice(&mut self) -> oneshot::Sender<EndedTimeline> {
        let (sender, receiver) = oneshot::channel();
        self.choices.push(receiver);
        sender
    }
}

/// Returns the parent context of a request's span. The client names the parent span by the headers `traceparent` and
/// `tracestate` of W3C Trace Context. The context is empty if `traceparent` is missing, repeated or malformed.
fn parent(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key);
        let (first, None) = (values.next()?, values.next()) else { return None };
        first.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::{HeaderName, HeaderValue};
    use opentelemetry::trace::TraceContextExt;

    #[test]
    fn one_parent_in_the_right_form_is_taken_with_its_sampled_flag() {
        let named = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                let value = HeaderValue::from_str(value).unwrap();
                headers.append(HeaderName::from_static("traceparent"), value);
            }
            let context = parent(&headers);
            let span = context.span().span_context().clone();
            span.is_valid().then(|| (span.span_id().to_string(), span.is_sampled()))
        };
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(named(&[good]), Some(("b7ad6b7169203331".into(), true)));
        let unsampled = good.replace("-01", "-00");
        assert_eq!(named(&[&unsampled]), Some(("b7ad6b7169203331".into(), false)));
        let zeros = good.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        for bad in [&[][..], &[good, good], &["00-1-2"], &[&zeros], &[&format!("{good}-more")]] {
            assert_eq!(named(bad), None, "{bad:?}");
        }
    }
}
