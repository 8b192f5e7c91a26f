//! Latency targets: those in effect, sliding windows of what requests saw against them, and those that are late
//! although they have not seen it yet.

mod targets;
mod watch;
mod window;

pub use targets::{ServerTimes, Targets, Unreachable};
pub use watch::{GroupReport, Observation, Promise, Watch};
pub use window::{Unfinished, Window, WindowReport};
