//! Messages between the scheduler and the block store. Each step takes one [`StepRequest`] and one [`StepGrant`],
//! whatever its batch size. Ends of copies are reported as [`StoreEvent`]s.

use crate::blocks::BlockHash;
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, StepId, Ticket};

/// Scheduler -> block store: everything that one step needs, in one message. The block store applies the fields in
/// their order.
#[derive(Debug, Clone, Default)]
pub struct StepRequest {
    /// The step that is planned; its number is larger than that of every earlier step.
    pub step: StepId,
    /// Every step up to this one has completed, so copies that are fenced behind these steps may start.
    pub completed_step: StepId,
    /// KV that completed steps made valid. New block names enter the store through this field and nowhere else.
    pub progress: Vec<Progress>,
    /// Sequences that ended (finished, cancelled, dropped). The store drops their references.
    pub released: Vec<SeqId>,
    /// Wants of the step, in order of rank, the lowest rank first.
    pub wants: Vec<Want>,
    /// Sequences that may be preempted for the wants, in the order in which they are taken. A sequence appears at most
    /// once.
    pub victims: Vec<Victim>,
    /// Costs of having a block again, by copying it or by computing it.
    pub costs: ResumeCosts,
    /// Whether, within a group of victims, those that cost the least to resume per freed block are taken first, instead
    /// of the first in the list.
    pub victims_by_cost: bool,
    /// Whether blocks that the host pool has are computed instead of copied in, where computing them is done sooner.
    pub resumes_by_cost: bool,
    /// Part of its block table that a victim gives up.
    pub gives: Gives,
    /// Largest number of full blocks of possible victims to mirror with this step.
    pub mirror: u32,
    /// Whether blocks that are reserved for other tiers may be used, at most as many as the victims have that could be
    /// dropped at once.
    pub lends: bool,
}

/// Part of its block table that a victim gives up. The victim retains the rest on the device while it waits, and may be
/// asked for the rest as a victim again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gives {
    /// The whole block table.
    #[default]
    All,
    /// All blocks except those at the front of the table that other sequences hold too. These would not come free
    /// anyway.
    Unshared,
    /// The tail of the block table, as much of it as is needed, in multiples of `unit` blocks.
    Needed {
        /// Blocks per unit; at least 1.
        unit: u32,
    },
}

/// Report that KV of a sequence became valid.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Sequence that the report is about.
    pub seq: SeqId,
    /// Tokens of the sequence whose KV is valid now (`num_computed_tokens`).
    pub computed: u32,
    /// Names (hashes) of the KV blocks of this sequence that became full since its last progress report.
    pub hashes: Vec<BlockHash>,
}

/// Request of one sequence for the blocks that it needs to run in the step.
#[derive(Debug, Clone)]
pub struct Want {
    /// Sequence that wants blocks, and its epoch.
    pub ticket: Ticket,
    /// Most tokens that the block table may have to cover: the known tokens (prompt and output), and the tokens that
    /// steps in flight sample.
    pub len: u32,
    /// Most tokens to compute beyond the valid ones, in this step and in the steps in flight together; at least 1.
    pub new_tokens: u32,
    /// Positions that the block table shall cover from this step on, even if the step needs fewer; 0 for no more than
    /// the step needs.
    pub reserve: u32,
    /// Blocks that are reserved for other tiers and not used by them. So many blocks must be free, or about to come
    /// free, after this grant.
    pub kept_for_others: u32,
    /// Whether the sequence grows the block table that it holds, or opens without one.
    pub kind: WantKind,
    /// Number of victims, from the front of [`StepRequest::victims`], that the want may preempt. No victim among them
    /// ranks before the want. The sequence itself may be among them; then it is skipped.
    pub max_victims: u32,
}

/// Kind of a want, by what its sequence already holds.
#[derive(Debug, Clone)]
pub enum WantKind {
    /// The sequence has a block table that needs room to grow.
    Grow,
    /// The sequence has no block table: it is new, or its preemption was committed.
    Open {
        /// Names of the sequence's full blocks in order, at most `(len - 1) / block_size` of them, so that the last
        /// token is always computed. The store takes the longest prefix that it still has: it references device hits
        /// and copies host hits in.
        hashes: Arc<[BlockHash]>,
        /// Blocks that must stay free after this grant (watermark).
        keep_free: u32,
        /// Full-sequence check: the want is denied unless free blocks, and blocks that its victims free, suffice for
        /// this many tokens. Only the blocks for the step are allocated.
        must_fit: u32,
        /// Whether a preempted sequence finds only blocks that were retained or copied out for it, and not other blocks
        /// of the two pools with the same names.
        own_only: bool,
    },
}

