//! The drain of an engine in the Scheduler: live sequences may finish until a deadline, and are counted by how they
//! end.

use crate::messages::Drain;
use crate::request::{Drained, RequestFault};
use tiercel_device::Timestamp;
use tiercel_policy::scheduler::EndReport;

/// A drain that was asked for, and how the sequences ended so far.
pub(super) struct Draining {
    asked: Drain,
    ends: Drained,
}

impl Draining {
    pub(super) fn new(asked: Drain) -> Draining {
        Draining { asked, ends: Drained::default() }
    }

    /// Whether the grace period of the drain is over.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        now >= self.asked.deadline
    }

    /// Counts the end of a sequence.
    pub(super) fn ended(&mut self, report: &EndReport) {
        let ends = &mut self.ends;
        *match &report.outcome {
            Some(Ok(_)) => &mut ends.finished,
            Some(Err(RequestFault::ShuttingDown)) => &mut ends.ended,
            Some(Err(_)) | None => &mut ends.other,
        } += 1;
    }

    /// Reports to the caller of the drain that no sequence is left.
    pub(super) fn finish(self) {
        // Ignore that the caller may no longer wait for the end.
        let _ = self.asked.done.send(self.ends);
    }
}
