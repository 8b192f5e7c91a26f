//! Logging of the process: to stderr, with colours only if stderr is a terminal and `NO_COLOR` is not set.

use std::io::IsTerminal;
use tiercel_config::LogFormat;
use tracing_subscriber::EnvFilter;

/// Environment variable that holds the log filter.
pub(crate) const FILTER: &str = "TIERCEL_LOG";

/// Default log filter of the server and of the commands that have no filter below. It leaves out actix's errors about
/// malformed requests, with which any client could fill the log, and its messages about the starts and stops of
/// workers.
pub(crate) const SERVER: &str = "info,actix_server=warn,actix_http::h1=off";
/// Default log filter of `tiercel simulate`, and of `tiercel bench`, which simulates to suggest sizes: warnings only.
/// Both commands print tables, and a log line of a simulation has a time of day, which says nothing about simulated
/// time.
pub(crate) const SIMULATION: &str = "warn";

/// Default log filter of `tiercel top`, which draws on the terminal that log lines would be written to.
pub(crate) const VIEW: &str = "off";

/// Starts logging for the process in the form `format`, with the log filter `default` unless the environment holds
/// another one.
pub(crate) fn start(default: &str, format: LogFormat) {
    let wanted = std::env::var(FILTER).ok().filter(|wanted| !wanted.trim().is_empty());
    let parsed = wanted.as_deref().map(EnvFilter::try_new).transpose();
    let problem = parsed.as_ref().err().map(ToString::to_string);
    let filter = parsed.ok().flatten().unwrap_or_else(|| EnvFilter::new(default));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // The terminal may be gone: writing about that to the terminal would panic.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    if let Some(problem) = problem {
        let line = problem.split_whitespace().collect::<Vec<_>>().join(" ");
        tracing::warn!("{FILTER} is not a valid log filter, so the default filter is used: {line}");
    }
}
