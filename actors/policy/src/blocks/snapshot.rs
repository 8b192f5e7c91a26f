//! Configuration and usage of a block store, as seen from outside.

use tiercel_device::SeqId;

/// Sizes and bounds of a block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// Tokens per block; at least 1.
    pub block_size: u32,
    /// Number of blocks in the device pool.
    pub device_blocks: u32,
    /// Number of blocks in the host pool; 0 means that there is no host pool.
    pub host_blocks: u32,
    /// Most blocks in batches that `take_copies` handed out and that are not done yet, of both directions together. A
    /// value below 1 counts as 1.
    pub max_copy_blocks_in_transit: u32,
    /// Most blocks in one batch of copies. A value below 1 counts as 1.
    pub max_copy_blocks_per_batch: u32,
}

/// Usage of one pool, in blocks. `free + used + in_transit == total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierUsage {
    /// Blocks that nothing references and that can be handed out, cached content included.
    pub free: u32,
    /// Free blocks that still hold named content.
    pub cached: u32,
    /// Blocks that sequences hold (device pool) or that are pinned for them (host pool), and that no copy touches.
    pub used: u32,
    /// Blocks that are the source or destination of a copy that is queued or under way.
    pub in_transit: u32,
    /// Size of the pool.
    pub total: u32,
}

/// Usage of a block store at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreSnapshot {
    /// Usage of the device pool.
    pub device: TierUsage,
    /// Usage of the host pool.
    pub host: TierUsage,
    /// Host blocks that are pinned for at least one sequence.
    pub pinned: u32,
    /// Blocks in batches of copies that were handed out and are not done yet.
    pub copying: u32,
    /// Blocks of copies that wait for their fence or for room in transit.
    pub queued: u32,
    /// Every sequence with a block table, in ascending order, and the length of the table in blocks.
    pub tables: Vec<(SeqId, u32)>,
}

/// An invariant of the block store that does not hold, which is a bug of the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block store invariant broken: {0}")]
pub struct Violation(pub String);
