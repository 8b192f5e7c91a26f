//! Tests of each actor alone: stand-ins that record their messages take the places of the other actors.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod block_manager;
mod executor;
mod scheduler;
mod slo_monitor;
mod swap_manager;

/// Runs an async test to its end on an actor event loop of its own.
fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}
