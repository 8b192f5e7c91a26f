//! Recorded traffic: requests with the arrival times and lengths of a trace file.
//!
//! | file | one job |
//! |---|---|
//! | `lines` | reads a file line by line, each line of bounded length |
//! | `format` | detects the format of a file and parses its lines into rows |
//! | `native`, `azure`, `burstgpt`, `mooncake` | one format each |
//! | `window` | the rows of a file that lie in the workload's window |
//! | `share` | division of a trace among classes |
//!
//! The size of the file, the length of a line, the number of rows kept and the number of their blocks are bounded.

mod azure;
mod burstgpt;
mod format;
mod lines;
mod mooncake;
mod native;
mod share;
mod window;

pub use mooncake::BLOCK_TOKENS;
pub(crate) use share::{Part, ROUNDING, shares_before};

use crate::file::WorkloadError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Allowed range of `time_factor`, including the change that `--load` makes to it.
const TIME_FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// Latest time of a trace that a window may name, seconds: about three years.
const MAX_TRACE_S: f64 = 1e8;

/// Parameters of a trace: of [`Arrival::Trace`](crate::Arrival::Trace), or of the trace that a workload's classes
/// share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Path of the trace file, relative to the workload file. The first line of the file shows the format:
    /// `at_s,prompt_tokens,output_tokens`, Azure's CSV of 2023 or 2024, `BurstGPT`'s CSV, or Mooncake's JSONL.
    pub file: PathBuf,
    /// Factor that multiplies the trace's times: 2 halves the rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub time_factor: f64,
    /// Beginning of the window, seconds after the beginning of the trace. A trace begins at its first row; in the
    /// format with `at_s`, it begins at 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from_s: f64,
    /// Length of the window, seconds of the trace. By default the window reaches to the end of the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_s: Option<f64>,
    /// Whether rows without prompt or output tokens are skipped and counted. By default such rows are errors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_empty: bool,
    /// Rows of the window, filled in by [`Workload::load`](crate::Workload::load).
    #[serde(skip)]
    pub entries: Arc<[TraceEntry]>,
    /// Number of rows of the window that were skipped because of `skip_empty`.
    #[serde(skip)]
    pub skipped: u64,
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceEntry {
    /// Number of the row's line in the file, from 1.
    pub line: u32,
    /// Arrival time, seconds of the trace after the beginning of the window.
    pub at_s: f64,
    /// Length of the prompt, tokens.
    pub prompt_tokens: u32,
    /// Length of the output, tokens.
    pub output_tokens: u32,
    /// Names of the prompt's blocks of [`BLOCK_TOKENS`] tokens; the last block may be shorter. Equal names mean equal
    /// text. `None` if the trace has no block names.
    pub blocks: Option<Arc<[u64]>>,
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
    /// Makes a trace of these requests, at their own pace.
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

    /// Returns the first invalid parameter of the trace and what is wrong with it, or `None`.
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

    /// Reads the rows of the window from the trace file, whose path is relative to the folder of the file `workload`.
    pub(crate) fn read(&mut self, workload: &Path) -> Result<(), WorkloadError> {
        let path = workload.parent().unwrap_or(Path::new("")).join(&self.file);
        let window::Rows { entries, skipped } = window::read(self, &path)?;
        (self.entries, self.skipped) = (entries, skipped);
        Ok(())
    }

    /// Whether the replay differs from the file in pace or range, because a time factor or a window is set.
    pub(crate) fn is_adjusted(&self) -> bool {
        self.time_factor != 1.0 || self.from_s != 0.0 || self.length_s.is_some()
    }

    /// Returns the time of the last request, seconds after the start of its class.
    pub(crate) fn last_s(&self) -> f64 {
        self.entries.last().map_or(0.0, |entry| entry.at_s * self.time_factor)
    }
}
