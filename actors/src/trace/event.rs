//! Events of an engine's run that can be recorded.

use serde::{Deserialize, Serialize};
use tiercel_device::{CopyId, SeqId, StepId, Tier, Timestamp};
use tiercel_policy::scheduler::{EndReport, FinishReason, RequestFault};

/// An event, and the engine time at which it happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When the event happened.
    pub at: Timestamp,
    /// The event.
    pub event: Event,
}

/// Something that the engine decided or learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A request was accepted.
    Arrived {
        /// Sequence of the request.
        seq: SeqId,
        /// Tier that the request runs in.
        tier: Tier,
        /// Length of the prompt, tokens.
        prompt: u32,
        /// Limit of the output, tokens.
        max_tokens: u32,
    },
    /// The block store answered the wants of a planned step. The event shows how short memory is.
    Planned {
        /// Step that was planned.
        step: StepId,
        /// Sequences that wanted blocks for the step.
        wants: u32,
        /// Sequences whose wants were denied.
        denied: u32,
        /// Device blocks that no sequence holds after the grants of the step.
        device_free: u32,
        /// Host blocks that are not in use.
        host_free: u32,
    },
    /// A step was submitted to the device.
    StepSubmitted {
        /// Step that was submitted.
        step: StepId,
        /// Parts of sequences that the step computes.
        slices: Vec<Slice>,
    },
    /// A step ended.
    StepEnded {
        /// Step that ended.
        step: StepId,
        /// Whether the step succeeded. The results of a failed step are discarded.
        ok: bool,
        /// Time since the step was submitted, or since the step before it ended if that was later, us.
        duration_us: u64,
    },
    /// The first output token of a sequence was handed to the client.
    FirstToken {
        /// Sequence that got its first token.
        seq: SeqId,
    },
    /// A sequence was preempted, and its blocks came free at once.
    PreemptFreed {
        /// Sequence that was preempted.
        seq: SeqId,
        /// Device blocks that came free.
        blocks: u32,
        /// Host blocks that are pinned for the sequence.
        on_host: u32,
    },
    /// The blocks of a sequence are being copied out for a swap. The sequence no longer runs but still holds the
    /// blocks.
    PreemptCopying {
        /// Sequence that is being preempted.
        seq: SeqId,
        /// Blocks to copy to the host pool.
        blocks: u32,
    },
    /// A swap was committed: the blocks of the sequence are copied out, and its device blocks are released.
    PreemptCommitted {
        /// Sequence that was preempted.
        seq: SeqId,
        /// Blocks that were saved in the host pool.
        copied: u32,
        /// Blocks whose copy to the host pool failed.
        failed: u32,
    },
    /// A swap was aborted: the blocks of the sequence are copied out, but no other sequence needs them, so the sequence
    /// goes on with them.
    PreemptAborted {
        /// Sequence that goes on.
        seq: SeqId,
        /// Blocks that were copied to the host pool in vain.
        copied: u32,
        /// Blocks whose copy to the host pool failed.
        failed: u32,
    },
    /// A waiting sequence was opened, for the first time or after a preemption, and some of its blocks are being copied
    /// in.
    ResumeCopying {
        /// Sequence that is opening.
        seq: SeqId,
        /// Blocks to copy to the device pool.
        blocks: u32,
    },
    /// A waiting sequence was opened and may run: its start, or a resume after a preemption.
    Resumed {
        /// Sequence that was opened.
        seq: SeqId,
        /// Tokens that need not be computed, because their KV is on the device already or was copied in.
        computed: u32,
        /// Blocks that were copied to the device pool.
        copied: u32,
        /// Blocks whose copy to the device pool failed.
        failed: u32,
    },
    /// A sequence ended.
    Ended {
        /// Sequence that ended.
        seq: SeqId,
        /// How the sequence ended.
        ending: Ending,
        /// Output tokens of the sequence. A final stop token is not counted.
        tokens: u32,
        /// How often the sequence was preempted.
        preemptions: u32,
    },
    /// An operator gave a command.
    Command {
        /// Sequence that the command names, if any.
        seq: Option<SeqId>,
        /// The command as text for people.
        text: String,
        /// Whether the command named something that exists.
        known: bool,
    },
    /// A batch of copies was put into the queue of the copy engine.
    CopyStarted {
        /// Id of the batch.
        copy: CopyId,
        /// Whether the batch copies from the device pool to the host pool, not back.
        out: bool,
        /// Number of blocks in the batch.
        blocks: u32,
    },
    /// A batch of copies ended.
    CopyEnded {
        /// Id of the batch.
        copy: CopyId,
        /// Whether the batch succeeded.
        ok: bool,
        /// Time that the batch took on the link, us.
        duration_us: u64,
    },
    /// A preempted sequence gave up more of its retained blocks.
    GaveMore {
        /// Sequence that gave up blocks.
        seq: SeqId,
        /// Device blocks that came free at once.
        blocks: u32,
        /// Host blocks that are pinned for the sequence.
        on_host: u32,
    },
}

