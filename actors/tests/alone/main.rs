//! Tests of each actor alone: recorders stand in for its neighbours.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod block_manager;
mod executor;
mod scheduler;
mod slo_monitor;
mod swap_manager;

/// Runs a test on a thread of its own event loop.
fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}
