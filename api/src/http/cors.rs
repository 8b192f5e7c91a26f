//! CORS: browsers let web pages of the origins in `http.cors_origins` use the public listener. The control listener
//! serves only its own page.

use crate::http::Surface;
use actix_cors::Cors;
use actix_web::http::Method;
use actix_web::middleware::Condition;
use tiercel_config::HttpSettings;

/// Entry of `http.cors_origins` that stands for all origins.
const ALL: &str = "*";
/// Time for which a browser keeps the answer to a preflight request, s.
const MAX_AGE_S: usize = 3_600;
/// Headers of answers that the scripts of a page may read, beside the headers that every browser shows to scripts.
const EXPOSED: [&str; 10] = [
    "x-request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
];

/// Returns the middleware for CORS. The middleware answers preflight requests, which have no API key, and tells
/// browsers which pages may read an answer. A page may send any header, so a page can send an API key. Cookies are not
/// allowed.
pub(super) fn middleware(surface: Surface, settings: &HttpSettings) -> Condition<Cors> {
    let origins = match surface {
        Surface::Public => settings.cors_origins.as_slice(),
        Surface::Control => &[],
    };
    let cors = Cors::default()
        .allowed_methods([Method::GET, Method::HEAD, Method::POST])
        .allow_any_header()
        .expose_headers(EXPOSED)
        .max_age(MAX_AGE_S);
    let cors = match origins {
        [all] if all == ALL => cors.allow_any_origin().send_wildcard(),
        origins => origins.iter().fold(cors, |cors, origin| cors.allowed_origin(origin)),
    };
    Condition::new(!origins.is_empty(), cors)
}
