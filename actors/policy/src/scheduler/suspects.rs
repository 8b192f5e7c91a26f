//! Suspects: members of a failed step. Each runs alone until it has succeeded, or fails again and is found guilty.

use std::collections::BTreeSet;
use tiercel_device::SeqId;

/// Members of a failed step that have not run alone yet.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Suspects that have neither succeeded nor failed alone.
    members: BTreeSet<SeqId>,
    /// Whether the last plan was for a suspect alone, and the block store had no blocks for it.
    denied: bool,
}

impl Suspects {
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn members(&self) -> &BTreeSet<SeqId> {
        &self.members
    }

    pub(crate) fn contains(&self, seq: SeqId) -> bool {
        self.members.contains(&seq)
    }

    /// Makes the members of a failed step suspects.
    pub(crate) fn extend(&mut self, members: impl Iterator<Item = SeqId>) {
        self.members.extend(members);
    }

    /// Clears a sequence of suspicion, because it succeeded or ended; returns whether it was a suspect.
    pub(crate) fn remove(&mut self, seq: SeqId) -> bool {
        self.members.remove(&seq)
    }

    /// Records that a suspect was denied blocks: the next plan is for the other sequences, so that they make room.
    pub(crate) fn deny(&mut self) {
        self.denied = true;
    }

    /// Whether a suspect was denied blocks since the last call.
    pub(crate) fn take_denied(&mut self) -> bool {
        std::mem::take(&mut self.denied)
    }
}
