//! Configuration and usage of a block store, as seen from outside.

use tiercel_device::SeqId;

/// Sizes and bounds of a block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// Number of tokens in a KV block; at least 1.
    pub block_size: u32,
    /// Number of blocks in the device pool.
    pub device_blocks: u32,
    /// Number of blocks in the host pool; 0 means that there is no host pool.
    pub host_blocks: u32,
    /// Limit on blocks in transit: most blocks in batches of copies that `take_copies` handed out and that have not
    /// ended, of both directions together. Blocks of queued copies do not count here, although
    /// [`TierUsage::in_transit`] counts them. A value below 1 counts as 1.
    pub max_copy_blocks_in_transit: u32,
    /// Most blocks in one batch of copies. A value below 1 counts as 1.
    pub max_copy_blocks_per_batch: u32,
}

/// Numbers of blocks of one pool of KV blocks (device or host) by state. `free + used + in_transit == total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierUsage {
    /// Free blocks: no sequence, pin or copy holds them, so they can be allocated. Blocks with cached content are
    /// included.
    pub free: u32,
    /// Free blocks that still hold cached content, which a sequence with the same prefix can use.
    pub cached: u32,
    /// Used blocks: those that sequences hold (device pool) or that are pinned for preempted sequences (host pool),
    /// without those in transit.
    pub used: u32,
    /// Blocks in transit: source or destination of a copy that is queued or running.
    pub in_transit: u32,
    /// Number of blocks in the pool.
    pub total: u32,
}

/// Usage of a block store at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreSnapshot {
    /// Usage of the device pool.
    pub device: TierUsage,
    /// Usage of the host pool.
    pub host: TierUsage,
    /// Number of host blocks that are pinned for at least one preempted sequence.
    pub pinned: u32,
    /// Number of blocks in batches of copies that were handed out to the device and have not ended.
    pub copying: u32,
    /// Number of blocks whose copies are queued: they wait for steps that still use the block, for the limit on blocks
    /// in transit, or (mirroring) until no other copy to the host is queued or running.
    pub queued: u32,
    /// Ids of all sequences with a block table, ascending, with the length of each table in blocks. The table of a
    /// preempted sequence has the blocks that it retains.
    pub tables: Vec<(SeqId, u32)>,
}

/// An invariant of the block store that does not hold, which is a bug of the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block store invariant broken: {0}")]
pub struct Violation(pub String);
