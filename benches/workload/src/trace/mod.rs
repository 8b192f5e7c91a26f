//! Recorded traffic: requests as a file has them.
//!
//! | file | one job |
//! |---|---|
//! | `lines` | a file, line by line, each of bounded length |
//! | `format` | which format a file has, and a line of it into a row |
//! | `native`, `azure`, `burstgpt`, `mooncake` | one format each |
//! | `window` | the rows that a workload wants of a file |
//! | `share` | rows divided among classes |
//!
//! Everything is bounded: the file, a line of it, the rows kept and their blocks.

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

/// Slowest and fastest replay, `--load` included.
const TIME_FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// Latest second of a trace that a window may name: three years.
const MAX_TRACE_S: f64 = 1e8;

/// Parameters of [`Arrival::Trace`](crate::Arrival::Trace), and of the trace that a workload's classes share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// A file beside the workload file. Its first line says which format it has: `at_s,prompt_tokens,output_tokens`,
    /// Azure's CSV of 2023 or 2024, `BurstGPT`'s CSV, Mooncake's JSONL.
    pub file: PathBuf,
    /// The trace's times are multiplied by this: 2 halves the rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub time_factor: f64,
    /// The window begins so long after the trace does, seconds of the trace. The first row is a trace's
    /// beginning; with `at_s` it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from_s: f64,
    /// Length of the window, seconds of the trace; to the trace's end by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_s: Option<f64>,
    /// Whether rows without prompt or output tokens are left out, and counted. They are errors otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_empty: bool,
    /// The window's rows, read by [`Workload::load`](crate::Workload::load).
    #[serde(skip)]
    pub entries: Arc<[TraceEntry]>,
    /// Rows of the window that were left out because of `skip_empty`.
    #[serde(skip)]
    pub skipped: u64,
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceEntry {
    /// Number of the row's line in the file, from 1.
    pub line: u32,
    /// When, seconds of the trace after the window's beginning.
    pub at_s: f64,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Length of its output.
    pub output_tokens: u32,
    /// Names of its prompt's blocks of [`BLOCK_TOKENS`] tokens, the last of which may be shorter: equal names
    /// are equal text. `None` if the trace doesn't tell.
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
    /// These requests, at their own pace.
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

    /// What is wrong with the parameters, if anything: the field and the problem.
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

    /// Reads the rows of the window from the file, which is beside `workload`.
    pub(crate) fn read(&mut self, workload: &Path) -> Result<(), WorkloadError> {
        let path = workload.parent().unwrap_or(Path::new("")).join(&self.file);
        let window::Rows { entries, skipped } = window::read(self, &path)?;
        (self.entries, self.skipped) = (entries, skipped);
        Ok(())
    }

    /// Whether it is replayed otherwise than as it stands in the file.
    pub(crate) fn is_adjusted(&self) -> bool {
        self.time_factor != 1.0 || self.from_s != 0.0 || self.length_s.is_some()
    }

    /// When the last request comes, seconds after the beginning of its class.
    pub(crate) fn last_s(&self) -> f64 {
        self.entries.last().map_or(0.0, |entry| entry.at_s * self.time_factor)
    }
}
