//! Identifiers of sequences, steps, copies and blocks. Each is a type of its own, so that the id of a device block can
//! never be mistaken for the id of a host block.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Id of a token in the model's vocabulary.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// Id of one sequence; never reused. A request with `n = 2` has two sequences.
    SeqId(u64), "seq");
id!(
    /// Number of times that a sequence was preempted. Messages carry it, so that a message from before the last
    /// preemption is recognized as stale.
    Epoch(u32), "e");
id!(
    /// Number of a step of the engine. Numbers count up from 1; a later step has a higher number.
    StepId(u64), "step");
id!(
    /// Number of a batch of block copies.
    CopyId(u64), "copy");
id!(
    /// Number of a block in the device pool, `0..DeviceInfo::device_blocks`.
    BlockId(u32), "d");
id!(
    /// Number of a block in the host pool, `0..DeviceInfo::host_blocks`.
    HostBlockId(u32), "h");

/// Ticket: a sequence and the number of its preemptions so far (epoch). Messages about preempting or resuming the
/// sequence carry it, so that an answer from before the last preemption is recognized as stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// Sequence that the ticket names.
    pub seq: SeqId,
    /// Epoch of the sequence (number of its preemptions) when the ticket was made.
    pub epoch: Epoch,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.seq, self.epoch)
    }
}

/// Importance of a request. Tiers compare in the order of service, `System < Premium < Standard < Background`: the
/// least value is the highest tier, which is served first and preempted last.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Tier of the server's own requests, such as the warm-up request.
    System,
    /// Tier of requests that pay for low latency: they may preempt requests of lower tiers and, with the default
    /// settings, are not preempted for them.
    Premium,
    /// Middle tier of requests, and the default.
    #[default]
    Standard,
    /// Lowest tier of requests: they use the capacity that higher tiers leave. By default they have neither a TTFT nor
    /// a TPOT target.
    Background,
}

impl Tier {
    /// All tiers, the highest first.
    pub const ALL: [Tier; 4] = [Tier::System, Tier::Premium, Tier::Standard, Tier::Background];

    /// Returns the position of the tier in [`Tier::ALL`], for arrays that are indexed by tier.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the name of the tier in configuration, metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Tier::System => "system",
            Tier::Premium => "premium",
            Tier::Standard => "standard",
            Tier::Background => "background",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
