//! Request ids: the header `X-Request-Id`, by which clients and operators find a request in logs and listings.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::{HttpMessage, HttpRequest};
use std::sync::Arc;

/// Name of the header that carries the id of a request.
const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that a client may give its request, visible ASCII characters.
const MAX_CHARS: usize = 128;

/// Id of an HTTP request. Clients choose it, so it need not be unique.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    /// Takes the id that the client gave the request, or makes one if the client gave none or one that is not 1 to 128
    /// visible ASCII characters. Stores it in the request's extensions.
    pub(crate) fn begin(request: &HttpRequest) -> RequestId {
        let given = request.headers().get(HEADER).and_then(|value| value.to_str().ok());
        let id = match given.filter(|id| is_valid(id)) {
            Some(id) => RequestId(id.into()),
            None => RequestId(format!("req-{:032x}", rand::random::<u128>()).into()),
        };
        request.extensions_mut().insert(id.clone());
        id
    }

    /// Returns the id that is stored in the request's extensions.
    pub(crate) fn of(request: &HttpRequest) -> Arc<str> {
        let id = request.extensions().get::<RequestId>().cloned();
        id.expect("the server gives every request an id before it is routed").0
    }

    /// Writes the id into the headers of the response.
    pub(crate) fn echo(&self, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::from_str(&self.0) {
            headers.insert(HEADER, value);
        }
    }
}

fn is_valid(id: &str) -> bool {
    (1..=MAX_CHARS).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    #[test]
    fn a_valid_id_stays_and_any_other_is_replaced() {
        let id = |given: &str| {
            let request = TestRequest::default().insert_header(("x-request-id", given));
            let request = request.to_http_request();
            RequestId::begin(&request);
            RequestId::of(&request)
        };
        let longest = "x".repeat(MAX_CHARS);
        for good in ["a", "trace/1:2-3", longest.as_str()] {
            assert_eq!(&*id(good), good);
        }
        for bad in ["", "two words", "tab\there", &"x".repeat(MAX_CHARS + 1)] {
            let made = id(bad);
            assert!(made.starts_with("req-") && made.len() == 36, "{bad:?}: {made}");
        }
    }
}
