//! What the store knows of one sequence.

use super::BlockHash;
use std::sync::Arc;
use tiercel_device::{BlockId, StepId, Ticket};

/// A sequence that holds a table or pins.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Where it is between running and parked.
    pub(super) phase: Phase,
    /// Its block table; while parked, what it keeps.
    pub(super) table: Arc<[BlockId]>,
    /// Whether the scheduler has yet to be told of `table`.
    pub(super) table_is_news: bool,
    /// Tokens whose KV is valid.
    pub(super) computed: u32,
    /// Names of its full blocks, from the first.
    pub(super) names: Vec<BlockHash>,
    /// Last step that names its table.
    pub(super) last_step: StepId,
    /// Host blocks kept for it, in the order of its blocks.
    pub(super) pins: Vec<Pin>,
    /// Full blocks from the first that the host has, or had when they were looked at.
    pub(super) mirrored: usize,
    /// Copies it waits for.
    pub(super) waits: Vec<u64>,
}

/// A host block kept for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pin {
    /// Which block of the sequence it holds.
    pub(super) depth: u32,
    /// Where.
    pub(super) host: u32,
}

/// Phases of a sequence in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It holds a table and may run.
    Running,
    /// Prepared: it holds its table, which leaves unless the preparation is aborted.
    Preempting {
        /// The preparation.
        ticket: Ticket,
        /// Blocks at the front of its table that stay.
        kept: u32,
        /// Copies that ended well and badly.
        tally: Tally,
    },
    /// Committed: it holds pins, and the blocks it keeps.
    Parked,
    /// It holds the table of its prefix, part of which is being copied in.
    Opening {
        /// The want.
        ticket: Ticket,
        /// Copies that ended well and badly.
        tally: Tally,
        /// Blocks before the first whose copy failed.
        valid_blocks: u32,
    },
}

impl Phase {
    /// How many blocks at the front of its table are not on their way out.
    pub(super) fn stays(self) -> usize {
        match self {
            Phase::Preempting { kept, .. } => kept as usize,
            _ => usize::MAX,
        }
    }

    /// Whether a step may be computing it, so that reports of progress make sense.
    pub(super) fn computes(self) -> bool {
        matches!(self, Phase::Running | Phase::Preempting { .. })
    }
}

/// Copies of one preparation or opening that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally {
    /// Well.
    pub(super) copied: u32,
    /// Badly.
    pub(super) failed: u32,
}

impl Tally {
    /// Counts one more.
    pub(super) fn add(&mut self, ok: bool) {
        if ok {
            self.copied += 1;
        } else {
            self.failed += 1;
        }
    }
}

impl Sequence {
    /// A sequence that opens with the named prefix `names` in `table`.
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

    /// The table, if the scheduler does not know it yet.
    pub(super) fn tell_table(&mut self) -> Option<Arc<[BlockId]>> {
        std::mem::take(&mut self.table_is_news).then(|| Arc::clone(&self.table))
    }

    /// Adds blocks at the end of the table.
    pub(super) fn extend_table(&mut self, more: &[u32]) {
        let more = more.iter().map(|&id| BlockId(id));
        self.table = self.table.iter().copied().chain(more).collect();
        self.table_is_news = true;
    }
}
