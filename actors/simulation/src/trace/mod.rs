//! Trace files: the events of simulated engines (their decisions, steps and copies) with their times. A trace is
//! written while engines run and is shown or compared later.
//!
//! | file | one job |
//! |---|---|
//! | `codec` | the bytes of a trace file |
//! | `gate` | passes a run's events to the recorders, until the run's end |
//! | `writer`, `reader` | write and read the records of a trace, in bounded memory |
//! | `line` | an event as one line of text |
//! | `diff` | the first difference of two traces |

#[cfg(test)]
mod agreement;
mod codec;
mod diff;
mod gate;
mod line;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use diff::{Difference, Found, Unreadable, diff};
pub(crate) use gate::Gate;
pub use line::{entry_line, section_line};
pub use reader::{Item, TraceReader};
pub use tiercel_actors::trace::{Ending, Entry, Event, Record, Slice};
pub use writer::TraceWriter;

use serde::{Deserialize, Serialize};

/// Maximum size of a trace file, bytes; it holds the events of about two days of a busy device.
pub const MAX_TRACE_BYTES: u64 = 8 << 30;

/// Header of one simulation run in a trace file; the events of the run follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Name of the scheduling policy.
    pub policy: String,
    /// Seed of the run's traffic, step-time noise and made-up tokens.
    pub seed: u64,
    /// Name of the workload.
    pub workload: String,
    /// Name of the device profile.
    pub profile: String,
    /// Size of a KV block, tokens.
    pub block_size: u32,
    /// Size of the device pool, KV blocks.
    pub device_blocks: u32,
    /// Size of the host pool, KV blocks.
    pub host_blocks: u32,
    /// Simulated time at which the simulation run ends, us.
    pub end_us: u64,
}

/// Reason why a trace file could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading or writing the trace file failed (I/O error).
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file does not begin with the magic bytes of a trace file.
    #[error("not a trace file")]
    NotATrace,
    /// The trace file has another version of the file format than this program reads.
    #[error("a trace of version {found}; this program reads version {known}", known = codec::VERSION)]
    Version {
        /// Format version of the trace file.
        found: u16,
    },
    /// The file lacks the end mark that every complete trace file has.
    #[error("the trace is cut off after {at} bytes")]
    Truncated {
        /// Offset in the trace file at which it ends too early, bytes.
        at: u64,
    },
    /// The trace file holds bytes that no valid trace file can have.
    #[error("the trace is damaged at byte {at}: {problem}")]
    Damaged {
        /// Offset in the trace file at which the damaged record begins, bytes.
        at: u64,
        /// Description of what is wrong with the damaged record of the trace file.
        problem: &'static str,
    },
    /// The trace file exceeds its maximum size or would exceed it with the next event, or the next event alone is too
    /// large.
    #[error("a trace may have at most {} GiB; shorten the run or trace fewer", MAX_TRACE_BYTES >> 30)]
    TooLarge,
}
