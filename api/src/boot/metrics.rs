//! Prometheus recorder of the metrics. A process has one recorder, which all servers started in the process share.

use crate::boot::stage;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use tiercel_actors::MICROSECOND_COUNTERS;

/// Bucket bounds of all histograms of durations, seconds: from steps of 0.5 ms to requests that wait
/// for their default patience of 10 min.
const SECONDS: [f64; 20] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
    60.0, 120.0, 300.0, 600.0,
];
/// Bucket bounds of all histograms of token counts, tokens.
const TOKENS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0];

/// Handle of the process's metrics recorder, which renders the metrics as text.
#[derive(Clone)]
pub(crate) struct Exporter {
    handle: PrometheusHandle,
}

impl Exporter {
    /// Returns the handle of the process's metrics recorder; the first call installs the recorder.
    ///
    /// # Errors
    /// If another metrics recorder is already installed.
    pub(crate) fn install() -> Result<Exporter, BuildError> {
        static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
        static INSTALLING: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one_at_a_time = INSTALLING.lock();
        if let Some(handle) = INSTALLED.get() {
            return Ok(Exporter { handle: handle.clone() });
        }
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_tokens".into()), &TOKENS)?
            .install_recorder()?;
        tiercel_actors::describe_metrics();
        crate::http::describe_connections();
        crate::http::describe_refusals();
        stage::describe();
        crate::boot::compiling::describe_compilations();
        Ok(Exporter { handle: INSTALLED.get_or_init(|| handle).clone() })
    }

    /// Returns all recorded metrics in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        in_seconds(&self.handle.render())
    }

    /// Moves recorded samples of metrics into their histogram buckets. Must be called regularly: otherwise samples pile
    /// up in memory until the next scrape.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Divides the values of counters of seconds that are counted in microseconds by a million.
fn in_seconds(text: &str) -> String {
    let mut rendered = String::with_capacity(text.len() + 1024);
    for line in text.split_inclusive('\n') {
        match seconds_of(line) {
            Some((series, seconds)) => rendered.push_str(&format!("{series} {seconds}\n")),
            None => rendered.push_str(line),
        }
    }
    rendered
}

/// Returns the series and the value, seconds, of a line with a counter that is counted in microseconds; `None` for
/// other lines.
fn seconds_of(line: &str) -> Option<(&str, f64)> {
    let name = line.split(['{', ' ']).next()?;
    if !MICROSECOND_COUNTERS.contains(&name) {
        return None;
    }
    let (series, us) = line.trim_end().rsplit_once(' ')?;
    Some((series, us.parse::<f64>().ok()? / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_seconds_are_rendered_in_seconds_and_others_as_they_are() {
        let text = "# TYPE tiercel_device_seconds_total counter\n\
                    tiercel_device_seconds_total{tier=\"premium\"} 2500000\n\
                    tiercel_steps_total 2500000\n";
        let rendered = "# TYPE tiercel_device_seconds_total counter\n\
                        tiercel_device_seconds_total{tier=\"premium\"} 2.5\n\
                        tiercel_steps_total 2500000\n";
        assert_eq!(in_seconds(text), rendered);
    }
}
