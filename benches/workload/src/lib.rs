//! Workload files: which requests to send to a server, and when.
//!
//! A [`Workload`] consists of classes of requests, each with a tier, an arrival process and length distributions.
//! [`arrivals`] and [`closed_request`] compute the requests from the workload's seed alone. The load client sends these
//! requests to a server, the simulator to an engine under simulated time.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should"))]

mod check;
mod file;
mod length;
mod measure;
mod random;
mod recording;
mod schedule;
mod text;
mod trace;
mod traces;

pub use file::{
    Arrival, Bursts, Class, Closed, MAX_CLASSES, MAX_DURATION_S, MAX_PREFIXES, MAX_REQUESTS,
    MAX_STREAMS, Poisson, Pool, Prefix, Sampling, Targets, Workload, WorkloadError,
};
pub use length::{Length, LogNormal, MAX_TOKENS, Mixture, Uniform};
pub use measure::{Compliance, Latencies, Summary};
pub use random::Random;
pub use recording::{
    MAX_RECORDED, Outcome, RECORDING_FORMAT, RecordedRequest, Recording, RecordingHeader, Seen,
    TextPiece,
};
pub use schedule::{Planned, SharedPrefix, arrivals, closed_request, seconds};
pub use text::Text;
pub use trace::{BLOCK_TOKENS, Trace, TraceEntry};
