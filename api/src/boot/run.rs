//! The life of a server: loading, serving, draining.

use crate::boot::app::Model;
use crate::boot::fingerprint::Served;
use crate::boot::metrics::Exporter;
use crate::boot::model::{self, Loaded};
use crate::boot::{
    App, BootError, Serving, control, draining, fingerprint, greeting, mock, signals,
};
use crate::control::{AuditEvent, SERVER};
use crate::http::{self, Certificate, Keys, Surface};
use crate::replies::Recorder;
use crate::spans::Spans;
use actix_rt::Arbiter;
use actix_server::{Server, ServerHandle};
use actix_web::web::Data;
use futures_util::future::{Either, select};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use tiercel_actors::{Engine, EngineHandle, Request, StreamEvent};
use tiercel_config::{DeviceKind, ServerSettings, SloTargets};
use tiercel_device::{Clock, SamplingParams, Tier};
use tiercel_model::source::Stop;
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;
use tokio::signal::unix::Signal;

/// Interval of the server's periodic upkeep, us: it moves metrics samples into histogram buckets and logs how many
/// refusals had no log line.
const UPKEEP_US: u64 = 5_000_000;

/// A server that has bound its socket but not loaded its model yet.
pub(crate) struct Bound {
    settings: ServerSettings,
    listener: TcpListener,
    address: SocketAddr,
    exporter: Exporter,
    keys: Keys,
    /// Certificate of both listeners; `None` without TLS.
    certificate: Option<Arc<Certificate>>,
    /// Socket of the control API; `None` if the server has none.
    control: Option<TcpListener>,
    /// Recorder of answers, if the setting `mock.record_file` names a file.
    recorder: Option<Recorder>,
}

impl Bound {
    /// Reads the API keys and the certificate, and binds the socket that the server listens on.
    pub(crate) fn bind(settings: ServerSettings) -> Result<Bound, BootError> {
        let keys = Keys::new(&settings.http)?;
        let certificate = Certificate::new(&settings.http)?.map(Arc::new);
        let refused = |source| BootError::Listen { address: settings.http.listen.clone(), source };
        let listener = TcpListener::bind(&settings.http.listen).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let control = control::bind(&settings.http.control_listen, address)?;
        let exporter = Exporter::install()?;
        let record_file = settings.mock.record_file.as_deref().map(Path::new);
        let recorder = record_file.map(Recorder::create).transpose()?;
        Ok(Bound { settings, listener, address, exporter, keys, certificate, control, recorder })
    }

    /// Returns the address of the control API, if the server has one.
    pub(crate) fn control_address(&self) -> Option<SocketAddr> {
        self.control.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Returns the address of the server's socket, with the real port even if port 0 was asked for.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loads the model and serves until `shutdown` resolves, then drains the server. Calls `ready` once, when requests
    /// can be served.
    pub(crate) async fn run(
        self,
        shutdown: impl Future<Output = ()>,
        ready: impl FnOnce(EngineHandle),
    ) -> Result<(), BootError> {
        let control_address = self.control_address();
        let Bound { settings, listener, address, exporter, keys, certificate, .. } = self;
        let (operators, recorder) = (self.control, self.recorder);
        let clock = Clock::wall();
        let places = settings.engine.admission.max_requests;
        let of_http = (settings.http.clone(), keys);
        let spans = Spans::from_environment(&clock, certificate.is_some())?;
        let records = (recorder, spans);
        let app = Data::new(App::new(of_http, records, places, clock.clone(), exporter));
        let stall_timeout_ms = settings.engine.stream.stall_timeout_ms;
        let serve = |listener, surface| {
            http::server(listener, app.clone(), surface, certificate.clone(), stall_timeout_ms)
                .map_err(|source| BootError::System { what: "the HTTP server", source })
        };
        let server = serve(listener, Surface::Public)?;
        let operators = operators.map(|listener| serve(listener, Surface::Control)).transpose()?;
        let operators_handle = operators.as_ref().map(Server::handle);
        operators.map(actix_rt::spawn);
        tracing::info!(%address, "listening; loading the model");
        let handle = server.handle();
        let mut http = pin!(until_http_ends(server));
        actix_rt::spawn(upkeep(app.clone()));
        if app.keys.reloadable() {
            actix_rt::spawn(reload_keys(signals::hangup()?, app.clone()));
        }
        if let Some(certificate) = certificate.clone() {
            actix_rt::spawn(reload_certificate(signals::hangup()?, certificate, app.clone()));
        }
        let control = Arbiter::new();
        let life =
            Life { settings: &settings, app: &app, control: &control, address, control_address };
        let served = tokio::select! {
            served = life.serve(shutdown, ready) => served,
            error = &mut http => Err(error),
        };
        control.stop();
        if matches!(served, Err(BootError::EngineDied(_))) {
            // The open response streams still have to tell their clients why the engine died.
            stop_http(&handle, http).await;
            return served;
        }
        served?;
        stop_http(&handle, http).await;
        if let Some(operators) = operators_handle {
            draining::listeners_left(&app).await;
            // A graceful stop lets the control listener finish sending trace files.
            let graceful = draining::traces_answered(&app).await;
            operators.stop(graceful).await;
        }
        app.access.finish().await;
        tracing::info!("the server has stopped");
        Ok(())
    }
}

/// State of a server from loading to draining.
struct Life<'a> {
    settings: &'a ServerSettings,
    app: &'a App,
    /// Arbiter (a thread with an event loop) that runs the engine's actors.
    control: &'a Arbiter,
    address: SocketAddr,
    /// Address of the control API, if the server has one.
    control_address: Option<SocketAddr>,
}

