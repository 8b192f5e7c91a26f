//! Logs go to stderr; colours only where somebody looks.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The variable that holds the filter.
pub(crate) const FILTER: &str = "TIERCEL_LOG";

/// Starts logging for the process.
pub(crate) fn start() {
    let filter = EnvFilter::builder()
        .with_env_var(FILTER)
        .try_from_env()
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .init();
}
