//! Recorded traffic: requests with the arrival times and lengths of a trace file.
//!
//! | file | one job |
//! |---|---|
//! | `lines` | reads a file line by line, each line of bounded length |
//! | `format` | detects the format of a file and parses its lines into requests |
//! | `native`, `azure`, `burstgpt`, `mooncake` | one format each |
//! | `window` | selects the requests of a file that lie in the time window that the workload replays |
//! | `share` | divides the requests of a file among classes |
//!
//! The size of the file, the length of a line, the number of requests kept and the number of their blocks are bounded.

mod azure;
mod burstgpt;
mod format;
pub(crate) mod lines;
mod mooncake;
mod native;
mod share;
mod window;

pub use mooncake::BLOCK_TOKENS;
pub(crate) use share::{Part, ROUNDING, shares_before};

use crate::file::WorkloadError;
use crate::recording::RecordedRequest;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Allowed range of the factor that stretches the times of recorded traffic, including the change that `--load` makes
/// to it.
const TIME_FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// Upper limit of the time window's begin and length in recorded traffic, seconds: about three years.
const MAX_TRACE_S: f64 = 1e8;

/// Recorded traffic that a workload replays: the trace file, and the part and pace of it. One class has it for itself
/// ([`Arrival::Trace`](crate::Arrival::Trace)), or the workload's classes share it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Path of the trace file, relative to the workload file. The first line of the file shows the format:
    /// `at_s,prompt_tokens,output_tokens`, Azure's CSV of 2023 or 2024, `BurstGPT`'s CSV, or Mooncake's JSONL.
    pub file: PathBuf,
    /// Factor that multiplies the arrival times of the recorded traffic: 2 halves the request rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub time_factor: f64,
    /// Begin of the time window that is replayed, seconds after the beginning of the recorded traffic: its first
    /// request, or time 0 in the format with the column `at_s`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from_s: f64,
    /// Length of the time window that is replayed, seconds of recorded time. By default the window reaches to the end
    /// of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_s: Option<f64>,
    /// Whether recorded requests without prompt or output tokens are skipped and counted. By default such a request is
    /// an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_empty: bool,
    /// Recorded requests in the time window that is replayed, filled in by [`Workload::load`](crate::Workload::load).
    #[serde(skip)]
    pub entries: Arc<[TraceEntry]>,
    /// Number of recorded requests that were skipped because they have no prompt or no output tokens (`skip_empty`).
    #[serde(skip)]
    pub skipped: u64,
}

/// One request of recorded traffic.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceEntry {
    /// Number of the recorded request's line in its file, from 1.
    pub line: u32,
    /// Arrival time of the recorded request, seconds of recorded time after the begin of the window that is replayed.
    pub at_s: f64,
    /// Length of the recorded request's prompt, tokens.
    pub prompt_tokens: u32,
    /// Length of the recorded request's output, tokens.
    pub output_tokens: u32,
    /// Content hashes of the prompt's blocks of [`BLOCK_TOKENS`] tokens, of which the last may be shorter: blocks with
    /// equal hashes have equal text. `None` if the format has no hashes.
    pub blocks: Option<Arc<[u64]>>,
    /// The sequence of a [`Recording`](crate::Recording) that the request is; `None` in other recorded traffic.
    pub recorded: Option<Arc<RecordedRequest>>,
}

fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    *value == 1.0
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Trace {
    /// Makes recorded traffic of the given requests, replayed whole and at their recorded times.
    pub fn of(entries: Vec<TraceEntry>) -> Trace {
        Trace {
            file: PathBuf::new(),
            time_factor: 1.0,
            from_s: 0.0,
            length_s: None,
            skip_empty: false,
            entries: entries.into(),
            skipped: 0,
        }
    }

    /// Returns the first invalid parameter of the recorded traffic (pace or time window) and what is wrong with it, or
    /// `None`.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        let wrong = |name, value: f64, allowed: &str| {
            Some((name, format!("is {value}; allowed: {allowed}")))
        };
        if !TIME_FACTORS.contains(&self.time_factor) {
            return wrong("time_factor", self.time_factor, "0.000001 to 1000000");
        }
        if !(0.0..=MAX_TRACE_S).contains(&self.from_s) {
            return wrong("from_s", self.from_s, "0 to 100000000");
        }
        match self.length_s {
            Some(length_s) if !(length_s > 0.0 && length_s <= MAX_TRACE_S) => {
                wrong("length_s", length_s, "above 0, at most 100000000")
            }
            _ => None,
        }
    }

    /// Reads the recorded requests in the replayed time window from their file, whose path is relative to the folder of
    /// the file `workload`.
    pub(crate) fn read(&mut self, workload: &Path) -> Result<(), WorkloadError> {
        let path = workload.parent().unwrap_or(Path::new("")).join(&self.file);
        let window::Rows { entries, skipped } = window::read(self, &path)?;
        (self.entries, self.skipped) = (entries, skipped);
        Ok(())
    }

    /// Whether the recorded traffic is replayed at another pace or in part, because a time factor or a time window is
    /// set.
    pub(crate) fn is_adjusted(&self) -> bool {
        self.time_factor != 1.0 || self.from_s != 0.0 || self.length_s.is_some()
    }

    /// Returns the time at which the last recorded request is due, seconds after the start of its class.
    pub(crate) fn last_s(&self) -> f64 {
        self.entries.last().map_or(0.0, |entry| entry.at_s * self.time_factor)
    }
}
