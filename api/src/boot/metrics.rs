//! The Prometheus recorder. One per process: servers started in one process share it.

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;

/// Bounds of all histograms of seconds: 0.5 ms steps to 2 min requests.
const SECONDS: [f64; 18] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
    60.0, 120.0,
];
/// Bounds of histograms of tokens.
const TOKENS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0];

/// Renders what has been recorded.
#[derive(Clone)]
pub(crate) struct Exporter {
    handle: PrometheusHandle,
}

impl Exporter {
    /// Installs the recorder on the first call.
    ///
    /// # Errors
    /// Another recorder is installed.
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
        Ok(Exporter { handle: INSTALLED.get_or_init(|| handle).clone() })
    }

    /// Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds samples into their buckets; without it they pile up until the next scrape.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}
