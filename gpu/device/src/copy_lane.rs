//! Order of the batches of copies in one direction. The thread that feeds a GPU and the mock device both use it, so that
//! the copies of a simulation run in the order of those on a GPU.

use std::collections::VecDeque;

/// Most batches of one direction that are at the link at once. One runs while the next is ready, so that the link never
/// waits for the host.
pub const COPIES_IN_FLIGHT: usize = 2;

/// Most batches of one direction that wait for their turn. The engine limits the blocks in transit, so that it does not
/// come near this limit.
const WAITING_MAX: usize = 1 << 16;

/// Batches of copies in one direction: those that wait for their turn, and the number of those in flight. `J` is a batch
/// with its callback.
///
/// Batches that sequences wait for start first, in order, while fewer than [`COPIES_IN_FLIGHT`] are in flight. A batch
/// ahead of need starts only if none waits and none is in flight. So a batch that a sequence waits for is behind one batch
/// ahead of need at most.
#[derive(Debug)]
pub(crate) struct CopyLane<J> {
    needed: VecDeque<J>,
    ahead: VecDeque<J>,
    in_flight: usize,
}

impl<J> Default for CopyLane<J> {
    fn default() -> CopyLane<J> {
        CopyLane { needed: VecDeque::new(), ahead: VecDeque::new(), in_flight: 0 }
    }
}

impl<J> CopyLane<J> {
    /// Queues a batch. Returns the batch if too many wait already.
    pub(crate) fn push(&mut self, job: J, ahead_of_need: bool) -> Result<(), J> {
        if self.needed.len() + self.ahead.len() >= WAITING_MAX {
            return Err(job);
        }
        let queue = if ahead_of_need { &mut self.ahead } else { &mut self.needed };
        queue.push_back(job);
        Ok(())
    }

    /// Takes the next batch that may start now. It is in flight until [`CopyLane::end`].
    pub(crate) fn start(&mut self) -> Option<J> {
        let next = match self.in_flight {
            0 => self.needed.pop_front().or_else(|| self.ahead.pop_front()),
            in_flight if in_flight < COPIES_IN_FLIGHT => self.needed.pop_front(),
            _ => None,
        };
        self.in_flight += usize::from(next.is_some());
        next
    }

    /// Records that a batch in flight has ended.
    pub(crate) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(needed: &[u32], ahead: &[u32]) -> CopyLane<u32> {
        let mut lane = CopyLane::default();
        ahead.iter().for_each(|job| lane.push(*job, true).expect("room"));
        needed.iter().for_each(|job| lane.push(*job, false).expect("room"));
        lane
    }

    #[test]
    fn batches_that_sequences_wait_for_overtake_those_ahead_of_need() {
        let mut lane = lane(&[1, 2, 3], &[8, 9]);
        let mut order = Vec::new();
        while let Some(job) = lane.start() {
            order.push(job);
            lane.end();
        }
        assert_eq!(order, [1, 2, 3, 8, 9]);
    }

    #[test]
    fn two_batches_are_in_flight_and_the_next_starts_when_one_has_ended() {
        let mut lane = lane(&[1, 2, 3], &[]);
        assert_eq!([lane.start(), lane.start(), lane.start()], [Some(1), Some(2), None]);
        lane.end();
        assert_eq!([lane.start(), lane.start()], [Some(3), None]);
    }

    #[test]
    fn one_batch_ahead_of_need_is_in_flight_and_a_needed_one_follows_it_at_once() {
        let mut lane = lane(&[], &[8, 9]);
        assert_eq!([lane.start(), lane.start()], [Some(8), None]);
        lane.push(1, false).expect("room");
        assert_eq!([lane.start(), lane.start()], [Some(1), None]);
        lane.end();
        assert_eq!(lane.start(), None, "batch 1 is in flight");
        lane.end();
        assert_eq!(lane.start(), Some(9));
    }

    #[test]
    fn too_many_waiting_batches_are_refused() {
        let mut lane = CopyLane::default();
        let refused = (0..=WAITING_MAX).map(|job| lane.push(job, job % 2 == 0));
        assert_eq!(refused.last(), Some(Err(WAITING_MAX)));
    }
}
