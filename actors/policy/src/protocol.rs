//! What the scheduler and the block store say to each other. One [`StepRequest`] and one
//! [`StepGrant`] per step, whatever the batch size; completions of copies come as [`StoreEvent`]s.

use crate::blocks::BlockHash;
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, StepId, Ticket};

/// Scheduler -> block store: everything one step needs, in one message. Applied in the order of the
/// fields.
#[derive(Debug, Clone, Default)]
pub struct StepRequest {
    /// The step being planned; larger than every earlier one.
    pub step: StepId,
    /// Every step up to this one has completed: copies fenced behind them may start.
    pub completed_step: StepId,
    /// What completed steps made valid. Hashes are registered here and nowhere else.
    pub progress: Vec<Progress>,
    /// Sequences that ended (finished, cancelled, dropped): their references are dropped.
    pub released: Vec<SeqId>,
    /// What the step would like to run, best-ranked first.
    pub wants: Vec<Want>,
    /// Who may be preempted for it, first to go first. A sequence appears at most once.
    pub victims: Vec<Victim>,
    /// What it costs to have a block again.
    pub costs: ResumeCosts,
    /// Within a group of victims take those first that cost least to resume for each block that comes
    /// free, instead of the first.
    pub victims_by_cost: bool,
    /// Compute what the host tier has, instead of copying it in, where that is done sooner.
    pub resumes_by_cost: bool,
    /// How much of its table a victim gives up.
    pub gives: Gives,
    /// Most full blocks of victims to copy to the host ahead of need.
    pub mirror: u32,
    /// Whether blocks kept for other tiers may be used as far as as many of the victims' could be dropped at once.
    pub lends: bool,
}

/// How much of its table a victim gives up. What it does not give up it keeps on the device while it waits, and
/// may be asked for as a victim again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gives {
    /// All of it.
    #[default]
    All,
    /// All but the blocks at its front that others hold too, and that would not come free anyway.
    Unshared,
    /// Its tail, as far as it is needed, in multiples of `unit` blocks.
    Needed {
        /// Blocks, at least 1.
        unit: u32,
    },
}

/// KV of a sequence that became valid.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens whose KV is valid now (`num_computed_tokens`).
    pub computed: u32,
    /// Names of the blocks that became full, continuing where the last report of this sequence ended.
    pub hashes: Vec<BlockHash>,
}

/// A sequence that would like to run in the step.
#[derive(Debug, Clone)]
pub struct Want {
    /// The sequence and its epoch.
    pub ticket: Ticket,
    /// Tokens known so far (prompt + output), and those that steps in flight sample: the most the table may have to
    /// cover.
    pub len: u32,
    /// Most tokens to compute beyond those that are valid, in this step and in those in flight; at least 1.
    pub new_tokens: u32,
    /// Positions the table shall cover from this step on, beyond what the step needs; 0 for no more than
    /// that.
    pub reserve: u32,
    /// Blocks kept for other tiers that these do not use: so many must be free, or on their way, after this grant.
    pub kept_for_others: u32,
    /// What it holds.
    pub kind: WantKind,
    /// How many of [`StepRequest::victims`], from the front, it may preempt. Victims that are better
    /// ranked than the want are never among them; its own sequence may be, and is passed over.
    pub max_victims: u32,
}

/// What a wanting sequence already holds.
#[derive(Debug, Clone)]
pub enum WantKind {
    /// It has a table and needs room to grow.
    Grow,
    /// It has no table: new, or preempted and committed.
    Open {
        /// Names of its full blocks in order, at most `(len - 1) / block_size`, so that the last token
        /// is always computed. The store takes the longest prefix it still has: device hits are
        /// referenced, host hits copied in.
        hashes: Arc<[BlockHash]>,
        /// Blocks that must stay free after this grant (watermark).
        keep_free: u32,
        /// The grant is denied unless free blocks (and those its victims free) suffice for this many
        /// tokens, although only the step's part is allocated: the full-sequence check.
        must_fit: u32,
        /// For one that was preempted: whether only what was kept or copied out for it counts, and not what the
        /// two tiers happen to have under the same names.
        own_only: bool,
    },
}

