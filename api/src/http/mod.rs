//! The HTTP server: connections and their limits, routes, errors, access log, and the endpoints that are not part of
//! OpenAI's API.

mod access;
mod body;
mod body_memory;
mod caller;
mod connections;
mod cors;
mod entrance;
mod error;
mod exchange;
mod facts;
mod keys;
mod metering;
mod origin;
mod pages;
mod refusals;
mod request_id;
mod routes;
mod seats;
mod socket;
mod stream;
mod surface;
mod tls;
mod unserved;

pub(crate) use access::{AccessLog, Record};
pub(crate) use body::JsonRequest;
pub(crate) use body_memory::BodyMemory;
pub(crate) use caller::{Caller, Rights, tier_of};
pub(crate) use connections::describe_metrics as describe_connections;
pub(crate) use error::{ApiError, ErrorBody};
pub(crate) use exchange::{Answering, Exchange};
pub(crate) use facts::Facts;
pub(crate) use keys::{Accepted, Keys};
pub(crate) use metering::{Metered, Meters};
pub(crate) use refusals::describe as describe_refusals;
pub(crate) use request_id::RequestId;
pub(crate) use surface::Surface;
pub(crate) use tls::{Certificate, TlsError};

use crate::boot::{App, TOKENIZING_THREADS};
use actix_http::ConnectionType;
use actix_http::HttpService;
use actix_server::Server;
use actix_service::{IntoServiceFactory, ServiceFactoryExt, fn_service, map_config};
use actix_web::App as WebApp;
use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::{AppConfig, Service, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::{StatusCode, Version};
use actix_web::web::Data;
use connections::Connections;
use entrance::Entrance;
use socket::{Patience, Socket};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tiercel_config::HttpSettings;
use tiercel_device::lower_thread_priority;
use tokio::net::TcpStream;

/// Longest time for sending the rest of the answers after the engine has drained, s.
const FLUSH_S: u64 = 5;

/// Most connections of the control API.
const CONTROL_CONNECTIONS: usize = 64;
/// Most connections of the control API of one client address.
const CONTROL_CONNECTIONS_PER_ADDRESS: usize = 48;
/// Connections that each HTTP worker accepts beyond its share of the listener's connections: they make idle connections
/// give way, or wait while none is idle. Others wait in the operating system.
const NEWCOMERS: usize = 16;

/// Makes an HTTP server on a bound socket; the server answers from the moment it is polled. The engine ends a request
/// whose client reads nothing for `stall_timeout_ms`. If the client does not read the error within the request timeout
/// either, the server closes the connection.
pub(crate) fn server(
    listener: TcpListener,
    app: Data<App>,
    surface: Surface,
    certificate: Option<Arc<Certificate>>,
    stall_timeout_ms: u64,
) -> std::io::Result<Server> {
    let address = listener.local_addr()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (total, per_address) = most_connections(&app.http, surface);
    let (workers, share) = match surface {
        Surface::Public => shares(cores, total),
        Surface::Control => (1, total),
    };
    let connections = Connections::new(surface, (total, per_address), app.clock.clone());
    let connections = Arc::new(connections);
    let builder = Server::build()
        .workers(workers)
        .worker_max_blocking_threads(TOKENIZING_THREADS)
        .max_concurrent_connections(share + NEWCOMERS)
        .shutdown_timeout(FLUSH_S)
        .disable_signals();
    let draining = builder.graceful_shutdown_signal();
    // Each worker calls this function once, on its own thread.
    let builder = builder.listen("http", listener, move || {
        if surface == Surface::Control {
            lower_thread_priority();
        }
        let draining = draining.clone();
        let settings = &app.http;
        let entrance = Entrance {
            connections: connections.clone(),
            certificate: certificate.clone(),
            clock: app.clock.clone(),
            patience: Patience::new(settings, stall_timeout_ms),
            draining: draining.clone(),
        };
        let routes = web_app(app.clone(), surface).into_factory();
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let draining = draining.clone();
                async move { draining.notified().await }
            })
            .keep_alive(Duration::from_millis(settings.keep_alive_ms))
            // Turn off actix's timeout for request heads, which covers only the first request of a connection. The
            // socket's own timer covers every head.
            .client_request_timeout(Duration::ZERO)
            .client_disconnect_timeout(Duration::from_millis(settings.request_timeout_ms))
            // Do not allow half-closed connections: with them, a client that hangs up would be noticed only when the
            // server writes to it.
            .h1_allow_half_closed(false)
            .local_addr(address)
            .on_connect_ext(|socket: &Socket, data| _ = data.insert(socket.exchange()))
            .h1(map_config(routes.map_err(|error| error.error_response()), |()| {
                AppConfig::default()
            }));
        fn_service(move |stream: TcpStream| entrance.clone().enter(stream)).and_then(http)
    })?;
    Ok(builder.run())
}

