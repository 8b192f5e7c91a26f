//! The load client: sends a workload to a server and measures the server's latencies and throughput.
//!
//! [`run`] sends the requests of a [`Workload`](tiercel_workload::Workload) to a server that speaks OpenAI's
//! completions API. It measures per tier, from the client's side: TTFT, TPOT, end-to-end time, the largest gap between
//! tokens, refusals and throughput. The result is a [`Report`]: a table for people, JSON for machines.
//!
//! ```text
//! workload file -> Workload -> schedule (pure) -> run -> request (one HTTP exchange) -> Report
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should"))]

mod calibrate;
mod collected;
mod http;
mod measurement;
mod prompt;
mod report;
mod request;
mod run;
mod server;
mod sse;
mod table;
mod tally;
mod tls;

pub use calibrate::{
    CalibrateError, Calibration, FittedProfile, ServerFacts, calibrate, calibration_workload,
};
pub use measurement::Measurement;
pub use prompt::PromptForm;
pub use report::{FailureCount, Report, TierReport};
pub use run::{BenchError, Event, Limits, Progress, Target, run};
