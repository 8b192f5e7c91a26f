//! State of one sequence in the block store.

use super::BlockHash;
use std::sync::Arc;
use tiercel_device::{BlockId, StepId, Ticket};

/// A sequence that holds a block table or pins.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Phase of the sequence in the block store.
    pub(super) phase: Phase,
    /// Block table of the sequence; while the sequence is parked, its retained blocks.
    pub(super) table: Arc<[BlockId]>,
    /// Whether the scheduler has not been told of the current `table` yet.
    pub(super) table_is_news: bool,
    /// Tokens of the sequence whose KV is valid.
    pub(super) computed: u32,
    /// Names of the sequence's full blocks, from the first on.
    pub(super) names: Vec<BlockHash>,
    /// Last step that names the sequence's block table.
    pub(super) last_step: StepId,
    /// Host blocks that are pinned for the sequence, in the order of the sequence's blocks.
    pub(super) pins: Vec<Pin>,
    /// Number of full blocks, from the first on, that the host pool has, or had when they were looked at.
    pub(super) mirrored: usize,
    /// Copies that the sequence waits for.
    pub(super) waits: Vec<u64>,
}

/// Pin: a host block that is kept for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pin {
    /// Position in the sequence of the block whose content is pinned, in blocks.
    pub(super) depth: u32,
    /// Host block that holds the content.
    pub(super) host: u32,
}

/// Phase of a sequence in the block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The sequence holds a block table and may run.
    Running,
    /// The preemption is prepared: the sequence holds its block table, which leaves unless the preemption is aborted.
    Preempting {
        /// Ticket of the prepared preemption.
        ticket: Ticket,
        /// Blocks at the front of the table that the sequence retains.
        kept: u32,
        /// Numbers of ended copies, by success.
        tally: Tally,
    },
    /// The preemption is committed: the sequence holds pins and its retained blocks.
    Parked,
    /// The sequence holds the block table of its prefix, part of which is being copied in.
    Opening {
        /// Ticket of the want that opens the sequence.
        ticket: Ticket,
        /// Numbers of ended copies, by success.
        tally: Tally,
        /// Blocks of the prefix before the first block whose copy failed.
        valid_blocks: u32,
    },
}

impl Phase {
    /// Returns how many blocks at the front of the sequence's table are not about to leave.
    pub(super) fn stays(self) -> usize {
        match self {
            Phase::Preempting { kept, .. } => kept as usize,
            _ => usize::MAX,
        }
    }

    /// Whether a step may be computing the sequence, so that reports of its progress make sense.
    pub(super) fn computes(self) -> bool {
        matches!(self, Phase::Running | Phase::Preempting { .. })
    }
}

/// Numbers of copies of one preparation or opening that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally {
    /// Copies that succeeded.
    pub(super) copied: u32,
    /// Copies that failed.
    pub(super) failed: u32,
}

impl Tally {
    /// Counts one more ended copy.
    pub(super) fn add(&mut self, ok: bool) {
        if ok {
            self.copied += 1;
        } else {
            self.failed += 1;
        }
    }
}

impl Sequence {
    /// Returns a sequence that opens with the blocks in `table`, which begins with a prefix named `names`.
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

    /// Returns the block table if the scheduler has not been told of it yet.
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