/// A sequence that may be preempted, or was and kept blocks that it may have to give up too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// The sequence and the epoch that the preemption carries.
    pub ticket: Ticket,
    /// Copy its full blocks to the host tier first (as far as there is room), or just drop them.
    pub swap: bool,
    /// Victims of one group follow each other; which of them goes first may be left to the store
    /// ([`StepRequest::victims_by_cost`]).
    pub group: u16,
}

/// What it costs to resume a sequence, us of device or link time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ResumeCosts {
    /// To copy one block one way.
    pub copy_us: f64,
    /// To compute the first block of a sequence again.
    pub first_block_us: f64,
    /// What each block before it adds to that of a later block, whose tokens attend to all of them.
    pub block_before_us: f64,
}

impl ResumeCosts {
    /// To compute the blocks at these depths again, us. The first block of a sequence has depth 0.
    pub fn recompute_us(&self, depths: Range<usize>) -> f64 {
        let blocks = depths.len() as f64;
        // The sum of the depths.
        let before = (depths.start + depths.end).saturating_sub(1) as f64 * blocks / 2.0;
        blocks * self.first_block_us + before * self.block_before_us
    }
}

/// Block store -> scheduler: the answer to a [`StepRequest`].
#[derive(Debug, Clone, Default)]
pub struct StepGrant {
    /// The step it answers.
    pub step: StepId,
    /// One entry per want that is not itself in `preempted`, in the order of the wants.
    pub grants: Vec<Grant>,
    /// Victims taken.
    pub preempted: Vec<Preempted>,
    /// Device blocks that nothing references (cached content included), after the step's grants.
    pub free_blocks: u32,
}

/// The answer to one want.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The ticket of the want.
    pub ticket: Ticket,
    /// What it got.
    pub outcome: GrantOutcome,
}

/// The answer to one want.
#[derive(Debug, Clone)]
pub enum GrantOutcome {
    /// It may run.
    Run {
        /// Valid tokens: for `Open` the prefix found; for `Grow` as last reported, whatever steps in flight add.
        computed: u32,
        /// Positions the table covers for this step: `min(len, computed + new_tokens)`.
        cover: u32,
        /// The block table, if it changed since the last grant.
        table: Option<Arc<[BlockId]>>,
    },
    /// `Open` only: host hits are being copied in; a [`StoreEvent::Resumed`] follows. It holds its
    /// blocks meanwhile.
    Copying {
        /// Blocks to copy.
        blocks: u32,
    },
    /// Not now: nothing was allocated, what it held it keeps. It may succeed when `pending_blocks`
    /// more blocks come free from copies under way.
    Denied {
        /// Blocks that copies under way will free.
        pending_blocks: u32,
    },
}

/// A victim taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preempted {
    /// The ticket of the victim.
    pub ticket: Ticket,
    /// What happened.
    pub outcome: PreemptOutcome,
}

/// How far a preemption is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptOutcome {
    /// Committed: its references are dropped, the sequence must open again. For one that had been preempted
    /// before and gives up more, copies of that may go on.
    Freed {
        /// Blocks that came free (shared ones did not).
        blocks: u32,
        /// Blocks that are kept in the host tier for it.
        on_host: u32,
        /// Blocks at its front that it keeps on the device.
        kept: u32,
    },
    /// Prepared: its blocks are frozen while they are copied out; a [`StoreEvent::PreemptCopied`]
    /// follows, which the scheduler answers with commit or abort.
    Copying {
        /// Blocks to copy.
        blocks: u32,
        /// Blocks at its front that it will keep on the device.
        kept: u32,
    },
}

/// Something the block store tells the scheduler unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    /// All copies of a prepared preemption ended. Even if some failed it may be committed: what was
    /// not saved is recomputed.
    PreemptCopied {
        /// The ticket of the preparation.
        ticket: Ticket,
        /// Blocks saved.
        copied: u32,
        /// Blocks whose copy failed.
        failed: u32,
    },
    /// All copies of an `Open` ended; the sequence may run from `computed` on.
    Resumed {
        /// The ticket of the want.
        ticket: Ticket,
        /// Valid tokens: the prefix that is resident.
        computed: u32,
        /// Blocks copied in.
        copied: u32,
        /// Blocks whose copy failed; they are recomputed.
        failed: u32,
    },
}
