//! Candidates: the sequences that a plan considers for a step.

use crate::scheduler::cost::StepWork;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::sequence::{Phase, Sequence};

/// A sequence that a plan considers, and the tokens that the plan gives it. A plan needs the same facts of hundreds of
/// candidates several times, so these facts are stored here beside each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) sequence: &'a Sequence,
    pub(crate) rank: Rank,
    /// Tokens that the step computes of the sequence.
    pub(crate) tokens: u32,
    /// Known tokens of the sequence, and tokens that steps in flight are sampling.
    pub(crate) len: u32,
    /// Whether the sequence waits for blocks.
    pub(crate) waits: bool,
    /// Whether the sequence decodes: exactly its last token is left to compute.
    pub(crate) decoding: bool,
}

impl<'a> Candidate<'a> {
    /// Creates a candidate that has no tokens yet.
    pub(crate) fn new(rank: Rank, sequence: &'a Sequence) -> Candidate<'a> {
        Candidate {
            sequence,
            rank,
            tokens: 0,
            len: sequence.planned_len(),
            waits: sequence.phase == Phase::Waiting,
            decoding: sequence.decoding(),
        }
    }
}

/// Returns the work of the streams among candidates.
pub(crate) fn streams_in<'a, 'b: 'a>(
    candidates: impl Iterator<Item = &'a Candidate<'b>>,
) -> StepWork {
    let mut work = StepWork::default();
    for stream in candidates.filter(|candidate| candidate.decoding) {
        work.add_decode(stream.len);
    }
    work
}
