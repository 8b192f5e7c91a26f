//! Latency targets that a request states for itself.

use crate::http::ApiError;
use crate::openai::fields::Fields;
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use std::ops::RangeInclusive;
use tiercel_config::SloTargets;

/// Allowed range of a latency target that a request states, ms.
pub(crate) const RANGE_MS: RangeInclusive<f64> = 0.001..=86_400_000.0;
/// HTTP header with the request's TTFT target, ms, as routers of the llm-d project send it.
pub(crate) const TTFT_HEADER: &str = "x-llm-d-slo-ttft-ms";
/// HTTP header with the request's TPOT target, ms, as routers of the llm-d project send it.
pub(crate) const TPOT_HEADER: &str = "x-llm-d-slo-tpot-ms";

/// Reads the latency targets that the body of a request states.
pub(crate) fn of_body(body: &Fields<'_>) -> Result<SloTargets, ApiError> {
    let read = |name| body.number(name, RANGE_MS).map(|ms| ms.map(f64::from));
    Ok(SloTargets {
        ttft_ms: read("slo_ttft_ms")?,
        tpot_ms: read("slo_tpot_ms")?,
        e2e_ms: read("slo_e2e_ms")?,
        ..SloTargets::default()
    })
}

/// Returns the latency targets that a request states: each from its body, otherwise from its header. The end-to-end
/// target has no header.
pub(crate) fn or_of_headers(body: SloTargets, headers: &HeaderMap) -> Result<SloTargets, ApiError> {
    Ok(SloTargets {
        ttft_ms: body.ttft_ms.or(of_header(headers, TTFT_HEADER)?),
        tpot_ms: body.tpot_ms.or(of_header(headers, TPOT_HEADER)?),
        ..body
    })
}

fn of_header(headers: &HeaderMap, name: &'static str) -> Result<Option<f64>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let ms = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    ms.filter(|ms| RANGE_MS.contains(ms)).map(Some).ok_or_else(|| {
        let (low, high) = (RANGE_MS.start(), RANGE_MS.end());
        let message = format!("the header '{name}' must be a number from {low} to {high}");
        ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_header")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::{HeaderName, HeaderValue};
    use serde_json::{Value, json};

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
    }

    fn read(body: Value, pairs: &[(&'static str, &str)]) -> Result<SloTargets, ApiError> {
        let body = of_body(&Fields::root(&body).unwrap())?;
        or_of_headers(body, &headers(pairs))
    }

    #[test]
    fn the_body_goes_before_the_headers() {
        let body = json!({"slo_ttft_ms": 100, "slo_e2e_ms": 9000.5});
        let read = read(body, &[(TTFT_HEADER, "200"), (TPOT_HEADER, " 30 ")]).unwrap();
        assert_eq!(
            (read.ttft_ms, read.tpot_ms, read.e2e_ms),
            (Some(100.0), Some(30.0), Some(9000.5))
        );
        assert_eq!(self::read(json!({}), &[]).unwrap(), SloTargets::default());
    }

    #[test]
    fn what_is_no_time_is_an_error_that_names_it() {
        for text in ["soon", "-1", "0", "inf", "1e99", ""] {
            let error = read(json!({}), &[(TPOT_HEADER, text)]).expect_err(text);
            assert!(error.to_string().contains(TPOT_HEADER), "{error}");
        }
        let error = read(json!({"slo_ttft_ms": "fast"}), &[]).expect_err("a text");
        assert_eq!(error.body()["error"]["param"], "slo_ttft_ms");
    }
}