impl Life<'_> {
    /// Loads the model, serves until `shutdown` resolves, and drains the engine.
    async fn serve(
        self,
        shutdown: impl Future<Output = ()>,
        ready: impl FnOnce(EngineHandle),
    ) -> Result<(), BootError> {
        let mut shutdown = pin!(shutdown);
        let stop = Stop::default();
        let mut launch = pin!(launch(self.settings, self.app, self.control, &stop));
        let engine = tokio::select! {
            engine = &mut launch => engine?,
            () = &mut shutdown => {
                // Ignore the result of loading the model, because loading was told to stop.
                let _ = model::stopped(&stop, launch).await;
                return Ok(());
            }
        };
        self.greet();
        ready(engine.clone());
        let grace_ms = tokio::select! {
            () = &mut shutdown => {
                let grace_ms = self.settings.http.drain_grace_ms;
                draining::tell(self.app, &engine, grace_ms);
                grace_ms
            }
            deadline_ms = self.app.drain_asked() => deadline_ms,
            cause = engine.died() => return Err(BootError::EngineDied(cause)),
        };
        tokio::select! {
            () = draining::drain(self.app, &engine, grace_ms) => Ok(()),
            cause = engine.died() => Err(BootError::EngineDied(cause)),
        }
    }

    /// Logs that the server is ready: its URL, the latency targets of each tier, and a sample request.
    fn greet(&self) {
        let Ok(serving) = self.app.accepting() else { return };
        let url = |address| greeting::url(address, self.settings.http.has_tls());
        let public = url(self.address);
        tracing::info!(model = serving.names.first(), url = public, "ready");
        if let Some(control) = self.control_address {
            let control_url = url(control);
            tracing::info!(
                "operators: tiercel ctl --url {control_url} requests; live page: {control_url}/dashboard"
            );
            if self.settings.http.has_tls() {
                tracing::info!(
                    "the host in these URLs must be a name of the certificate; tiercel ctl --connect {control} \
                     reaches the control API under any name"
                );
            }
        }
        for line in greeting::targets(serving.engine.targets()) {
            tracing::info!("{line}");
        }
        let keys = self.app.keys.required();
        for line in greeting::warnings(&self.settings.http) {
            tracing::warn!("{line}");
        }
        tracing::info!(
            "{}",
            greeting::example(&public, serving.context_tokens, serving.text.has_chat(), keys)
        );
    }
}

/// Loads the model, starts the engine and lets the engine answer one warm-up request.
async fn launch(
    settings: &ServerSettings,
    app: &App,
    control: &Arbiter,
    stop: &Stop,
) -> Result<EngineHandle, BootError> {
    let loaded = match &settings.device.kind {
        DeviceKind::Mock(profile) => mock::open(settings, profile, &app.clock)?,
        // Load the model on a thread of its own, so that the HTTP server can answer `/health` meanwhile.
        DeviceKind::Auto | DeviceKind::Cpu | DeviceKind::Cuda(_) => {
            let (settings, stop) = (settings.clone(), stop.clone());
            model::beside(move || model::load(&settings, stop)).await?
        }
    };
    let Loaded { device, text, name, hash, sampling, settings } = loaded;
    let forms = text.forms(&settings.model);
    forms.log();
    let served = Served {
        model: hash,
        device: &device.info.name,
        templates: text.templates(),
        forms: &forms,
        sampling: &sampling,
    };
    let fingerprint = fingerprint::of_server(&settings, &served);
    let engine = Engine { settings: settings.engine.clone(), device, clock: app.clock.clone() };
    let engine =
        engine.start_on(control).await.map_err(|error| BootError::EngineDied(error.to_string()))?;
    // Wait for the warm-up request or for the engine's death: if an actor dies in its first step, the response stream
    // of the warm-up request stays open without events.
    let warm = {
        let (warm_up, died) = (pin!(warm_up(&engine)), pin!(engine.died()));
        match select(warm_up, died).await {
            Either::Left((warm, _)) => warm,
            Either::Right((cause, _)) => Err(BootError::EngineDied(cause)),
        }
    };
    warm?;
    app.keys.log_labels();
    let names = match settings.model.served_name.as_slice() {
        [] => vec![name],
        names => names.to_vec(),
    };
    let model = Model { text: Arc::new(text), names, sampling, fingerprint, forms };
    app.ready(Serving::new(engine.clone(), model, &settings.engine, app.clock.clone()));
    Ok(engine)
}

