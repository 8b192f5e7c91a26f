//! Map of both pools: numbers of blocks by their states and by the tiers of their owners, for operators.

use super::BlockStore;
use super::pool::Pool;
use super::sequence::{Phase, Sequence};
use tiercel_device::{SeqId, Tier};

/// Number of owners: the tiers, and other owners.
const OWNERS: usize = Tier::ALL.len() + 1;
/// Index of other owners.
const OTHER: usize = Tier::ALL.len();

/// Bits of a block's mark that tell its owner: the index of the owner plus 1, or 0 for a block without an owner. The
/// other bits of the mark are [`IN_TRANSIT`] and [`MIRRORED`].
const OWNER: u8 = 0x0f;
/// Mark of a block that is the source or destination of a copy.
const IN_TRANSIT: u8 = 0x10;
/// Mark of a mirrored block.
const MIRRORED: u8 = 0x20;

/// Numbers of blocks of one owner in a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnedBlocks {
    /// Blocks that sequences of the owner hold (device pool), or that are pinned for them (host pool), without those in
    /// transit.
    pub held: u32,
    /// Those of the held blocks of the device pool that are mirrored: the host pool has copies of them that were made
    /// ahead of need.
    pub mirrored: u32,
    /// Blocks that are the source or destination of a queued or running copy.
    pub in_transit: u32,
}

/// Numbers of blocks of one pool. Each block counts once: as free, as cached, or as held or in transit under its owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolMap {
    /// Number of blocks in the pool.
    pub total: u32,
    /// Free blocks without content.
    pub free: u32,
    /// Free blocks with cached content.
    pub cached: u32,
    owners: [OwnedBlocks; OWNERS],
}

/// Numbers of blocks of both pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockMap {
    /// Blocks of the device pool.
    pub device: PoolMap,
    /// Blocks of the host pool.
    pub host: PoolMap,
}

impl PoolMap {
    /// Returns the blocks of a tier. A block that sequences of several tiers share counts for the highest of them.
    pub fn of(&self, tier: Tier) -> OwnedBlocks {
        self.owners[tier.index()]
    }

    /// Returns the blocks of sequences whose tier is unknown, and those that a copy holds alone.
    pub fn of_others(&self) -> OwnedBlocks {
        self.owners[OTHER]
    }
}

impl BlockStore {
    /// Counts the blocks of both pools. `tier_of` returns the tier of a sequence, if it is known. The time that this
    /// takes grows with the number of blocks: some 10 us for 10,000 blocks.
    pub fn map(&self, tier_of: impl Fn(SeqId) -> Option<Tier>) -> BlockMap {
        let mut device = vec![0_u8; self.device.slots.len()];
        let mut host = vec![0_u8; self.host.slots.len()];
        for (seq, sequence) in self.sequences.iter() {
            let owner = tier_of(seq).map_or(OTHER, Tier::index) as u8 + 1;
            let mirrored = self.known_on_host(sequence);
            for (depth, block) in sequence.table.iter().enumerate() {
                let mark = &mut device[block.0 as usize];
                own(mark, owner);
                *mark |= if depth < mirrored { MIRRORED } else { 0 };
            }
            sequence.pins.iter().for_each(|pin| own(&mut host[pin.host as usize], owner));
        }
        for copy in self.transfers.jobs.values() {
            device[copy.device as usize] |= IN_TRANSIT;
            host[copy.host as usize] |= IN_TRANSIT;
        }
        BlockMap { device: counted(&self.device, &device), host: counted(&self.host, &host) }
    }

    /// Returns how many blocks at the front of a running sequence's table mirroring has copied to the host pool. The
    /// host pool evicts the last blocks of a text first, so a binary search finds the last one that it still has; after
    /// a failed copy the number may be too small.
    fn known_on_host(&self, sequence: &Sequence) -> usize {
        if sequence.phase != Phase::Running {
            return 0;
        }
        let known = &sequence.names[..sequence.mirrored.min(sequence.names.len())];
        known.partition_point(|name| self.host.find(name).is_some())
    }
}

/// Marks a block as an owner's, unless it is marked as one of a higher tier.
fn own(mark: &mut u8, owner: u8) {
    let before = *mark & OWNER;
    if before == 0 || owner < before {
        *mark = (*mark & !OWNER) | owner;
    }
}

fn counted(pool: &Pool, marks: &[u8]) -> PoolMap {
    let mut owners = [OwnedBlocks::default(); OWNERS];
    for mark in marks.iter().filter(|mark| **mark != 0) {
        let owner = usize::from(mark & OWNER).checked_sub(1).unwrap_or(OTHER);
        let blocks = &mut owners[owner];
        if mark & IN_TRANSIT != 0 {
            blocks.in_transit += 1;
        } else {
            blocks.held += 1;
            blocks.mirrored += u32::from(mark & MIRRORED != 0);
        }
    }
    let cached = pool.cached.len() as u32;
    PoolMap { total: pool.total(), free: pool.free() - cached, cached, owners }
}
