//! Why a server did not start, or stopped.

/// A server that cannot run. One line; says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen {
        /// As in the settings.
        address: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The operating system refused a thread, a signal handler or the like.
    #[error("cannot start {what}: {source}")]
    System {
        /// What was being started.
        what: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// The metrics recorder cannot be installed.
    #[error("cannot record metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// The model cannot be had or read.
    #[error("{0}")]
    Model(String),
    /// The device cannot be opened.
    #[error("cannot open the device: {0}")]
    Device(String),
    /// The first request, made by the server itself, failed.
    #[error("the model is loaded but cannot generate: {0}")]
    WarmUp(String),
    /// The engine died while serving.
    #[error("the engine stopped: {0}; restart the server, and please report this")]
    EngineDied(String),
    /// The HTTP server ended on its own.
    #[error("the HTTP server stopped on its own")]
    HttpStopped,
}
