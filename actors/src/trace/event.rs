//! What can be taken down of an engine's run.

use serde::{Deserialize, Serialize};
use tiercel_device::{CopyId, SeqId, StepId, Tier, Timestamp};
use tiercel_policy::scheduler::{EndReport, FinishReason, RequestFault};

/// An event and when it happened, in the engine's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// What.
    pub event: Event,
}

/// Something the engine decided or learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A request was accepted.
    Arrived {
        /// Its sequence.
        seq: SeqId,
        /// The tier it runs in.
        tier: Tier,
        /// Prompt tokens.
        prompt: u32,
        /// Most output tokens.
        max_tokens: u32,
    },
    /// The store answered what a planned step asked for; how short memory is.
    Planned {
        /// The step.
        step: StepId,
        /// Sequences that wanted to run.
        wants: u32,
        /// Those that got no blocks.
        denied: u32,
        /// Device blocks no sequence holds, after the step's grants.
        device_free: u32,
        /// Host blocks not in use.
        host_free: u32,
    },
    /// A step went to the device.
    StepSubmitted {
        /// The step.
        step: StepId,
        /// What it computes.
        slices: Vec<Slice>,
    },
    /// A step came back.
    StepEnded {
        /// The step.
        step: StepId,
        /// Whether it succeeded; nothing of a failed one is believed.
        ok: bool,
        /// Time since it was submitted, or since the one before it ended, us.
        duration_us: u64,
    },
    /// The first token was handed to the client.
    FirstToken {
        /// The sequence.
        seq: SeqId,
    },
    /// A sequence lost its blocks at once.
    PreemptFreed {
        /// The sequence.
        seq: SeqId,
        /// Device blocks that came free.
        blocks: u32,
        /// Blocks the host tier keeps for it.
        on_host: u32,
    },
    /// A sequence's blocks are being copied out; it runs no more, but holds them.
    PreemptCopying {
        /// The sequence.
        seq: SeqId,
        /// Blocks to copy.
        blocks: u32,
    },
    /// Its blocks are copied out and dropped.
    PreemptCommitted {
        /// The sequence.
        seq: SeqId,
        /// Blocks saved in the host tier.
        copied: u32,
        /// Blocks whose copy failed.
        failed: u32,
    },
    /// Its blocks are copied out, but nobody needs them: it goes on with them.
    PreemptAborted {
        /// The sequence.
        seq: SeqId,
        /// Blocks copied for nothing.
        copied: u32,
        /// Blocks whose copy failed.
        failed: u32,
    },
    /// A sequence got blocks again (or for the first time), and some are being copied in.
    ResumeCopying {
        /// The sequence.
        seq: SeqId,
        /// Blocks to copy.
        blocks: u32,
    },
    /// A sequence that held no blocks may run: its first start or a resume.
    Resumed {
        /// The sequence.
        seq: SeqId,
        /// Tokens that need not be computed: found in the prefix cache or copied in.
        computed: u32,
        /// Blocks copied in.
        copied: u32,
        /// Blocks whose copy failed.
        failed: u32,
    },
    /// A sequence ended.
    Ended {
        /// The sequence.
        seq: SeqId,
        /// How.
        ending: Ending,
        /// Output tokens, a final stop token not counted.
        tokens: u32,
        /// How often it was preempted.
        preemptions: u32,
    },
    /// An operator's command.
    Command {
        /// The sequence it names, if any.
        seq: Option<SeqId>,
        /// The command, for people.
        text: String,
        /// Whether it named something that exists.
        known: bool,
    },
    /// A batch of copies was handed to the copy engine's queue.
    CopyStarted {
        /// The batch.
        copy: CopyId,
        /// From the device to the host tier, or back.
        out: bool,
        /// Blocks.
        blocks: u32,
    },
    /// A batch of copies ended.
    CopyEnded {
        /// The batch.
        copy: CopyId,
        /// Whether it succeeded.
        ok: bool,
        /// Time on the link, us.
        duration_us: u64,
    },
    /// A preempted sequence that had kept blocks gave up more of them.
    GaveMore {
        /// The sequence.
        seq: SeqId,
        /// Device blocks that came free at once.
        blocks: u32,
        /// Blocks the host tier keeps for it.
        on_host: u32,
    },
}

/// What a step computes of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first token.
    pub first_pos: u32,
    /// Tokens.
    pub tokens: u32,
    /// Number of the output token it samples, from 0; `None` for a part of a prompt before its end.
    pub sample: Option<u32>,
}

impl Slice {
    /// Whether it is one more token of an output; everything else computes known tokens, a prompt's or
    /// those that a preemption lost.
    pub fn is_decode(&self) -> bool {
        self.tokens == 1 && self.sample.is_some_and(|output| output > 0)
    }
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// A stop token or a stop string.
    Stop,
    /// Its longest output.
    Length,
    /// The client left.
    Cancelled,
    /// Preempted under `preemption.mode = drop`.
    Dropped,
    /// Turned away after it had been let in.
    TurnedAway,
    /// The model or the step failed on it.
    Failed,
    /// The client stopped reading.
    Stalled,
    /// The engine stopped.
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

    /// The name metrics have for it.
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

    /// Whether the output is complete.
    pub fn is_complete(self) -> bool {
        matches!(self, Ending::Stop | Ending::Length)
    }
}

impl Event {
    /// All kinds, as [`Event::kind`] names them.
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

    /// The name of its kind.
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

    /// The one sequence it is about; `None` if it is about several or none.
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
