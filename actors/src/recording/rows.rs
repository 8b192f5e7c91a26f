//! What a recording holds of a sequence.

use crate::request::{FinishReason, Request, RequestFault, SequenceView, Usage};
use std::sync::Arc;
use tiercel_config::SloTargets;
use tiercel_device::{Tier, Timestamp};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

/// Identity of a sequence outside the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Id of the request in its response.
    pub id: Arc<str>,
    /// Number of the choice within the request, from 0.
    pub choice: u32,
}

/// What a sequence asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Tier of the request.
    pub tier: Tier,
    /// Priority within the tier.
    pub priority: i32,
    /// Salt of the tenant.
    pub tenant: Salt,
    /// Weight of the tenant in the fair queues.
    pub weight: Weight,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Limit of the output, tokens.
    pub max_tokens: u32,
    /// Latency targets that the request states.
    pub targets: SloTargets,
    /// Whether the request may tighten its targets; `None` for what `slo.requests_may_tighten` says.
    pub may_tighten: Option<bool>,
    /// Patience that the request states, ms.
    pub max_wait_ms: Option<u64>,
    /// Whether the client says that it was refused before.
    pub returning: bool,
    /// Whether the output follows a constraint, for example a grammar. False for a sequence that had arrived before the
    /// recording began, because a snapshot does not state whether there is a constraint.
    pub constrained: bool,
}

/// Beginning of a prompt that an earlier prompt of the recording has too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPrompt {
    /// Number of the recorded sequence with the earlier prompt, from 0.
    pub number: u32,
    /// Length of the shared beginning, tokens: a multiple of the block size.
    pub tokens: u32,
}

/// How far a sequence has come. Times are those at which the reader of the response stream took a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Time of the first output token that was taken during the recording, us after the recording began. If the
    /// sequence had output before the recording, the first token of its output came earlier.
    pub first_us: Option<u64>,
    /// Time of the last output token so far, us after the recording began.
    pub last_us: Option<u64>,
    /// Number of output tokens so far, those from before the recording included.
    pub tokens: u32,
    /// Number of prompt tokens that were found in the prefix cache; 0 until the sequence is complete.
    pub cached_tokens: u32,
    /// Number of preemptions; 0 until the sequence is complete.
    pub preemptions: u32,
}

/// How a recorded sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedEnd {
    /// The output is complete, because of a stop token or a stop string.
    Stop,
    /// The output is complete, because it has its largest length.
    Length,
    /// The sequence was refused on arrival.
    Refused,
    /// The sequence was accepted, and turned away before its first token.
    TurnedAway,
    /// The client left, or the request was cancelled.
    Left,
    /// The sequence ended with an error.
    Failed,
}

/// A sequence in a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedSequence {
    /// Time of the arrival, us after the recording began; 0 for a sequence that had arrived before.
    pub arrival_us: u64,
    /// Number of output tokens that the sequence had when the recording began; `None` if it arrived later.
    pub before: Option<u32>,
    /// Identity of the sequence outside the engine, if it has one.
    pub origin: Option<Origin>,
    /// What the sequence asked for.
    pub asked: Asked,
    /// Beginning of the prompt that an earlier prompt has too.
    pub shared: Option<SharedPrompt>,
    /// How far the sequence has come.
    pub progress: Progress,
    /// How and when (us after the recording began) the sequence ended; `None` while it is live.
    pub end: Option<(RecordedEnd, u64)>,
}

/// Place of a sequence in a recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Time at which the recording began, which tells it from others.
    pub(super) began: Timestamp,
    /// Number of the sequence in the recording, from 0.
    pub(super) number: u32,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Asked {
        Asked {
            tier: request.tier,
            priority: request.priority,
            tenant: request.salt,
            weight: request.weight,
            prompt_tokens: request.prompt.len() as u32,
            max_tokens: request.max_tokens,
            targets: request.targets,
            may_tighten: request.may_tighten,
            max_wait_ms: request.max_wait_ms,
            returning: request.returning,
            constrained: request.sampling.constraint.is_some(),
        }
    }
}

impl RecordedSequence {
    /// Makes the row of a sequence that arrives now.
    pub(super) fn arrived(
        arrival_us: u64,
        asked: Asked,
        origin: Option<Origin>,
        shared: Option<SharedPrompt>,
    ) -> RecordedSequence {
        let (progress, end) = (Progress::default(), None);
        RecordedSequence { arrival_us, before: None, origin, asked, shared, progress, end }
    }

    /// Makes the row of a sequence that is live when the recording begins. A snapshot tells neither its own targets nor
    /// its tenant's weight.
    pub(super) fn live(view: &SequenceView) -> RecordedSequence {
        RecordedSequence {
            arrival_us: 0,
            before: Some(view.output_tokens),
            origin: None,
            asked: Asked {
                tier: view.tier,
                priority: view.priority,
                tenant: view.tenant,
                weight: Weight::default(),
                prompt_tokens: view.prompt_tokens,
                max_tokens: view.max_tokens,
                targets: SloTargets::default(),
                may_tighten: None,
                max_wait_ms: None,
                returning: false,
                constrained: false,
            },
            shared: None,
            progress: Progress { tokens: view.output_tokens, ..Progress::default() },
            end: None,
        }
    }

    pub(super) fn token(&mut self, at_us: u64) {
        let progress = &mut self.progress;
        progress.first_us.get_or_insert(at_us);
        progress.last_us = Some(at_us);
        progress.tokens += 1;
    }

    pub(super) fn finished(&mut self, reason: FinishReason, usage: &Usage, at_us: u64) {
        self.progress.tokens = usage.completion_tokens;
        self.progress.cached_tokens = usage.cached_tokens;
        self.progress.preemptions = usage.preemptions;
        let end = match reason {
            FinishReason::Stop => RecordedEnd::Stop,
            FinishReason::Length => RecordedEnd::Length,
        };
        self.end = Some((end, at_us));
    }
}

impl RecordedEnd {
    pub(super) fn of(fault: &RequestFault) -> RecordedEnd {
        match fault {
            RequestFault::TurnedAway { .. } | RequestFault::OutOfPatience { .. } => {
                RecordedEnd::TurnedAway
            }
            RequestFault::Cancelled => RecordedEnd::Left,
            RequestFault::Dropped
            | RequestFault::Model(_)
            | RequestFault::Constraint(_)
            | RequestFault::Step(_)
            | RequestFault::Stalled
            | RequestFault::ShuttingDown => RecordedEnd::Failed,
        }
    }
}
