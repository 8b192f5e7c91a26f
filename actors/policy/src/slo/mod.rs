//! Latency targets: the targets in effect, sliding windows of measured latencies, and unfinished requests that have
//! missed a target already.

mod targets;
mod watch;
mod window;

pub use targets::{Retargeted, ServerTimes, Targets, Unreachable};
pub use watch::{GroupReport, Observation, Promise, Watch};
pub use window::{Unfinished, Window, WindowReport};
