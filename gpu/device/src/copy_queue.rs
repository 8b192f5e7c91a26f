//! Order of the batches of copies in one direction. The thread that feeds a GPU and the mock device both use it, so
//! that the copies of a simulation run in the order of the copies on a GPU.

use std::collections::VecDeque;

/// Most batches of one direction that are at the link at once. One runs while the next is ready, so that the link never
/// waits for the host.
pub const COPIES_IN_FLIGHT: usize = 2;

/// Most batches of one direction that wait for their turn. The engine limits the blocks in transit (256 MiB by
/// default), so that far fewer batches wait.
pub(crate) const WAITING_MAX: usize = 1 << 14;

/// Batches of copies in one direction: the batches that wait for their turn, and the number of batches in flight. `J`
/// is a batch with its callback.
///
/// Batches that sequences wait for start first, in order, while fewer than [`COPIES_IN_FLIGHT`] are in flight. A batch
/// ahead of need starts only if no needed batch waits and no batch is in flight. So at most one batch ahead of need
/// delays a needed batch.
#[derive(Debug)]
pub(crate) struct CopyQueue<J> {
    needed: VecDeque<J>,
    ahead: VecDeque<J>,
    in_flight: usize,
}

impl<J> Default for CopyQueue<J> {
    fn default() -> CopyQueue<J> {
        CopyQueue { needed: VecDeque::new(), ahead: VecDeque::new(), in_flight: 0 }
    }
}

impl<J> CopyQueue<J> {
    /// Queues a batch. Returns the batch if too many wait already.
    pub(crate) fn push(&mut self, job: J, ahead_of_need: bool) -> Result<(), J> {
        if self.needed.len() + self.ahead.len() >= WAITING_MAX {
            return Err(job);
        }
        let queue = if ahead_of_need { &mut self.ahead } else { &mut self.needed };
        queue.push_back(job);
        Ok(())
    }

    /// Takes the next batch that may start now. It is in flight until [`CopyQueue::end`].
    pub(crate) fn next(&mut self) -> Option<J> {
        let next = match self.in_flight {
            0 => self.needed.pop_front().or_else(|| self.ahead.pop_front()),
            in_flight if in_flight < COPIES_IN_FLIGHT => self.needed.pop_front(),
            _ => None,
        };
        self.in_flight += usize::from(next.is_some());
        next
    }

    /// Takes all batches that wait for their turn.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = J> {
        self.needed.drain(..).chain(self.ahead.drain(..))
    }

    /// Records that a batch in flight has ended.
    pub(crate) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(needed: &[u32], ahead: &[u32]) -> CopyQueue<u32> {
        let mut queue = CopyQueue::default();
        ahead.iter().for_each(|job| queue.push(*job, true).expect("room"));
        needed.iter().for_each(|job| queue.push(*job, false).expect("room"));
        queue
    }

    #[test]
    fn batches_that_sequences_wait_for_overtake_batches_ahead_of_need() {
        let mut queue = queue(&[1, 2, 3], &[8, 9]);
        let mut order = Vec::new();
        while let Some(job) = queue.next() {
            order.push(job);
            queue.end();
        }
        assert_eq!(order, [1, 2, 3, 8, 9]);
    }

    #[test]
    fn two_batches_are_in_flight_and_the_next_starts_when_one_has_ended() {
        let mut queue = queue(&[1, 2, 3], &[]);
        assert_eq!([queue.next(), queue.next(), queue.next()], [Some(1), Some(2), None]);
        queue.end();
        assert_eq!([queue.next(), queue.next()], [Some(3), None]);
    }

    #[test]
    fn one_batch_ahead_of_need_is_in_flight_and_a_needed_one_follows_it_at_once() {
        let mut queue = queue(&[], &[8, 9]);
        assert_eq!([queue.next(), queue.next()], [Some(8), None]);
        queue.push(1, false).expect("room");
        assert_eq!([queue.next(), queue.next()], [Some(1), None]);
        queue.end();
        assert_eq!(queue.next(), None, "batch 1 is in flight");
        queue.end();
        assert_eq!(queue.next(), Some(9));
    }

    #[test]
    fn too_many_waiting_batches_are_refused() {
        let mut queue = CopyQueue::default();
        let refused = (0..=WAITING_MAX).map(|job| queue.push(job, job % 2 == 0));
        assert_eq!(refused.last(), Some(Err(WAITING_MAX)));
    }
}
