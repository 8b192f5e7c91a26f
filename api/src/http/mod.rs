//! The HTTP server: limits, routes, and everything that is not OpenAI's.

pub(crate) mod body;
mod error;
mod pages;
mod socket;
mod tenants;

pub(crate) use error::ApiError;
pub(crate) use socket::Answering;
pub(crate) use tenants::Tenants;

use crate::boot::App;
use crate::openai;
use actix_http::HttpService;
use actix_server::Server;
use actix_service::{IntoServiceFactory, ServiceFactoryExt, fn_service, map_config};
use actix_web::dev::AppConfig;
use actix_web::http::header;
use actix_web::web::{self, Data};
use actix_web::{App as WebApp, Resource};
use socket::Socket;
use std::future::ready;
use std::net::TcpListener;
use std::time::Duration;
use tokio::net::TcpStream;

/// Tokenizing of long prompts runs on this many threads beside the worker.
const BLOCKING_THREADS: usize = 2;
/// After the engine has drained, what is still unwritten gets this long.
const FLUSH_S: u64 = 5;

/// A server on a bound socket; it answers from the moment it is polled.
pub(crate) fn server(listener: TcpListener, app: Data<App>) -> std::io::Result<Server> {
    let address = listener.local_addr()?;
    let builder = Server::build()
        .workers(workers())
        .worker_max_blocking_threads(BLOCKING_THREADS)
        .max_concurrent_connections(app.http.max_connections as usize)
        .shutdown_timeout(FLUSH_S)
        .disable_signals();
    let draining = builder.graceful_shutdown_signal();
    let builder = builder.listen("http", listener, move || {
        let draining = draining.clone();
        let settings = &app.http;
        let request_timeout = Duration::from_millis(settings.request_timeout_ms);
        let routes = WebApp::new().app_data(app.clone()).configure(routes).into_factory();
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let draining = draining.clone();
                async move { draining.notified().await }
            })
            .keep_alive(Duration::from_millis(settings.keep_alive_ms))
            .client_request_timeout(request_timeout)
            .client_disconnect_timeout(request_timeout)
            // Otherwise a client that hangs up is not noticed until something is written to it.
            .h1_allow_half_closed(false)
            .local_addr(address)
            .on_connect_ext(|socket: &Socket, data| _ = data.insert(socket.ahead()))
            .h1(map_config(routes.map_err(|error| error.error_response()), |()| {
                AppConfig::default()
            }));
        fn_service(|stream: TcpStream| {
            let peer = stream.peer_addr().ok();
            ready(Ok((Socket::new(stream), peer)))
        })
        .and_then(http)
    })?;
    Ok(builder.run())
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
