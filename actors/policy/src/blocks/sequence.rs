//! State of one sequence in the block store.

use super::BlockHash;
use std::sync::Arc;
use tiercel_device::{BlockId, StepId, Ticket};

/// The block store's entry of a sequence that holds a block table or pinned host blocks, or waits for copies.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Phase of the sequence in the block store.
    pub(super) phase: Phase,
    /// Block table of the sequence; after a preemption only the blocks that the sequence retains on the device.
    pub(super) table: Arc<[BlockId]>,
    /// Whether the block table changed since the scheduler was last told of it.
    pub(super) table_is_news: bool,
    /// Number of tokens of the sequence whose KV is valid.
    pub(super) computed: u32,
    /// Names (content hashes) of the sequence's full blocks, in order from the first.
    pub(super) names: Vec<BlockHash>,
    /// Last step that uses the sequence's block table.
    pub(super) last_step: StepId,
    /// Host blocks that are pinned for the preempted sequence, in the order of its blocks.
    pub(super) pins: Vec<Pin>,
    /// Number of leading full blocks that were also in the host pool, or being copied, when mirroring last looked at
    /// them; some may have been evicted since.
    pub(super) mirrored: usize,
    /// Ids of the copies that the sequence waits for.
    pub(super) waits: Vec<u64>,
}

/// Pin: a host block that may not be evicted, because a preempted sequence may need it when it resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pin {
    /// Index of the pinned block in the sequence's order of blocks, from 0.
    pub(super) depth: u32,
    /// Host block that holds the pinned content.
    pub(super) host: u32,
}

/// Phase of a sequence in the block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The sequence holds a block table and may run.
    Running,
    /// The sequence's preemption is prepared: its blocks are being copied to the host, and are freed on commit or kept
    /// on abort.
    Preempting {
        /// Ticket (sequence and epoch) of the prepared preemption.
        ticket: Ticket,
        /// Number of blocks at the front of the table that the victim retains on the device if the preemption is
        /// committed.
        retained: u32,
        /// Counts of the copies of the preemption that ended: those that succeeded and those that failed.
        tally: Tally,
    },
    /// The sequence's preemption is committed: it holds only pinned host blocks and the device blocks that it retained.
    Parked,
    /// The sequence is being opened or resumed: it holds the device blocks of its cached prefix, some of which are
    /// still being copied in from the host.
    Opening {
        /// Ticket (sequence and epoch) of the request for blocks that opens the sequence.
        ticket: Ticket,
        /// Counts of the ended copies from host to device that were begun to give the sequence its blocks: those that
        /// succeeded and those that failed.
        tally: Tally,
        /// Number of leading blocks of the prefix that are valid: those before the first block whose copy failed.
        valid_blocks: u32,
    },
}

impl Phase {
    /// Returns how many blocks at the front of the table the sequence keeps if its preemption is committed; unlimited
    /// if none is prepared.
    pub(super) fn stays(self) -> usize {
        match self {
            Phase::Preempting { retained, .. } => retained as usize,
            _ => usize::MAX,
        }
    }

    /// Whether a step may be computing the sequence in this phase, so that reports of newly valid KV are accepted.
    pub(super) fn computes(self) -> bool {
        matches!(self, Phase::Running | Phase::Preempting { .. })
    }
}

/// Numbers of block copies that succeeded and that failed, for one preemption of a sequence or for giving a sequence
/// its blocks by copies from the host pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally {
    /// Number of copies that succeeded.
    pub(super) copied: u32,
    /// Number of copies that failed.
    pub(super) failed: u32,
}

impl Tally {
    /// Counts one more ended copy, as succeeded or failed.
    pub(super) fn add(&mut self, ok: bool) {
        if ok {
            self.copied += 1;
        } else {
            self.failed += 1;
        }
    }
}

impl Sequence {
    /// Returns the store's entry of a newly opened sequence with the block table `table`, whose first blocks hold the
    /// cached prefix with the block names `names`.
    pub(super) fn opened(phase: Phase, table: Arc<[BlockId]>, names: Vec<BlockHash>) -> Sequence {
        Sequence {
            phase,
            table,
            table_is_news: true,
            computed: 0,
            names,
            last_step: StepId(0),
            pins: Vec::new(),
            mirrored: 0,
            waits: Vec::new(),
        }
    }

    /// Returns the block table if it changed since the scheduler was last told of it, and marks it as told.
    pub(super) fn tell_table(&mut self) -> Option<Arc<[BlockId]>> {
        std::mem::take(&mut self.table_is_news).then(|| Arc::clone(&self.table))
    }

    /// Adds blocks at the end of the block table.
    pub(super) fn extend_table(&mut self, more: &[u32]) {
        let more = more.iter().map(|&id| BlockId(id));
        self.table = self.table.iter().copied().chain(more).collect();
        self.table_is_news = true;
    }
}
