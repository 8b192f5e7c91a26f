//! Messages between the scheduler and the block store. Each step takes one [`StepRequest`] and one [`StepGrant`],
//! whatever its batch size. The end of the last copy of a preemption or of an opening is reported as a [`StoreEvent`].

use crate::blocks::BlockHash;
use std::ops::Range;
use std::sync::Arc;
use tiercel_device::{BlockId, SeqId, StepId, Ticket};

/// Scheduler -> block store: everything that one step needs of the block store, in one message. The block store applies
/// `completed_step`, `progress`, `released`, `wants` and `mirror` in this order.
#[derive(Debug, Clone, Default)]
pub struct StepRequest {
    /// Number of the planned step, larger than that of every earlier step.
    pub step: StepId,
    /// Every step up to this one has completed, so copies of blocks that these steps used may start.
    pub completed_step: StepId,
    /// Reports of KV that completed steps made valid. New block names enter the store through this field and nowhere
    /// else.
    pub progress: Vec<Progress>,
    /// Sequences that ended (finished, cancelled, dropped). The store drops their references to blocks.
    pub released: Vec<SeqId>,
    /// Requests of the step's sequences for KV blocks, in the order in which the sequences got the step's slots.
    pub wants: Vec<Want>,
    /// Sequences that may be preempted so that the step's sequences get blocks, in the order in which they are taken. A
    /// sequence appears at most once.
    pub victims: Vec<Victim>,
    /// Costs of getting a preempted sequence's blocks back, by copying or by recomputing them.
    pub costs: ResumeCosts,
    /// Whether victims of one group are taken in the order of their cost of resuming per freed block, cheapest first,
    /// instead of in the order of the list.
    pub victims_by_cost: bool,
    /// Whether a sequence that starts or resumes recomputes blocks that the host pool has, where that is faster than
    /// copying them in.
    pub resumes_by_cost: bool,
    /// Which part of its block table a preempted victim gives up.
    pub release: Release,
    /// Most full blocks of possible victims to copy to the host ahead of need (mirroring) with this step.
    pub mirror: u32,
    /// Whether mirroring is on, also if `mirror` is 0 for this step.
    pub mirrors: bool,
    /// Whether blocks that are reserved for other tiers may be used, up to the number of victims' blocks that are also
    /// on the host and can be given back at once.
    pub lends: bool,
}

/// Which part of its block table a preempted victim gives up. The victim retains the rest on the device while it waits,
/// and may have to give that up later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Release {
    /// A victim gives up the whole block table.
    #[default]
    All,
    /// A victim gives up all blocks except those at the front of its table that other sequences share, which would not
    /// come free anyway.
    Unshared,
    /// A victim gives up only as much of the tail of its block table as is needed, in multiples of `unit` blocks.
    Needed {
        /// The number of blocks that a victim frees is rounded up to a multiple of this many blocks, as far as the
        /// victim has them; 0 counts as 1.
        unit: u32,
    },
}

/// Progress report: KV of a sequence became valid.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Sequence whose progress is reported.
    pub seq: SeqId,
    /// Number of tokens of the sequence whose KV is valid now (`num_computed_tokens`).
    pub computed: u32,
    /// Names (hashes) of the sequence's KV blocks that became full since its last progress report.
    pub hashes: Vec<BlockHash>,
}

/// Want: request of one sequence to the block store for the KV blocks that it needs to run in the step.
#[derive(Debug, Clone)]
pub struct Want {
    /// Sequence that requests blocks, and its epoch.
    pub ticket: Ticket,
    /// Upper bound of the tokens that the block table must cover: the known tokens (prompt and output) and those that
    /// steps in flight sample.
    pub len: u32,
    /// Most tokens to compute beyond those with valid KV, in this step and in the steps in flight together; at least 1.
    pub new_tokens: u32,
    /// Token positions that the block table shall cover from this step on, even if the step needs fewer (blocks
    /// allocated in advance); 0 for no more than the step needs.
    pub reserve: u32,
    /// Unused blocks of other tiers' reservations: after this request is granted, so many blocks must still be free
    /// or, if the sequence grows, free or pending (about to come free). With [`StepRequest::lends`] fewer suffice.
    pub kept_for_others: u32,
    /// Whether the sequence grows its block table, or opens (gets a new table).
    pub kind: WantKind,
    /// Number of victims, from the front of [`StepRequest::victims`], that may be preempted for this request. If the
    /// sequence itself is among them, it is skipped.
    pub max_victims: u32,
}

