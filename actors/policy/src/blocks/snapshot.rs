//! What a store looks like from outside: sizes going in, usage coming out.

use tiercel_device::SeqId;

/// Sizes and bounds of a block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// Tokens per block; at least 1.
    pub block_size: u32,
    /// Blocks of the device tier.
    pub device_blocks: u32,
    /// Blocks of the host tier; 0 means there is none.
    pub host_blocks: u32,
    /// Most blocks in batches handed out by `take_copies` and not yet done, both directions
    /// together; at least 1 is assumed.
    pub max_copy_blocks_in_transit: u32,
    /// Most blocks in one batch; at least 1 is assumed.
    pub max_copy_blocks_per_batch: u32,
}

/// Usage of one tier, in blocks. `free + used + in_transit == total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierUsage {
    /// Referenced by nothing: can be handed out (cached content included).
    pub free: u32,
    /// The part of `free` that still holds named content.
    pub cached: u32,
    /// Held by sequences (device) or pinned to them (host) and not by any copy.
    pub used: u32,
    /// Source or destination of a copy that is queued or under way.
    pub in_transit: u32,
    /// Size of the tier.
    pub total: u32,
}

/// Usage of a block store at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreSnapshot {
    /// The device tier.
    pub device: TierUsage,
    /// The host tier.
    pub host: TierUsage,
    /// Host blocks pinned to at least one sequence.
    pub pinned: u32,
    /// Blocks in batches that were taken and are not done yet.
    pub copying: u32,
    /// Blocks of copies that wait for their fence or for room in transit.
    pub queued: u32,
    /// Every sequence with a table, in order, and the table's length in blocks.
    pub tables: Vec<(SeqId, u32)>,
}

/// An invariant of the store that does not hold: a bug in the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block store invariant broken: {0}")]
pub struct Violation(pub String);