/// Lets the engine generate one token for a warm-up request (system tier), so that a server that reports "ready" is
/// known to work end to end.
async fn warm_up(engine: &EngineHandle) -> Result<(), BootError> {
    let failed = |why: String| Err(BootError::WarmUp(why));
    let request = Request {
        tier: Tier::System,
        priority: 0,
        salt: Salt(rand::random()),
        weight: Weight::default(),
        prompt: Arc::new([0]),
        max_tokens: 1,
        stop_tokens: Arc::new([]),
        sampling: Arc::new(SamplingParams::greedy()),
        targets: SloTargets::default(),
        may_tighten: None,
        max_wait_ms: None,
        waited_ms: 0,
        sibling: false,
        cache_salt: None,
        returning: false,
    };
    let mut tokens = match engine.submit(request).await {
        Ok(tokens) => tokens,
        Err(refusal) => return failed(refusal.to_string()),
    };
    loop {
        match tokens.next().await {
            Some(StreamEvent::Token { .. }) => {}
            Some(StreamEvent::Finished { .. }) => return Ok(()),
            Some(StreamEvent::Failed(fault)) => return failed(fault.to_string()),
            None => return failed("the engine stopped".into()),
        }
    }
}

/// Runs the HTTP server until it ends, and returns an error in any case, because the HTTP server must not end while the
/// server serves. `stop_http` ends the HTTP server and ignores the error.
async fn until_http_ends(server: Server) -> BootError {
    match server.await {
        Ok(()) => BootError::HttpStopped,
        Err(source) => BootError::System { what: "the HTTP server", source },
    }
}

/// Closes the listening socket and lets the HTTP server finish the answers that it is writing. Polls the HTTP server
/// meanwhile, since it works only while it is polled.
async fn stop_http(
    handle: &ServerHandle,
    http: std::pin::Pin<&mut impl Future<Output = BootError>>,
) {
    futures_util::future::join(handle.stop(true), http).await;
}

/// Reads the keys file again at each SIGHUP and logs the tenants' metric labels. If the keys file is invalid, the error
/// is logged and the API keys read last stay in effect.
async fn reload_keys(mut hangup: Signal, app: Data<App>) {
    while hangup.recv().await.is_some() {
        let reading = app.clone();
        match actix_web::web::block(move || reading.keys.reload()).await {
            Ok(Ok((before, keys))) => {
                tracing::info!(keys, before, "read the keys file again");
                app.audit.record(&AuditEvent {
                    by: SERVER,
                    action: "keys_read",
                    keys: Some(keys),
                    ..AuditEvent::default()
                });
                app.meters.retain(&app.keys.names());
                app.keys.log_labels();
            }
            Ok(Err(error)) => tracing::error!("the API keys stay as they were: {error}"),
            Err(error) => tracing::error!("the API keys stay as they were: {error}"),
        }
    }
}

/// Reads the files of the certificate again at each SIGHUP. If a file cannot be used, that is logged, and the
/// certificate stays as it was.
async fn reload_certificate(mut hangup: Signal, certificate: Arc<Certificate>, app: Data<App>) {
    while hangup.recv().await.is_some() {
        let certificate = certificate.clone();
        match actix_web::web::block(move || certificate.reload()).await {
            Ok(Ok(())) => {
                tracing::info!("read the TLS certificate again");
                let action = "certificate_read";
                app.audit.record(&AuditEvent { by: SERVER, action, ..AuditEvent::default() });
            }
            Ok(Err(error)) => tracing::error!("the TLS certificate stays as it was: {error}"),
            Err(error) => tracing::error!("the TLS certificate stays as it was: {error}"),
        }
    }
}

async fn upkeep(app: Data<App>) {
    loop {
        app.clock.sleep_us(UPKEEP_US).await;
        app.metrics.upkeep();
        app.access.tell_left_out();
    }
}
