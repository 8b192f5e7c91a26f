//! State of the block store, and the short parts of its interface.
//!
//! The modules `reserve`, `open` and `victims` handle step requests, `preempt` handles preemption, `mirror` copies
//! blocks to the host ahead of need, `copies` starts and ends copies, and `invariants` checks what must always hold.

use super::pool::Pool;
use super::sequence::Sequence;
use super::transfers::Transfers;
use super::{StoreConfig, StoreSnapshot, TierUsage};
use crate::Progress;
use crate::by_id::ById;
use tiercel_device::{SeqId, StepId};

/// The block store: the device pool and the host pool of KV blocks, with the owners, names, pins and copies of the
/// blocks.
///
/// The store is a pure state machine: the same calls give the same answers. No call fails. A call that makes no sense
/// in the state of a sequence is refused or ignored, as its method says.
#[derive(Debug)]
pub struct BlockStore {
    pub(super) config: StoreConfig,
    pub(super) device: Pool,
    pub(super) host: Pool,
    pub(super) sequences: ById<Sequence>,
    pub(super) transfers: Transfers,
    pub(super) completed: StepId,
    /// Number of blocks that mirroring has yet to copy for the victims of the last step request.
    pub(super) mirroring_lag: u32,
}

impl BlockStore {
    /// Returns a block store without sequences: all blocks of both pools are free and without content.
    ///
    /// # Panics
    /// If `block_size` is 0.
    pub fn new(config: StoreConfig) -> BlockStore {
        assert!(config.block_size > 0, "a block holds at least one token");
        BlockStore {
            config,
            device: Pool::new(config.device_blocks),
            host: Pool::new(config.host_blocks),
            sequences: ById::default(),
            transfers: Transfers::new(),
            completed: StepId(0),
            mirroring_lag: 0,
        }
    }

    /// Returns the sizes and bounds of the block store: those that it was made with, and the present number of host
    /// blocks.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// Adds `count` free blocks to the host pool. The new block numbers follow the highest number in the pool.
    pub fn add_host_blocks(&mut self, count: u32) {
        let count = count.min(u32::MAX - self.config.host_blocks);
        self.config.host_blocks += count;
        self.host.add(count);
    }

    /// Records that every step up to `step` has completed, so that copies that had to wait for these steps may start.
    /// Does the same as `StepRequest::completed_step`.
    pub fn completed(&mut self, step: StepId) {
        self.completed = self.completed.max(step);
    }

    /// Ends a sequence: drops its references and pins, and cancels copies that have not started and that only this
    /// sequence waited for. Allowed in every phase, and idempotent. Does the same as `StepRequest::released`. Blocks
    /// that a running copy uses come free when the copy ends.
    pub fn release(&mut self, seq: SeqId) {
        if let Some(mut sequence) = self.sequences.remove(seq) {
            self.leave_transfers(seq, &mut sequence);
            self.drop_table(&mut sequence);
            self.unpin(&mut sequence, 0);
        }
    }

    /// Returns the usage of both pools, for metrics and tests.
    pub fn snapshot(&self) -> StoreSnapshot {
        let holders = self.sequences.iter().filter(|(_, sequence)| !sequence.table.is_empty());
        StoreSnapshot {
            device: usage(&self.device),
            host: usage(&self.host),
            pinned: self.host.slots.iter().filter(|slot| slot.staying > 0).count() as u32,
            copying: self.transfers.started(),
            queued: self.transfers.queued(),
            tables: holders.map(|(id, sequence)| (id, sequence.table.len() as u32)).collect(),
        }
    }

    /// Returns the numbers of free device blocks and of free host blocks, those with cached content included, in
    /// constant time; [`BlockStore::snapshot`] looks at every block instead.
    pub fn free_blocks(&self) -> (u32, u32) {
        (self.device.free(), self.host.free())
    }

