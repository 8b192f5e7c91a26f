//! Errors that keep a server from starting or that end it.

/// Reason why a server cannot start or has stopped. Its message is one line and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The server cannot listen on its address.
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen {
        /// Address to listen on, as in the settings.
        address: String,
        /// Reason that the operating system gives.
        source: std::io::Error,
    },
    /// The operating system refused a thread, a signal handler or the like.
    #[error("cannot start {what}: {source}")]
    System {
        /// Name of the thing that was being started, such as a thread.
        what: &'static str,
        /// Reason that the operating system gives.
        source: std::io::Error,
    },
    /// The metrics recorder cannot be installed.
    #[error("cannot record metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// The model cannot be fetched or read.
    #[error("{0}")]
    Model(String),
    /// The device cannot be opened.
    #[error("cannot open the device: {0}")]
    Device(String),
    /// The warm-up request, which the server makes itself before it serves clients, failed.
    #[error("the model is loaded but cannot generate: {0}")]
    WarmUp(String),
    /// The engine could not start or died while serving.
    #[error("the engine stopped: {0}; restart the server, and please report this")]
    EngineDied(String),
    /// The HTTP server ended on its own.
    #[error("the HTTP server stopped unexpectedly; restart the server")]
    HttpStopped,
}
