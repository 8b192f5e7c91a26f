//! The HTTP server: limits, routes, and everything that is not OpenAI's.

pub(crate) mod body;
mod error;
mod pages;
mod tenants;

pub(crate) use error::ApiError;
pub(crate) use tenants::Tenants;

use crate::boot::App;
use crate::openai;
use actix_web::dev::Server;
use actix_web::http::header;
use actix_web::web::{self, Data};
use actix_web::{App as WebApp, HttpServer, Resource};
use std::net::TcpListener;
use std::time::Duration;

/// Tokenizing of long prompts runs on this many threads beside the worker.
const BLOCKING_THREADS: usize = 2;
/// After the engine has drained, what is still unwritten gets this long.
const FLUSH_S: u64 = 5;

/// A server on a bound socket; it answers from the moment it is polled.
pub(crate) fn server(listener: TcpListener, app: Data<App>) -> std::io::Result<Server> {
    let settings = app.http.clone();
    let request_timeout = Duration::from_millis(settings.request_timeout_ms);
    let server = HttpServer::new(move || WebApp::new().app_data(app.clone()).configure(routes))
        .workers(workers())
        .worker_max_blocking_threads(BLOCKING_THREADS)
        .max_connections(settings.max_connections as usize)
        .keep_alive(Duration::from_millis(settings.keep_alive_ms))
        .client_request_timeout(request_timeout)
        .client_disconnect_timeout(request_timeout)
        // Otherwise a client that hangs up is not noticed until something is written to it.
        .h1_allow_half_closed(false)
        .shutdown_timeout(FLUSH_S)
        .disable_signals()
        .listen(listener)?;
    Ok(server.run())
}

/// HTTP takes one core of every eight, so as not to fight the compute pool.
fn workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 8).clamp(1, 8)
}

fn routes(config: &mut web::ServiceConfig) {
    config
        .service(post("/v1/chat/completions").route(web::post().to(openai::chat)))
        .service(post("/v1/completions").route(web::post().to(openai::completions)))
        .service(post("/tokenize").route(web::post().to(openai::tokenize)))
        .service(post("/detokenize").route(web::post().to(openai::detokenize)))
        .service(get("/v1/models").route(web::get().to(pages::models)))
        .service(get("/v1/models/{id:.+}").route(web::get().to(pages::model)))
        .service(
            get("/health").route(web::get().to(pages::health)).route(web::head().to(pages::health)),
        )
        .service(get("/metrics").route(web::get().to(pages::metrics)))
        .default_service(web::to(pages::not_found));
}

fn get(path: &str) -> Resource {
    web::resource(path).default_service(web::to(|request| pages::wrong_method(request, "GET")))
}

fn post(path: &str) -> Resource {
    web::resource(path).default_service(web::to(|request| pages::wrong_method(request, "POST")))
}

/// The header that lists a resource's methods.
const ALLOW: header::HeaderName = header::ALLOW;