    /// Returns the mirroring lag: the number of full blocks of possible victims that mirroring had not looked at yet,
    /// as of the last step request. Blocks whose copy failed, or was evicted since, do not count. 0 with mirroring off.
    pub fn mirroring_lag(&self) -> u32 {
        self.mirroring_lag
    }

    /// Returns the number of blocks that `tokens` token positions need.
    pub(super) fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.block_size)
    }

    /// Registers the KV that completed steps made valid for a sequence, and the names of its newly full blocks. The
    /// last name in the report belongs to the last full block of the `computed` tokens. Names that the store already
    /// knows are skipped; names that would leave a gap are ignored. A report for a sequence that no step can be
    /// computing, or about tokens beyond its block table, is late and is ignored.
    pub(super) fn advance(&mut self, progress: &Progress) {
        let Some(sequence) = self.sequences.get_mut(progress.seq) else { return };
        let block_size = self.config.block_size;
        let covered = u32::try_from(sequence.table.len())
            .map_or(u32::MAX, |blocks| blocks.saturating_mul(block_size));
        if progress.computed > covered || !sequence.phase.computes() {
            return;
        }
        sequence.computed = sequence.computed.max(progress.computed);
        let end = (progress.computed / block_size) as usize;
        let known = sequence.names.len();
        let Some(start) = end.checked_sub(progress.hashes.len()) else { return };
        debug_assert!(
            start <= known || progress.hashes.is_empty(),
            "names of a sequence have a gap"
        );
        if start > known || end <= known {
            return;
        }
        sequence.names.extend_from_slice(&progress.hashes[known - start..]);
        for depth in known..end {
            let name = super::pool::Name::in_chain(&sequence.names, depth);
            self.device.name(sequence.table[depth].0, name);
        }
    }

    /// Drops a sequence's references to all blocks of its table, last block first. Returns how many blocks came free.
    pub(super) fn drop_table(&mut self, sequence: &mut Sequence) -> u32 {
        self.truncate_table(sequence, 0)
    }

    /// Shortens a sequence's block table to its first `keep` blocks, and drops its references to the others. Returns
    /// how many blocks came free.
    pub(super) fn truncate_table(&mut self, sequence: &mut Sequence, keep: usize) -> u32 {
        let stays = sequence.phase.stays();
        let mut freed = 0;
        for (depth, block) in sequence.table.iter().enumerate().skip(keep).rev() {
            self.device.fence(block.0, sequence.last_step);
            let came_free = if depth < stays {
                self.device.drop_hold(block.0)
            } else {
                self.device.drop_left(block.0)
            };
            freed += u32::from(came_free);
        }
        sequence.table = sequence.table.iter().copied().take(keep).collect();
        let pinned = sequence.pins.last().map_or(0, |pin| pin.depth as usize + 1);
        sequence.names.truncate(keep.max(pinned));
        freed
    }

    /// Releases the pinned host blocks of a sequence from block position `depth` on, last first.
    pub(super) fn unpin(&mut self, sequence: &mut Sequence, depth: u32) {
        let keep = sequence.pins.partition_point(|pin| pin.depth < depth);
        for pin in sequence.pins.drain(keep..).rev() {
            self.host.drop_hold(pin.host);
        }
    }

    /// Makes a sequence stop waiting for its copies. Copies that have not started, and that no other sequence waits
    /// for, are cancelled.
    pub(super) fn leave_transfers(&mut self, seq: SeqId, sequence: &mut Sequence) {
        let waits = std::mem::take(&mut sequence.waits);
        for cancelled in self.transfers.leave(seq, &waits) {
            self.device.end_transit(cancelled.device);
            self.host.end_transit(cancelled.host);
        }
    }
}

fn usage(pool: &Pool) -> TierUsage {
    let (free, in_transit, total) = (pool.free(), pool.in_transit(), pool.total());
    TierUsage {
        free,
        cached: pool.cached.len() as u32,
        used: total - free - in_transit,
        in_transit,
        total,
    }
}
