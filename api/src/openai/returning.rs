//! Recognises retries: requests of clients that come back after a refusal.

use actix_web::http::header::HeaderMap;

/// HTTP header in which openai-python counts the retries of a request; other clients may send it too.
pub(crate) const RETRY_HEADER: &str = "x-stainless-retry-count";

/// Returns whether the client says in a header that the request is a retry after a refusal.
pub(crate) fn says_so(headers: &HeaderMap) -> bool {
    let count = headers.get(RETRY_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    count.is_some_and(|count: u32| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::{HeaderName, HeaderValue};

    #[test]
    fn a_retry_is_one_from_the_first_on() {
        let says = |text: &str| {
            let value = HeaderValue::from_str(text).unwrap();
            says_so(&[(HeaderName::from_static(RETRY_HEADER), value)].into_iter().collect())
        };
        assert!(says("1") && says("2") && !says("0") && !says("-1") && !says("yes"));
        assert!(!says_so(&HeaderMap::new()));
    }
}
