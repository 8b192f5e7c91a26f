//! Candidates: the sequences that the scheduler considers for the next step.

use crate::scheduler::cost::StepWork;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::sequence::{Phase, Sequence};

/// A sequence that the scheduler considers for the next step, and the number of tokens that the step shall compute of
/// it. A plan reads the same facts of hundreds of candidates several times, so copies of these facts lie side by side
/// in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) sequence: &'a Sequence,
    pub(crate) rank: Rank,
    /// Number of tokens of the sequence that the planned step computes.
    pub(crate) tokens: u32,
    /// Length of the sequence when the step starts: its known tokens, and those that steps in flight are sampling.
    pub(crate) len: u32,
    /// Whether the sequence is in phase waiting: it is new or was preempted, and needs a block table.
    pub(crate) waits: bool,
    /// Whether exactly one token is left to compute: the sequence is a stream, or a prompt whose last token is left.
    pub(crate) one_token_left: bool,
}

impl<'a> Candidate<'a> {
    /// Creates the candidate of a sequence. The plan has given the sequence no tokens yet.
    pub(crate) fn new(rank: Rank, sequence: &'a Sequence) -> Candidate<'a> {
        Candidate {
            sequence,
            rank,
            tokens: 0,
            len: sequence.planned_len(),
            waits: sequence.phase == Phase::Waiting,
            one_token_left: sequence.one_token_left(),
        }
    }
}

/// Returns the work of a step that computes one token of each candidate with one token left, and nothing else.
pub(crate) fn decode_work<'a, 'b: 'a>(
    candidates: impl Iterator<Item = &'a Candidate<'b>>,
) -> StepWork {
    let mut work = StepWork::default();
    for stream in candidates.filter(|candidate| candidate.one_token_left) {
        work.add_decode(stream.len);
    }
    work
}
