//! What engines decided and when, in a file: written while they run, shown and compared later.
//!
//! | file | one job |
//! |---|---|
//! | `codec` | the bytes of a trace file |
//! | `gate` | passes a run's events to everybody who wants them, until the run's end |
//! | `writer`, `reader` | streams of records, in bounded memory |
//! | `line` | an event as one line of text |
//! | `diff` | where two traces part |

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

/// Largest trace file, bytes: about two days of a busy device.
pub const MAX_TRACE_BYTES: u64 = 8 << 30;

/// One run; its events follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// The policy.
    pub policy: String,
    /// Seed of the traffic, the noise and the tokens.
    pub seed: u64,
    /// Name of the workload.
    pub workload: String,
    /// Name of the device.
    pub profile: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of the device tier.
    pub device_blocks: u32,
    /// Blocks of the host tier.
    pub host_blocks: u32,
    /// When the run ends, us.
    pub end_us: u64,
}

/// Why a trace could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It does not begin as a trace does.
    #[error("not a trace file")]
    NotATrace,
    /// Another version of the program wrote it.
    #[error("a trace of version {found}; this program reads version {known}", known = codec::VERSION)]
    Version {
        /// Its version.
        found: u16,
    },
    /// It ends too early.
    #[error("the trace is cut off after {at} bytes")]
    Truncated {
        /// Where it ends.
        at: u64,
    },
    /// Bytes that no trace has.
    #[error("the trace is damaged at byte {at}: {problem}")]
    Damaged {
        /// Where the damaged record begins.
        at: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// It is or would become too large.
    #[error("a trace may have at most {} GiB; shorten the run or trace fewer", MAX_TRACE_BYTES >> 30)]
    TooLarge,
}
