//! Views and candidates for the tests of plans.

use crate::scheduler::candidate::Candidate;
use crate::scheduler::plan::view::View;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::State;
use crate::scheduler::tests::NOW;
use tiercel_config::ResumeOrder;

/// Returns the view from which a step that begins at [`NOW`] is planned.
pub(super) fn view(s: &State) -> View<'_> {
    View {
        basis: &s.basis,
        queue: &s.queue,
        memory: &s.memory,
        reserve: &s.reserve,
        retry: &s.retry,
        suspects: s.suspects.members(),
        may_start: true,
        traffic: s.queue.traffic(NOW),
        begins: NOW,
    }
}

/// Returns the sequences as candidates, in the order given.
pub(super) fn candidates(sequences: &[Sequence]) -> Vec<Candidate<'_>> {
    let resume = (false, ResumeOrder::Rank);
    let rank = |s: &Sequence| Rank::new(s.service.key, resume, s.arrival, s.id);
    sequences.iter().map(|sequence| Candidate::new(rank(sequence), sequence)).collect()
}
