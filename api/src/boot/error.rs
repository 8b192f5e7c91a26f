//! Errors that prevent a server from starting or end a running server.

/// Reason why a server cannot start or has stopped. Its message is one line and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The server cannot listen on the configured address.
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen {
        /// Address to listen on, as in the settings.
        address: String,
        /// Error of the operating system for the address.
        source: std::io::Error,
    },
    /// The control API cannot listen on the configured address.
    #[error("cannot listen on {address}: {source}; choose another address with --control-listen")]
    ListenControl {
        /// Address of the control API, as in the settings.
        address: String,
        /// Error of the operating system for the address.
        source: std::io::Error,
    },
    /// The keys file cannot be used.
    #[error(transparent)]
    Keys(#[from] tiercel_config::KeysError),
    /// A file of the server's certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] crate::http::TlsError),
    /// The server's answers cannot be recorded.
    #[error(transparent)]
    Record(#[from] crate::replies::RecordError),
    /// The operating system refused to create a thread, a signal handler or another resource.
    #[error("cannot start {what}: {source}")]
    System {
        /// Name of the resource that could not be created, such as a thread.
        what: &'static str,
        /// Error of the operating system for the resource.
        source: std::io::Error,
    },
    /// The metrics recorder cannot be installed.
    #[error("cannot record metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// The exporter of spans cannot be made from the variables of the environment.
    #[error(
        "cannot export spans: {0}; correct the variables OTEL_..., or unset OTEL_EXPORTER_OTLP_ENDPOINT"
    )]
    Spans(String),
    /// The model cannot be fetched, read, or loaded onto its device.
    #[error("{0}")]
    Model(String),
    /// The mock device cannot be opened.
    #[error("cannot open the device: {0}")]
    Device(String),
    /// The warm-up request, which the server makes itself before it serves clients, failed.
    #[error("the model is loaded but cannot generate: {0}")]
    WarmUp(String),
    /// The engine could not start or died while serving.
    #[error("the engine stopped: {0}; restart the server, and please report this")]
    EngineDied(String),
    /// The HTTP server stopped without having been told to.
    #[error("the HTTP server stopped unexpectedly; restart the server")]
    HttpStopped,
}
