//! Workload files and the load client.
//!
//! A [`Workload`] says what traffic to send: classes of requests, each with a tier, an arrival process
//! and length distributions. [`arrivals`] and [`closed_request`] turn it into requests, purely from its
//! seed. [`run`] sends them to a server that speaks OpenAI's completions API and measures, per tier, what
//! a client sees: TTFT, TPOT, end-to-end time, the largest gap between tokens, refusals and throughput.
//! The result is a [`Report`]: a table for people, JSON for machines.
//!
//! ```text
//! workload file -> Workload -> schedule (pure) -> run -> request (one HTTP exchange) -> Report
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should"))]

mod http;
mod length;
mod prompt;
mod random;
mod report;
mod request;
mod run;
mod schedule;
mod server;
mod sse;
mod table;
mod tally;
mod trace;
mod workload;

pub use length::{Length, LogNormal, MAX_TOKENS, Uniform};
pub use prompt::PromptForm;
pub use report::{Compliance, FailureCount, Report, Summary, TierReport};
pub use run::{BenchError, Limits, Progress, Target, run};
pub use schedule::{Planned, arrivals, closed_request};
pub use trace::TraceEntry;
pub use workload::{
    Arrival, Class, Closed, MAX_CLASSES, MAX_DURATION_S, MAX_REQUESTS, MAX_STREAMS, Poisson,
    Sampling, Targets, Trace, Workload, WorkloadError,
};
