//! The live page: static files, which are part of the program, and their headers. The page's own requests go to the
//! control API, so the files hold nothing of the server and need no key.

use crate::http::ApiError;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, EntityTag, Header, IfNoneMatch};
use actix_web::web::Path;
use actix_web::{HttpRequest, HttpResponse};

/// What the page may load and run: files of this server alone, and nothing that stands in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the page.
struct File {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! file {
    ($name:literal, $content_type:expr) => {
        File {
            name: $name,
            content_type: $content_type,
            text: include_str!(concat!("page/", $name)),
        }
    };
}

const PAGE: File = file!("index.html", "text/html; charset=utf-8");
const FILES: &[File] = &[
    file!("page.css", "text/css; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
    file!("main.js", SCRIPT),
    file!("client.js", SCRIPT),
    file!("elements.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("rates.js", SCRIPT),
    file!("charts.js", SCRIPT),
    file!("palette.js", SCRIPT),
    file!("pools.js", SCRIPT),
    file!("histories.js", SCRIPT),
    file!("lanes.js", SCRIPT),
    file!("requests.js", SCRIPT),
    file!("tables.js", SCRIPT),
    file!("chosen.js", SCRIPT),
    file!("events.js", SCRIPT),
];

/// Endpoint `GET /dashboard`: the live page.
pub(crate) async fn page(request: HttpRequest) -> HttpResponse {
    answer(&request, &PAGE)
}

/// Endpoint `GET /dashboard/{file}`: a script, the style sheet or the icon of the live page.
///
/// # Errors
/// 404 if the page has no such file.
pub(crate) async fn file(
    request: HttpRequest,
    name: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let found = FILES.iter().find(|file| file.name == name.as_str());
    let missing = || {
        ApiError::new(StatusCode::NOT_FOUND, "the live page has no such file").code("unknown_url")
    };
    found.map(|file| answer(&request, file)).ok_or_else(missing)
}

/// Answers with a file, or with 304 if the browser has the file as it is in this version of the program. A browser asks
/// each time, so that no page mixes files of two versions.
fn answer(request: &HttpRequest, file: &File) -> HttpResponse {
    let hash = blake3::hash(file.text.as_bytes()).to_hex();
    let tag = EntityTag::new_strong(hash[..32].to_owned());
    let has_it = match IfNoneMatch::parse(request) {
        Ok(IfNoneMatch::Any) => true,
        Ok(IfNoneMatch::Items(tags)) => tags.iter().any(|known| known.weak_eq(&tag)),
        Err(_) => false,
    };
    let status = if has_it { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let mut response = HttpResponse::build(status);
    response
        .insert_header((header::ETAG, tag))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::X_FRAME_OPTIONS, "DENY"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header(("cross-origin-opener-policy", "same-origin"))
        .insert_header(("cross-origin-resource-policy", "same-origin"));
    if has_it {
        return response.finish();
    }
    response.insert_header((header::CONTENT_TYPE, file.content_type)).body(file.text)
}
