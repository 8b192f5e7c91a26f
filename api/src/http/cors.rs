//! Lets web pages of other origins use the public listener from a browser (CORS), if the setting `http.cors_origins` names
//! their origins. The control listener serves no page but its own.

use crate::http::Surface;
use actix_cors::Cors;
use actix_web::http::Method;
use actix_web::middleware::Condition;
use tiercel_config::HttpSettings;

/// Word that stands for all origins.
const ALL: &str = "*";
/// Time for which a browser keeps the answer to a preflight request, s.
const MAX_AGE_S: usize = 3_600;
/// Headers of answers that scripts of a page may read, beside those that the browser always shows.
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

/// Returns the middleware that answers preflight requests, which have no key, and tells browsers which pages may read an
/// answer. A request of a page may have any header, so it can have a key; cookies are not allowed.
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
