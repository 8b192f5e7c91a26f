//! Identifiers. Newtypes, so that a device block can never be mistaken for a host block.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A token of the model's vocabulary.
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
    /// One sequence being generated (a request with `n = 2` is two sequences). Never reused.
    SeqId(u64), "seq");
id!(
    /// Counts how often a sequence was preempted or resumed; answers of an older epoch are stale.
    Epoch(u32), "e");
id!(
    /// One step of the engine, numbered from 1 in order of submission.
    StepId(u64), "step");
id!(
    /// One batch of block copies.
    CopyId(u64), "copy");
id!(
    /// A block of the device tier, `0..DeviceInfo::device_blocks`.
    BlockId(u32), "d");
id!(
    /// A block of the host tier, `0..DeviceInfo::host_blocks`.
    HostBlockId(u32), "h");

/// Names one preemption or resume attempt of a sequence, so that commit, abort and every late answer
/// are idempotent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The sequence.
    pub seq: SeqId,
    /// Its epoch when the attempt began.
    pub epoch: Epoch,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.seq, self.epoch)
    }
}

/// Importance of a request. The order is the order of service: `System < Premium < Standard <
/// Background`, lower is served first and preempted last.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Health probes and warm-up, issued by the server itself.
    System,
    /// Paid for latency; preempts others, is preempted only by its own tier.
    Premium,
    /// The default.
    #[default]
    Standard,
    /// No latency promise; uses what is left.
    Background,
}

impl Tier {
    /// All tiers, best first.
    pub const ALL: [Tier; 4] = [Tier::System, Tier::Premium, Tier::Standard, Tier::Background];

    /// Position in [`Tier::ALL`], for arrays indexed by tier.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The name used in configuration, metrics and logs.
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
