//! Patience that a request states for itself: the longest wait for its first token.

use crate::http::ApiError;
use crate::openai::fields::Fields;
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use std::ops::RangeInclusive;

/// Allowed range of the patience (longest wait for the first token) that a request states, ms.
pub(crate) const RANGE_MS: RangeInclusive<u32> = 1..=86_400_000;
const FIELD: &str = "max_wait_ms";
pub(crate) const HEADER: &str = "x-tiercel-max-wait-ms";

/// Reads the patience (longest wait for the first token) from a request's body, ms.
pub(crate) fn of_body(body: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    Ok(body.count(FIELD, RANGE_MS)?.map(u64::from))
}

/// Returns the patience (longest wait for the first token) that a request states, ms: that of its body, otherwise that
/// of its header.
pub(crate) fn or_of_headers(
    body_ms: Option<u64>,
    headers: &HeaderMap,
) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get(HEADER) else { return Ok(body_ms) };
    let ms = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let of_header = ms.filter(|ms| RANGE_MS.contains(ms)).map(u64::from).ok_or_else(|| {
        let (low, high) = (RANGE_MS.start(), RANGE_MS.end());
        let message = format!("the header '{HEADER}' must be a whole number from {low} to {high}");
        ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_header")
    })?;
    Ok(body_ms.or(Some(of_header)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::{HeaderName, HeaderValue};
    use serde_json::{Value, json};

    fn read(body: Value, header: Option<&'static str>) -> Result<Option<u64>, ApiError> {
        let value =
            header.map(|text| (HeaderName::from_static(HEADER), HeaderValue::from_static(text)));
        let body_ms = of_body(&Fields::root(&body).unwrap())?;
        or_of_headers(body_ms, &value.into_iter().collect())
    }

    #[test]
    fn the_body_goes_before_the_header() {
        assert_eq!(read(json!({}), None).unwrap(), None);
        assert_eq!(read(json!({}), Some(" 250 ")).unwrap(), Some(250));
        assert_eq!(read(json!({"max_wait_ms": 20}), Some("250")).unwrap(), Some(20));
    }

    #[test]
    fn what_is_no_time_is_an_error_that_names_it() {
        for text in ["0", "-1", "1.5", "soon", "86400001"] {
            let error = read(json!({}), Some(text)).expect_err(text).to_string();
            assert!(error.contains(HEADER) && error.contains("1 to 86400000"), "{error}");
            assert!(read(json!({"max_wait_ms": 20}), Some(text)).is_err(), "{text}");
        }
        let error = read(json!({"max_wait_ms": 0}), None).expect_err("0");
        assert_eq!(error.body()["error"]["param"], FIELD);
    }
}