/// Part of a sequence that one step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Sequence that the part belongs to.
    pub seq: SeqId,
    /// Position of the part's first token in the sequence.
    pub first_pos: u32,
    /// Number of tokens in the part.
    pub tokens: u32,
    /// Number of the output token that the step samples after the part, counted from 0; `None` if the part ends before
    /// the end of a prompt.
    pub sample: Option<u32>,
}

impl Slice {
    /// Whether the part is one more token of an output. Any other part computes tokens that are known already: those of
    /// a prompt, or those whose KV a preemption discarded.
    pub fn is_decode(&self) -> bool {
        self.tokens == 1 && self.sample.is_some_and(|output| output > 0)
    }
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// A stop token or a stop string ended the output.
    Stop,
    /// The output reached its longest length.
    Length,
    /// The client left before the output was complete.
    Cancelled,
    /// The sequence was preempted under `preemption.mode = drop`.
    Dropped,
    /// The request was turned away after it had been accepted.
    TurnedAway,
    /// The model or a step failed on the sequence.
    Failed,
    /// The client stopped reading its response stream.
    Stalled,
    /// The engine stopped before the output was complete.
    Shutdown,
}

impl Ending {
    pub(crate) fn of(report: &EndReport) -> Ending {
        match &report.outcome {
            None => Ending::Cancelled,
            Some(Ok(FinishReason::Stop)) => Ending::Stop,
            Some(Ok(FinishReason::Length)) => Ending::Length,
            Some(Err(RequestFault::Dropped)) => Ending::Dropped,
            Some(Err(RequestFault::TurnedAway { .. } | RequestFault::OutOfPatience { .. })) => {
                Ending::TurnedAway
            }
            Some(Err(RequestFault::Stalled)) => Ending::Stalled,
            Some(Err(RequestFault::ShuttingDown)) => Ending::Shutdown,
            Some(Err(RequestFault::Model(_) | RequestFault::Step(_))) => Ending::Failed,
        }
    }

    /// Returns the name that metrics use for this ending.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Stop => "stop",
            Ending::Length => "length",
            Ending::Cancelled => "cancelled",
            Ending::Dropped => "dropped",
            Ending::TurnedAway => "turned_away",
            Ending::Failed => "failed",
            Ending::Stalled => "stalled",
            Ending::Shutdown => "shutdown",
        }
    }

    /// Whether the sequence ended with a complete output.
    pub fn is_complete(self) -> bool {
        matches!(self, Ending::Stop | Ending::Length)
    }
}

impl Event {
    /// Names of all kinds of events, as [`Event::kind`] returns them.
    pub const KINDS: [&'static str; 16] = [
        "arrived",
        "planned",
        "step-submitted",
        "step-ended",
        "first-token",
        "preempt-freed",
        "preempt-copying",
        "preempt-committed",
        "preempt-aborted",
        "resume-copying",
        "resumed",
        "ended",
        "command",
        "copy-started",
        "copy-ended",
        "gave-more",
    ];

    /// Returns the name of the event's kind.
    pub fn kind(&self) -> &'static str {
        Self::KINDS[match self {
            Event::Arrived { .. } => 0,
            Event::Planned { .. } => 1,
            Event::StepSubmitted { .. } => 2,
            Event::StepEnded { .. } => 3,
            Event::FirstToken { .. } => 4,
            Event::PreemptFreed { .. } => 5,
            Event::PreemptCopying { .. } => 6,
            Event::PreemptCommitted { .. } => 7,
            Event::PreemptAborted { .. } => 8,
            Event::ResumeCopying { .. } => 9,
            Event::Resumed { .. } => 10,
            Event::Ended { .. } => 11,
            Event::Command { .. } => 12,
            Event::CopyStarted { .. } => 13,
            Event::CopyEnded { .. } => 14,
            Event::GaveMore { .. } => 15,
        }]
    }

    /// Returns the one sequence that the event is about; `None` if the event is about several sequences or none.
    pub fn seq(&self) -> Option<SeqId> {
        match self {
            Event::Arrived { seq, .. }
            | Event::FirstToken { seq }
            | Event::PreemptFreed { seq, .. }
            | Event::PreemptCopying { seq, .. }
            | Event::PreemptCommitted { seq, .. }
            | Event::PreemptAborted { seq, .. }
            | Event::ResumeCopying { seq, .. }
            | Event::Resumed { seq, .. }
            | Event::GaveMore { seq, .. }
            | Event::Ended { seq, .. } => Some(*seq),
            Event::Command { seq, .. } => *seq,
            Event::Planned { .. }
            | Event::StepSubmitted { .. }
            | Event::StepEnded { .. }
            | Event::CopyStarted { .. }
            | Event::CopyEnded { .. } => None,
        }
    }
}