/// A sequence that may be preempted, or a preempted sequence that may have to give up its retained blocks too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Sequence of the victim, and the epoch that the preemption gives it.
    pub ticket: Ticket,
    /// Whether to copy the victim's full blocks to the host pool first, as far as there is room, instead of just
    /// dropping them.
    pub swap: bool,
    /// Group of the victim. Victims of one group follow each other. With [`StepRequest::victims_by_cost`] the store
    /// decides which of a group goes first.
    pub group: u16,
}

/// Costs of resuming a sequence, us of device or link time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ResumeCosts {
    /// Time to copy one block in one direction, us.
    pub copy_us: f64,
    /// Time to compute the first block of a sequence again, us.
    pub first_block_us: f64,
    /// Time that each earlier block adds to computing a later block, us, because the tokens of the later block attend
    /// to the earlier one.
    pub block_before_us: f64,
}

impl ResumeCosts {
    /// Returns the time to compute the blocks at `depths` again, us. The first block of a sequence has depth 0.
    pub fn recompute_us(&self, depths: Range<usize>) -> f64 {
        let blocks = depths.len() as f64;
        // Sum of the depths of the blocks.
        let before = (depths.start + depths.end).saturating_sub(1) as f64 * blocks / 2.0;
        blocks * self.first_block_us + before * self.block_before_us
    }
}

/// Block store -> scheduler: the answer to a [`StepRequest`].
#[derive(Debug, Clone, Default)]
pub struct StepGrant {
    /// The step that this grant answers.
    pub step: StepId,
    /// One answer per want, in the order of the wants. A want whose sequence is in `preempted` gets no answer.
    pub grants: Vec<Grant>,
    /// Victims that were preempted.
    pub preempted: Vec<Preempted>,
    /// Device blocks without a reference after the grants of the step, cached content included.
    pub free_blocks: u32,
}

/// The answer to one want.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The ticket of the want.
    pub ticket: Ticket,
    /// What the want got.
    pub outcome: GrantOutcome,
}

/// What a want got: permission to run, copies that must end first, or a denial.
#[derive(Debug, Clone)]
pub enum GrantOutcome {
    /// The sequence may run in the step.
    Run {
        /// Valid tokens. For `Open` the prefix that was found; for `Grow` the number that was last reported, whatever
        /// steps in flight add to it.
        computed: u32,
        /// Positions that the block table covers for this step: `min(len, computed + new_tokens)`.
        cover: u32,
        /// The block table, if it changed since the sequence's last grant.
        table: Option<Arc<[BlockId]>>,
    },
    /// Only for `Open`: host hits are being copied in, and a [`StoreEvent::Resumed`] follows. The sequence holds its
    /// blocks meanwhile.
    Copying {
        /// Blocks to copy to the device pool.
        blocks: u32,
    },
    /// The want is denied for now. Nothing was allocated, and the sequence keeps the blocks that it had. The want may
    /// succeed when `pending_blocks` more blocks have come free from copies under way.
    Denied {
        /// Blocks that must come free from copies under way before the want may succeed; 0 if such copies are not
        /// enough.
        pending_blocks: u32,
    },
}

/// A victim that was preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preempted {
    /// The ticket of the victim.
    pub ticket: Ticket,
    /// State of the preemption.
    pub outcome: PreemptOutcome,
}

/// How far a preemption is after the block store's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptOutcome {
    /// Committed: the references of the sequence are dropped, and the sequence must open again. If a preempted sequence
    /// gave up more of its retained blocks, their copies may still be under way.
    Freed {
        /// Device blocks that came free. Blocks that other sequences share did not.
        blocks: u32,
        /// Host blocks that are pinned for the sequence.
        on_host: u32,
        /// Blocks at the front of the table that the sequence retains on the device.
        kept: u32,
    },
    /// Prepared: the blocks of the sequence are frozen while they are copied out. A [`StoreEvent::PreemptCopied`]
    /// follows, which the scheduler answers with commit or abort.
    Copying {
        /// Blocks to copy to the host pool.
        blocks: u32,
        /// Blocks at the front of the table that the sequence will retain on the device.
        kept: u32,
    },
}

/// Event that the block store reports to the scheduler unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    /// All copies of a prepared preemption ended. The preemption may be committed even if some copies failed, because
    /// blocks that were not saved are recomputed.
    PreemptCopied {
        /// Ticket that the preemption was prepared with.
        ticket: Ticket,
        /// Blocks that were saved in the host pool.
        copied: u32,
        /// Blocks whose copy to the host pool failed.
        failed: u32,
    },
    /// All copies of an `Open` ended. The sequence may run from token `computed` on.
    Resumed {
        /// Ticket of the want that opened the sequence.
        ticket: Ticket,
        /// Valid tokens: the prefix that is on the device.
        computed: u32,
        /// Blocks that were copied to the device pool.
        copied: u32,
        /// Blocks whose copy to the device pool failed. They are recomputed.
        failed: u32,
    },
}