/// Returns the maximum number of connections of a listener, and of one client address (0 for no limit).
fn most_connections(settings: &HttpSettings, surface: Surface) -> (usize, usize) {
    let per_address = settings.max_connections_per_address as usize;
    match surface {
        Surface::Public => (settings.max_connections as usize, per_address),
        Surface::Control => {
            let most = CONTROL_CONNECTIONS_PER_ADDRESS;
            (CONTROL_CONNECTIONS, if per_address == 0 { most } else { per_address.min(most) })
        }
    }
}

/// Makes the web application of one HTTP worker: all routes, with an access-log record of every request.
fn web_app(
    app: Data<App>,
    surface: Surface,
) -> WebApp<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    let access = app.access.clone();
    let keyed = app.keys.required();
    let cors = cors::middleware(surface, &app.http);
    WebApp::new()
        .app_data(app)
        .app_data(surface)
        .wrap(cors)
        .wrap_fn(move |request, service| {
            let answering = Answering::begin(request.request());
            let id = RequestId::begin(request.request());
            let record = Record::begin(&access, request.request());
            let answer = service.call(request);
            async move {
                let mut answer = answer.await;
                drop(answering);
                record.answered(&answer);
                if let Ok(answer) = &mut answer {
                    id.echo(answer.headers_mut());
                    // Close the connection of a client without a key, so that such clients cannot take all connections.
                    if answer.status() == StatusCode::UNAUTHORIZED {
                        let head = answer.response_mut().head_mut();
                        head.set_connection_type(ConnectionType::Close);
                    }
                }
                let mut answer = answer.map(ServiceResponse::map_into_boxed_body);
                if let Ok(answer) = &mut answer {
                    leave_out_chunks(answer);
                }
                answer
            }
        })
        .configure(|config| routes::register(surface, keyed, config))
}

/// Turns chunks off for an answer of unknown length to an HTTP/1.0 client, because HTTP/1.0 has no chunks. The end of
/// the connection then ends the answer.
fn leave_out_chunks(answer: &mut ServiceResponse) {
    let is_old = answer.request().version() < Version::HTTP_11;
    if is_old && matches!(answer.response().body().size(), BodySize::Stream) {
        let head = answer.response_mut().head_mut();
        head.no_chunking(true);
        head.set_connection_type(ConnectionType::Close);
    }
}

/// Returns the number of HTTP workers and the maximum number of connections of each. There is one worker for every
/// eight cores (1 to 8 workers), so that HTTP does not compete with the compute pool, and all workers together hold at
/// most `max_connections`.
fn shares(cores: usize, max_connections: usize) -> (usize, usize) {
    let workers = (cores / 8).clamp(1, 8).min(max_connections.max(1));
    (workers, (max_connections / workers).max(1))
}

#[cfg(test)]
mod tests {
    use super::{CONTROL_CONNECTIONS_PER_ADDRESS, Surface, most_connections, shares};
    use tiercel_config::HttpSettings;

    #[test]
    fn the_control_listener_limits_addresses_also_where_the_public_one_does_not() {
        let most = |max_connections_per_address| {
            let settings = HttpSettings { max_connections_per_address, ..HttpSettings::default() };
            [Surface::Public, Surface::Control]
                .map(|surface| most_connections(&settings, surface).1)
        };
        assert_eq!(most(0), [0, CONTROL_CONNECTIONS_PER_ADDRESS]);
        assert_eq!(most(5), [5, 5]);
        assert_eq!(most(1_000), [1_000, CONTROL_CONNECTIONS_PER_ADDRESS]);
    }

    #[test]
    fn workers_share_the_connections_and_never_hold_more() {
        assert_eq!(shares(2, 2048), (1, 2048));
        assert_eq!(shares(32, 2048), (4, 512));
        assert_eq!(shares(64, 3), (3, 1));
        for (cores, most) in [(1, 1), (24, 100), (500, 65_536)] {
            let (workers, each) = shares(cores, most);
            assert!(workers * each <= most && workers * each > most - workers, "{cores} {most}");
        }
    }
}