/// Kind of a sequence's request for blocks, by what the sequence already holds.
#[derive(Debug, Clone)]
pub enum WantKind {
    /// The sequence runs and has a block table; blocks that the sequence lacks are appended to this table.
    Grow,
    /// The sequence has no block table, because it is new or its preemption was committed: it needs one.
    Open {
        /// Names (hashes) of the sequence's full blocks in order, at most `(len - 1) / block_size` of them, so that the
        /// last token is always computed. The store uses the longest prefix that it still has: it shares blocks on the
        /// device, and copies in blocks on the host.
        hashes: Arc<[BlockHash]>,
        /// Watermark: number of blocks that must stay free after the sequence got its blocks.
        keep_free: u32,
        /// Check of the full sequence: the request is denied unless free blocks and blocks of its victims suffice for
        /// this many tokens. Only the blocks for the step are allocated.
        must_fit: u32,
        /// Whether a resumed sequence may reuse only blocks that were retained or copied out for it, and not other
        /// sequences' cached blocks with the same names.
        own_only: bool,
    },
}

/// Possible victim: a sequence that may be preempted, or a preempted one that may have to give up the blocks that it
/// retains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Sequence of the victim, and its epoch before the preemption.
    pub ticket: Ticket,
    /// Whether to copy the victim's full blocks to the host pool first, as far as there is room, instead of just
    /// dropping them.
    pub swap: bool,
    /// Whether only the first sequence of the plan may take the victim's blocks. Such blocks do not allow other
    /// sequences to borrow reserved blocks, because the owner of the reservation could not take them.
    pub spared: bool,
    /// Group of the victim; the victims of one group are adjacent in the list. With [`StepRequest::victims_by_cost`]
    /// the store orders the victims within a group.
    pub group: u16,
}

/// Costs of resuming a preempted sequence, us of device time or link time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ResumeCosts {
    /// Time to copy one block between device and host, in one direction, us.
    pub copy_us: f64,
    /// Time to recompute the first block of a sequence, us.
    pub first_block_us: f64,
    /// Additional time to recompute a block for each block before it, us, because its tokens attend to those of the
    /// earlier blocks.
    pub block_before_us: f64,
}

impl ResumeCosts {
    /// Returns the time to recompute the blocks of a sequence at the positions `depths`, us. The first block has
    /// position 0.
    pub fn recompute_us(&self, depths: Range<usize>) -> f64 {
        let blocks = depths.len() as f64;
        // Sum of the positions of the recomputed blocks. A block at position `p` has `p` blocks before it, and its
        // recomputation takes longer with each of them.
        let before = (depths.start + depths.end).saturating_sub(1) as f64 * blocks / 2.0;
        blocks * self.first_block_us + before * self.block_before_us
    }
}

/// Block store -> scheduler: the answer to a [`StepRequest`].
#[derive(Debug, Clone, Default)]
pub struct StepGrant {
    /// Step that the block store answers for.
    pub step: StepId,
    /// One answer for each sequence's request for blocks, in the order of the requests. A sequence in `preempted` gets
    /// no answer.
    pub grants: Vec<Grant>,
    /// Victims that were preempted, or gave up retained blocks, for the step.
    pub preempted: Vec<Preempted>,
    /// Free device blocks after all requests of the step are answered, those with cached content included.
    pub free_blocks: u32,
}

