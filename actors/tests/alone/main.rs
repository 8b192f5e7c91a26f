//! Tests of each actor alone: stand-ins that record their messages take the places of the other actors. The tests of
//! the handle start all actors on a mock device.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod block_manager;
mod executor;
mod handle;
mod scheduler;
mod slo_monitor;
mod swap_manager;

/// Runs an async test to its end on an actor event loop of its own, under simulated time: whenever no task can run,
/// time jumps to the next timer.
fn run(test: impl Future<Output = ()>) {
    let system = actix::System::with_tokio_rt(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().expect("a runtime of one thread")
    });
    system.block_on(test);
}

/// Text of the endpoint `/metrics`.
struct Metrics(String);

/// Runs an async test like [`run`] and returns the metrics that the actors set.
fn run_for_metrics(test: impl Future<Output = ()>) -> Metrics {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || run(test));
    Metrics(recorder.handle().render())
}

impl Metrics {
    /// Returns the value of a time series as the text of the endpoint has it; `None` if there is no such series.
    fn get(&self, series: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
    }
}
