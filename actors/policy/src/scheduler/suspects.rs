//! Suspects: sequences of a failed step, one of which may have caused the failure. Each runs alone until it succeeds
//! and is cleared, or fails again and its request ends.

use std::collections::BTreeSet;
use tiercel_device::SeqId;

/// Suspects: sequences of a failed step that have neither succeeded nor failed alone yet.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Sequences of a failed step that have neither succeeded nor failed alone.
    members: BTreeSet<SeqId>,
    /// Whether the last plan tried a suspect alone, and the block store had no blocks for it.
    denied: bool,
}

impl Suspects {
    pub(crate) fn members(&self) -> &BTreeSet<SeqId> {
        &self.members
    }

    pub(crate) fn contains(&self, seq: SeqId) -> bool {
        self.members.contains(&seq)
    }

    /// Makes the sequences of a failed step suspects.
    pub(crate) fn extend(&mut self, members: impl Iterator<Item = SeqId>) {
        self.members.extend(members);
    }

    /// Removes a sequence from the suspects (sequences that may have made a step fail), because a step with it
    /// succeeded or it ended; returns whether it was a suspect.
    pub(crate) fn remove(&mut self, seq: SeqId) -> bool {
        self.members.remove(&seq)
    }

    /// Records that a suspect was denied blocks, so that the next plan runs the other sequences, which make room.
    pub(crate) fn deny(&mut self) {
        self.denied = true;
    }

    /// Whether a suspect was denied blocks since the last call.
    pub(crate) fn take_denied(&mut self) -> bool {
        std::mem::take(&mut self.denied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_of_a_failed_step_are_suspects_until_they_are_cleared() {
        let mut suspects = Suspects::default();
        suspects.extend([SeqId(1), SeqId(2)].into_iter());
        assert!(suspects.contains(SeqId(1)) && !suspects.contains(SeqId(3)));
        assert!(suspects.remove(SeqId(1)) && !suspects.contains(SeqId(1)));
        assert!(suspects.contains(SeqId(2)));
    }
}
