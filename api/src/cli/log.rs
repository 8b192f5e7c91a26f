//! Logs go to stderr; colours only where somebody looks.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The variable that holds the filter.
pub(crate) const FILTER: &str = "TIERCEL_LOG";

/// What is logged of a server. actix reports every malformed request as an error of its
/// own, so anybody could fill the log with those; and its workers' starts and stops say nothing to
/// operators.
pub(crate) const SERVER: &str = "info,actix_server=warn,actix_http::h1=off";
/// The same for engines under simulated time: what they do is in their tables, not in lines with the time of day.
pub(crate) const SIMULATION: &str = "warn";

/// Starts logging for the process, of what passes `default` if nothing else is asked for.
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
        tracing::warn!("{FILTER} is not a log filter and is ignored: {line}");
    }
}