/// The block store's answer to one sequence's request for blocks.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Ticket (sequence and epoch) of the answered request.
    pub ticket: Ticket,
    /// Result of the request for blocks.
    pub outcome: GrantOutcome,
}

/// Result of a sequence's request for blocks: permission to run, copies that must end first, or a denial.
#[derive(Debug, Clone)]
pub enum GrantOutcome {
    /// The sequence has the blocks that it requested and may run in the step.
    Run {
        /// Number of tokens with valid KV: for a newly opened sequence its cached prefix; for a growing one the number
        /// that was last reported, without the steps in flight.
        computed: u32,
        /// Token positions that the block table covers for this step: `min(len, computed + new_tokens)`.
        cover: u32,
        /// Block table of the sequence, if it changed since the block store last sent it.
        table: Option<Arc<[BlockId]>>,
    },
    /// The sequence is being opened: blocks of its prefix are copied in from the host, and a [`StoreEvent::Resumed`]
    /// follows. The sequence holds its blocks meanwhile.
    Copying {
        /// Number of blocks to copy to the device pool.
        blocks: u32,
    },
    /// The request for blocks is denied for now: nothing was allocated, and the sequence keeps the blocks that it had.
    /// The request may succeed when `pending_blocks` more blocks have come free from copies under way.
    Denied {
        /// Number of KV blocks that copies under way must free before the denied request for blocks may succeed; 0 if
        /// these copies cannot free enough.
        pending_blocks: u32,
    },
}

/// A victim that was preempted, or that was preempted before and now gave up retained blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preempted {
    /// Ticket of the victim, as in the request: its sequence and its epoch before the preemption.
    pub ticket: Ticket,
    /// How far the preemption is: committed, or waiting for copies.
    pub outcome: PreemptOutcome,
}

/// State of a preemption after the block store's answer: committed, or prepared and waiting for copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptOutcome {
    /// The preemption is committed: the victim's references to its blocks are dropped, and it needs a new block table
    /// to run again. If the victim was preempted before and now gave up retained blocks, copies of these may still be
    /// under way.
    Freed {
        /// Device blocks that the preemption freed at once; blocks that other sequences share, or that copies still
        /// hold, did not come free.
        blocks: u32,
        /// Host blocks that are pinned for the preempted sequence, so that it can be resumed by copying.
        on_host: u32,
        /// Number of blocks at the front of its table that the victim retains on the device.
        retained: u32,
    },
    /// The preemption is prepared: the victim's blocks are frozen while they are copied to the host. A
    /// [`StoreEvent::PreemptCopied`] follows, which the scheduler answers with commit or abort.
    Copying {
        /// Number of blocks to copy to the host pool.
        blocks: u32,
        /// Number of blocks at the front of its table that the victim will retain on the device.
        retained: u32,
    },
}

/// Event that the block store reports to the scheduler: the copies of a preemption or of an opening have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    /// All copies of a prepared preemption ended. The preemption may be committed even if some copies failed, because
    /// blocks that were not saved on the host are recomputed.
    PreemptCopied {
        /// Ticket with which the preemption was prepared: the id of the victim, and its epoch before the preemption.
        ticket: Ticket,
        /// Number of the victim's blocks that the copies saved in the host pool, without blocks of the victim that the
        /// host pool had before.
        copied: u32,
        /// Number of the victim's blocks whose copy to the host pool failed.
        failed: u32,
        /// Number of host blocks that are pinned for the victim, so that it can be resumed by copying.
        on_host: u32,
    },
    /// All copies that opened a sequence from the host pool ended. The sequence may run from token `computed` on.
    Resumed {
        /// Ticket (sequence and epoch) of the request for blocks that opened the sequence.
        ticket: Ticket,
        /// Tokens of the sequence with valid KV: its prefix that is on the device now.
        computed: u32,
        /// Number of blocks that were copied to the device pool.
        copied: u32,
        /// Number of blocks whose copy to the device pool failed; they are recomputed.
        failed: u32,
    },
}
