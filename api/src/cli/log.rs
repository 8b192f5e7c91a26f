//! Logging of the process: to stderr, with colours only if stderr is a terminal.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Environment variable that holds the log filter.
pub(crate) const FILTER: &str = "TIERCEL_LOG";

/// Default log filter of a server. actix reports every malformed request as an error of its own, so any client could
/// fill the log with such errors. Starts and stops of actix's workers say nothing to operators.
pub(crate) const SERVER: &str = "info,actix_server=warn,actix_http::h1=off";
/// Default log filter of simulations. What engines do under simulated time is shown in tables, not in log lines with
/// the time of day.
pub(crate) const SIMULATION: &str = "warn";

/// Starts logging for the process, with the filter `default` unless the environment holds another filter.
pub(crate) fn start(default: &str) {
    let wanted = std::env::var(FILTER).ok().filter(|wanted| !wanted.trim().is_empty());
    let parsed = wanted.as_deref().map(EnvFilter::try_new).transpose();
    let problem = parsed.as_ref().err().map(ToString::to_string);
    let filter = parsed.ok().flatten().unwrap_or_else(|| EnvFilter::new(default));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .init();
    if let Some(problem) = problem {
        let line = problem.split_whitespace().collect::<Vec<_>>().join(" ");
        tracing::warn!("{FILTER} is not a valid log filter, so the default filter is used: {line}");
    }
}
