//! Trace files: decisions of engines and their times. A trace is written while engines run and is shown or compared
//! later.
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

/// Maximum size of a trace file, bytes: about two days of a busy device.
pub const MAX_TRACE_BYTES: u64 = 8 << 30;

/// Header of one run in a trace; the events of the run follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Name of the policy.
    pub policy: String,
    /// Seed of the traffic, the noise and the tokens.
    pub seed: u64,
    /// Name of the workload.
    pub workload: String,
    /// Name of the device profile.
    pub profile: String,
    /// Size of a block, tokens.
    pub block_size: u32,
    /// Size of the device pool, blocks.
    pub device_blocks: u32,
    /// Size of the host pool, blocks.
    pub host_blocks: u32,
    /// Simulated time at which the run ends, us.
    pub end_us: u64,
}

/// Reason why a trace could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file does not begin like a trace.
    #[error("not a trace file")]
    NotATrace,
    /// The trace has another version of the format than this program.
    #[error("a trace of version {found}; this program reads version {known}", known = codec::VERSION)]
    Version {
        /// Version of the trace.
        found: u16,
    },
    /// The file ends before the end mark of the trace.
    #[error("the trace is cut off after {at} bytes")]
    Truncated {
        /// Offset at which the file ends, bytes.
        at: u64,
    },
    /// The file holds bytes that no trace can have.
    #[error("the trace is damaged at byte {at}: {problem}")]
    Damaged {
        /// Offset at which the damaged record begins, bytes.
        at: u64,
        /// What is wrong with the damaged record.
        problem: &'static str,
    },
    /// The file of an engine's events exceeds its maximum size, or would exceed it.
    #[error("a trace may have at most {} GiB; shorten the run or trace fewer", MAX_TRACE_BYTES >> 30)]
    TooLarge,
}
