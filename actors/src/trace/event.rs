//! Events of an engine that a recorder can record: arrivals, steps, preemptions, copies, ends.

use serde::{Deserialize, Serialize};
use tiercel_device::{CopyId, SeqId, StepId, Tier, Timestamp};
use tiercel_policy::scheduler::{EndReport, FinishReason, RequestFault};

/// Recorded event of an engine, and the engine time at which it happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Engine time at which the event happened.
    pub at: Timestamp,
    /// What happened in the engine.
    pub event: Event,
}

/// Event of an engine: something that it decided or learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A request was accepted.
    Arrived {
        /// Sequence of the request.
        seq: SeqId,
        /// Tier in which the request was accepted.
        tier: Tier,
        /// Length of the prompt, tokens.
        prompt: u32,
        /// Limit of the output, tokens.
        max_tokens: u32,
    },
    /// The block store answered the requests for the blocks of a planned step. The numbers show how short memory is.
    Planned {
        /// Step that was planned and asked for blocks.
        step: StepId,
        /// Number of sequences that asked for blocks for the step.
        wants: u32,
        /// Number of sequences whose request for blocks was denied.
        denied: u32,
        /// Number of device blocks that no sequence references after the grants of the step.
        device_free: u32,
        /// Number of host blocks that are not in use after the grants of the step.
        host_free: u32,
    },
    /// A step was submitted to the device.
    StepSubmitted {
        /// Id of the step that was submitted to the device.
        step: StepId,
        /// Slices of the step: the tokens that it computes of each sequence.
        slices: Vec<Slice>,
    },
    /// A step ended.
    StepEnded {
        /// Step that ended.
        step: StepId,
        /// Whether the step succeeded. The results of a failed step are discarded.
        ok: bool,
        /// Duration of the step, us: since it was submitted, or since the step before it ended if that was later.
        duration_us: u64,
    },
    /// The first output token of a sequence was sampled, before it was handed to the client.
    FirstToken {
        /// Sequence that got its first token.
        seq: SeqId,
    },
    /// A running sequence was preempted, and device blocks of it (all or some) came free at once, without copies.
    PreemptFreed {
        /// Sequence that was preempted.
        seq: SeqId,
        /// Number of device blocks of the preempted sequence that came free.
        blocks: u32,
        /// Number of host blocks that are pinned for the preempted sequence until it resumes.
        on_host: u32,
    },
    /// The swap of a sequence began: its blocks are being copied to the host pool. The sequence no longer runs, but
    /// still holds its device blocks.
    PreemptCopying {
        /// Sequence that is being swapped out.
        seq: SeqId,
        /// Number of blocks to copy to the host pool for the swap.
        blocks: u32,
    },
    /// A swap was committed: blocks of the sequence have been copied to the host pool, and its device blocks, except
    /// those that it retains, came free.
    PreemptCommitted {
        /// Sequence that was swapped out.
        seq: SeqId,
        /// Number of blocks of the sequence that were saved in the host pool.
        copied: u32,
        /// Number of blocks whose copy to the host pool failed; their KV will be computed again.
        failed: u32,
    },
    /// A swap was aborted: the blocks of the sequence were copied to the host pool, but no other sequence needs its
    /// device blocks any more, so it goes on with them.
    PreemptAborted {
        /// Sequence that goes on running after its swap was aborted.
        seq: SeqId,
        /// Number of blocks that were copied to the host pool in vain.
        copied: u32,
        /// Number of blocks whose copy to the host pool failed, which is of no consequence after the abort.
        failed: u32,
    },
    /// A waiting sequence was given blocks, for the first time or after a preemption, and some of its KV is being
    /// copied from the host pool.
    ResumeCopying {
        /// Sequence whose blocks are being copied in.
        seq: SeqId,
        /// Number of blocks to copy from the host pool to the device pool.
        blocks: u32,
    },
    /// A waiting sequence has its blocks and may run: its first start, or a resume after a preemption.
    Resumed {
        /// Sequence that starts or resumes.
        seq: SeqId,
        /// Number of tokens of the sequence that need not be computed, because their KV is on the device already or was
        /// copied in.
        computed: u32,
        /// Number of blocks that were copied from the host pool to the device pool for the sequence.
        copied: u32,
        /// Number of blocks whose copy to the device pool failed; their KV is computed again.
        failed: u32,
    },
    /// A sequence ended, completely or not.
    Ended {
        /// Sequence that ended.
        seq: SeqId,
        /// How the sequence ended, such as by its maximum length or a cancel.
        ending: Ending,
        /// Number of output tokens of the sequence. A final stop token is not counted.
        tokens: u32,
        /// Number of times that the sequence was preempted.
        preemptions: u32,
    },
    /// An operator gave a command to the engine.
    Command {
        /// Sequence that the operator's command names, if any.
        seq: Option<SeqId>,
        /// Operator's command as text for people.
        text: String,
        /// Whether the sequence that the operator's command names exists; true for commands that name none.
        known: bool,
    },
    /// A batch of block copies was put into the queue of the copy engine.
    CopyStarted {
        /// Id of the batch of copies.
        copy: CopyId,
        /// Whether the batch copies blocks from the device pool to the host pool, rather than back.
        out: bool,
        /// Number of blocks in the batch of copies.
        blocks: u32,
    },
    /// A batch of block copies ended.
    CopyEnded {
        /// Id of the batch of copies.
        copy: CopyId,
        /// Whether the batch of copies succeeded.
        ok: bool,
        /// Time that the batch of copies took on the link between device and host, us.
        duration_us: u64,
    },
    /// A sequence that is preempted already gave up more of the device blocks that it had retained.
    GaveMore {
        /// Preempted sequence that gave up retained blocks.
        seq: SeqId,
        /// Number of device blocks of the preempted sequence that came free at once.
        blocks: u32,
        /// Number of host blocks that are pinned for the preempted sequence until it resumes.
        on_host: u32,
    },
}

