//! Reads the JSON body of an HTTP request, and limits its content type, size, time of arrival, encoding (UTF-8) and
//! nesting depth, and the memory that all bodies take together.

use crate::boot::App;
use crate::http::body_memory::BodyShare;
use crate::http::{ApiError, Caller, Exchange, Record, Surface};
use actix_web::dev::Payload;
use actix_web::http::{StatusCode, header};
use actix_web::web::{BytesMut, Data};
use actix_web::{FromRequest, HttpRequest};
use futures_util::StreamExt;
use futures_util::future::{FutureExt, LocalBoxFuture};
use serde_json::Value;

/// An HTTP request with a JSON body, as a parameter of a handler. The API key is checked before the body is read. A
/// request that breaks a rule is answered with an [`ApiError`] of status 400, 401, 403, 408, 413 or 415; one whose body
/// finds no memory with 429 or 503.
pub(crate) struct JsonRequest {
    pub(crate) caller: Caller,
    pub(crate) body: Value,
}

impl FromRequest for JsonRequest {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<JsonRequest, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        async move {
            let app = request.app_data::<Data<App>>().expect("every worker's state holds the App");
            let caller = app.keys.caller(&request)?;
            if app.keys.required() {
                Record::of(&request).caller(&caller);
            }
            // Bodies of the control API take no share of the memory: the control API has few connections, and its
            // requests must also be read while bodies of clients fill the memory.
            let limited = request.app_data::<Surface>() == Some(&Surface::Public);
            let share = limited.then(|| app.bodies.begin(&caller, app.keys.tenants() > 1));
            Ok(JsonRequest { caller, body: json(app, &request, (payload, share)).await? })
        }
        .boxed_local()
    }
}

/// Reads the body of an HTTP request as JSON. Until the body is parsed, its bytes take the memory of `share`, if there
/// is one. serde_json refuses more than 127 levels of nesting.
///
/// # Errors
/// [`ApiError`] with 400, 408, 413, 415, 429 or 503.
async fn json(
    app: &App,
    request: &HttpRequest,
    (payload, mut share): (Payload, Option<BodyShare>),
) -> Result<Value, ApiError> {
    check_headers(request)?;
    let limit = app.http.max_body_kib as usize * 1024;
    let declared = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large(limit));
    }
    let timeout_ms = app.http.request_timeout_ms;
    let body = app
        .clock
        .timeout_us(timeout_ms * 1_000, collect(payload, limit, share.as_mut()))
        .await
        .unwrap_or_else(|| Err(too_slow(timeout_ms)))?;
    Exchange::body_read(request);
    parse(&body)
}

fn check_headers(request: &HttpRequest) -> Result<(), ApiError> {
    let refuse = |message: String| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(content_type) = header(header::CONTENT_TYPE) {
        let lower = content_type.to_ascii_lowercase();
        let mut parts = lower.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default();
        let utf8 = parts
            .filter_map(|part| part.strip_prefix("charset="))
            .all(|charset| matches!(charset.trim_matches('"'), "utf-8" | "utf8" | "us-ascii"));
        if essence != "application/json" || !utf8 {
            return refuse(format!(
                "cannot read a body of type {content_type:?}; send JSON in UTF-8 with the header \
                 `Content-Type: application/json`"
            ));
        }
    }
    match header(header::CONTENT_ENCODING) {
        None | Some("identity") => Ok(()),
        Some(encoding) => {
            refuse(format!("cannot read the content encoding {encoding:?}; send the body as is"))
        }
    }
}

async fn collect(
    mut payload: Payload,
    limit: usize,
    mut share: Option<&mut BodyShare>,
) -> Result<BytesMut, ApiError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}"))
        })?;
        if body.len() + chunk.len() > limit {
            return Err(too_large(limit));
        }
        if let Some(share) = &mut share {
            share.take(chunk.len())?;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn parse(body: &[u8]) -> Result<Value, ApiError> {
    let bad =
        |message: String| ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_json");
    if body.is_empty() {
        return Err(bad("the request has no body; send a JSON object".into()));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        bad(format!("the body is not valid UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    serde_json::from_str(text).map_err(|error| bad(format!("the body is not valid JSON: {error}")))
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is larger than {} KiB, the limit of this server", limit / 1024),
    )
    .code("body_too_large")
}

fn too_slow(timeout_ms: u64) -> ApiError {
    ApiError::new(
        StatusCode::REQUEST_TIMEOUT,
        format!("the body did not arrive within {timeout_ms} ms"),
    )
    .code("body_timeout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_tell_where_the_json_breaks() {
        let message = |body: &[u8]| parse(body).expect_err("broken").to_string();
        assert!(message(b"{\"a\": 1,}").contains("line 1 column 9"));
        assert!(message(b"{\"a\": \"\xff\"}").contains("from byte 7"));
        assert!(message(b"").contains("no body"));
        assert!(message(b"{\"t\": 1e999}").contains("out of range"));
        assert!(message(b"{\"t\": NaN}").contains("line 1 column 7"));
        assert!(message("[".repeat(200).as_bytes()).contains("recursion limit"));
    }
}