/// Slice of a step: consecutive tokens of one sequence that the step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Sequence whose tokens the slice holds.
    pub seq: SeqId,
    /// Position of the slice's first token in the sequence.
    pub first_pos: u32,
    /// Number of tokens that the step computes of the slice's sequence.
    pub tokens: u32,
    /// Number of the output token that the step samples after the slice, counted from 0; `None` if the slice ends
    /// before the last known token, so that nothing is sampled.
    pub sample: Option<u32>,
}

impl Slice {
    /// Whether the slice is a decode: one more token of an output. Any other slice is prefill: it computes tokens that
    /// are known already, of a prompt or after a preemption that discarded their KV.
    pub fn is_decode(&self) -> bool {
        self.tokens == 1 && self.sample.is_some_and(|output| output > 0)
    }
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// A stop token or a stop string ended the output.
    Stop,
    /// The output reached its maximum length.
    Length,
    /// The client left before the output of the sequence was complete, or an operator cancelled the sequence.
    Cancelled,
    /// The sequence was preempted by ending it, as the settings ask for (`drop`).
    Dropped,
    /// The request was turned away: ended before its first token, with the same answer as a refused request.
    TurnedAway,
    /// The sequence ended with an error of the model or of a step.
    Failed,
    /// The client stopped reading its response stream, so the server ended the sequence.
    Stalled,
    /// The engine was shut down before the output of the sequence was complete.
    Shutdown,
}

impl Ending {
    pub(crate) fn of(report: &EndReport) -> Ending {
        match &report.outcome {
            None | Some(Err(RequestFault::Cancelled)) => Ending::Cancelled,
            Some(Ok(FinishReason::Stop)) => Ending::Stop,
            Some(Ok(FinishReason::Length)) => Ending::Length,
            Some(Err(RequestFault::Dropped)) => Ending::Dropped,
            Some(Err(RequestFault::TurnedAway { .. } | RequestFault::OutOfPatience { .. })) => {
                Ending::TurnedAway
            }
            Some(Err(RequestFault::Stalled)) => Ending::Stalled,
            Some(Err(RequestFault::ShuttingDown)) => Ending::Shutdown,
            Some(Err(
                RequestFault::Model(_) | RequestFault::Constraint(_) | RequestFault::Step(_),
            )) => Ending::Failed,
        }
    }

    /// Returns the name in metrics and trace files of the way in which the sequence ended, such as `dropped`.
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

    /// Returns the name of the event's kind, such as `step-ended`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_computes_one_token_of_an_output_and_samples_another() {
        let is_decode =
            |tokens, sample| Slice { seq: SeqId(1), first_pos: 9, tokens, sample }.is_decode();
        assert!(is_decode(1, Some(1)));
        assert!(!is_decode(2, Some(1)), "two tokens are computed again after a preemption");
        assert!(!is_decode(1, Some(0)), "the last token of a prompt is prefill");
        assert!(!is_decode(1, None) && !is_decode(2, None));
    }

    #[test]
    fn every_ending_has_its_name_and_only_stop_and_length_are_complete() {
        let endings = [
            (Ending::Stop, "stop", true),
            (Ending::Length, "length", true),
            (Ending::Cancelled, "cancelled", false),
            (Ending::Dropped, "dropped", false),
            (Ending::TurnedAway, "turned_away", false),
            (Ending::Failed, "failed", false),
            (Ending::Stalled, "stalled", false),
            (Ending::Shutdown, "shutdown", false),
        ];
        for (ending, name, complete) in endings {
            assert_eq!((ending.name(), ending.is_complete()), (name, complete));
        }
    }

    #[test]
    fn an_event_names_its_kind_and_its_sequence_if_there_is_one() {
        let seq = SeqId(5);
        let (text, known) = ("pause".to_owned(), true);
        let events = [
            (Event::FirstToken { seq }, "first-token", Some(seq)),
            (Event::PreemptCopying { seq, blocks: 1 }, "preempt-copying", Some(seq)),
            (Event::GaveMore { seq, blocks: 1, on_host: 0 }, "gave-more", Some(seq)),
            (Event::Command { seq: None, text, known }, "command", None),
            (Event::StepSubmitted { step: StepId(1), slices: vec![] }, "step-submitted", None),
        ];
        for (event, kind, of) in events {
            assert_eq!((event.kind(), event.seq()), (kind, of));
        }
    }
}
