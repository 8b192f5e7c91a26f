//! Response streams of the clients: buffers of fixed size between the engine and clients that may read slowly.

use crate::messages::Outlet;
use crate::request::StreamEvent;
use crate::timeline::EndedTimeline;
use tiercel_device::{BySeq, SeqId, Timestamp};
use tiercel_policy::pressure::percent;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// Number of free entries that every stream's buffer reserves: one for the token of a step that is already submitted,
/// one for the stream's last event.
pub(crate) const RESERVED_EVENTS: usize = 2;

/// Open response streams, by sequence.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: BySeq<Stream>,
    /// Number of events that the buffers of all open streams can hold beside the reserved entries.
    capacity: usize,
}

#[derive(Debug)]
struct Stream {
    outlet: Outlet,
    /// Whether the stream ever had an event.
    begun: bool,
    /// Time since which the stream's buffer has been nearly full and its client has read nothing; `None` if the buffer
    /// has room.
    full_since: Option<Timestamp>,
    /// Number of free entries of the nearly full buffer when it was looked at last; if it has grown since, the client
    /// reads.
    free: usize,
}

/// State of a client's response stream after the delivery of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The stream's buffer has room for more tokens.
    Room,
    /// The stream's buffer is nearly full: put the sequence on hold until half of the buffer is free.
    NearlyFull,
    /// The client has closed the response stream, so the sequence is cancelled.
    Gone,
}

/// Sequences that need action because of how their clients read, found on a clock tick.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamCheck {
    /// Sequences whose clients have closed the response stream; they are cancelled.
    pub(crate) gone: Vec<SeqId>,
    /// Sequences on hold whose clients have read so much that half of the buffer is free; their hold ends.
    pub(crate) caught_up: Vec<SeqId>,
    /// Sequences whose clients have read nothing for longer than the stall timeout; they are ended with an error.
    pub(crate) stalled: Vec<SeqId>,
}

impl Streams {
    pub(crate) fn open(&mut self, seq: SeqId, outlet: Outlet) {
        self.capacity += room_of(&outlet.events);
        self.open.insert(seq, Stream { outlet, begun: false, full_since: None, free: 0 });
    }

    pub(crate) fn token(&mut self, seq: SeqId, event: StreamEvent, now: Timestamp) -> Delivered {
        let Some(stream) = self.open.get_mut(&seq) else { return Delivered::Gone };
        stream.begun = true;
        match stream.outlet.events.try_send(event) {
            Ok(()) if stream.outlet.events.capacity() > RESERVED_EVENTS => Delivered::Room,
            Ok(()) => {
                stream.full_since.get_or_insert(now);
                stream.free = stream.outlet.events.capacity();
                Delivered::NearlyFull
            }
            Err(TrySendError::Closed(_) | TrySendError::Full(_)) => Delivered::Gone,
        }
    }

    /// Sends the timeline of a sequence to the caller that asked for the timeline, if any. Then frees the sequence's
    /// permit, sends its last event, if any, and closes its response stream.
    pub(crate) fn close(
        &mut self,
        seq: SeqId,
        last: Option<StreamEvent>,
        timeline: Option<EndedTimeline>,
    ) {
        if let Some(stream) = self.open.remove(&seq) {
            let Outlet { events, permit, ended } = stream.outlet;
            self.capacity -= room_of(&events);
            if let (Some(ended), Some(timeline)) = (ended, timeline) {
                // Ignore a failed send: the one who asked for the timeline no longer waits for it.
                let _ = ended.send(timeline);
            }
            // The permit is freed before the client learns that its request ended, so that the client's next request
            // finds a free permit.
            drop(permit);
            // Ignore a failed send: a client that is gone needs no last event, and the buffer cannot be full, because
            // it reserves an entry for this event.
            if let Some(last) = last {
                let _ = events.try_send(last);
            }
        }
    }

    /// Returns the percentage of the buffers of all open response streams that holds unread events.
    pub(crate) fn buffered_percent(&self) -> f64 {
        // Skip streams that never had an event: most streams wait for their first token, and their buffers are empty.
        let begun = self.open.values().filter(|stream| stream.begun);
        let used = begun.map(|stream| {
            let events = &stream.outlet.events;
            events.max_capacity() - events.capacity()
        });
        percent(used.sum::<usize>() as u64, self.capacity as u64)
    }

    /// Looks at every response stream for clients that are gone, have caught up, or read nothing. Each list of
    /// sequences found is in ascending order.
    pub(crate) fn check(&mut self, now: Timestamp, stall_timeout_ms: u64) -> StreamCheck {
        let mut check = StreamCheck::default();
        for (seq, stream) in &mut self.open {
            let events = &stream.outlet.events;
            if events.is_closed() {
                check.gone.push(*seq);
            } else if let Some(since) = stream.full_since {
                let free = events.capacity();
                if free >= events.max_capacity() / 2 {
                    stream.full_since = None;
                    check.caught_up.push(*seq);
                } else if free > stream.free {
                    // The client is slow, but has read some tokens, so the stall timeout begins anew.
                    stream.full_since = Some(now);
                    stream.free = free;
                } else if now.since_us(since) >= stall_timeout_ms * 1000 {
                    check.stalled.push(*seq);
                }
            }
        }
        // A hash map is iterated in no fixed order, so the found sequences are sorted by id.
        for found in [&mut check.gone, &mut check.caught_up, &mut check.stalled] {
            found.sort_unstable();
        }
        check
    }
}

/// Returns the number of events that a buffer can hold beside the reserved entries.
fn room_of(events: &Sender<StreamEvent>) -> usize {
    events.max_capacity().saturating_sub(RESERVED_EVENTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};
    use tokio::sync::{Semaphore, mpsc};

    fn streams(capacity: usize) -> (Streams, mpsc::Receiver<StreamEvent>, Arc<Semaphore>) {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().expect("one permit");
        let (events, reader) = mpsc::channel(capacity);
        let mut streams = Streams::default();
        streams.open(SeqId(1), Outlet { events, permit, ended: None });
        (streams, reader, permits)
    }

    fn token(token: u32) -> StreamEvent {
        StreamEvent::Token { token, logprobs: None }
    }

    #[test]
    fn a_slow_reader_is_held_before_its_buffer_is_full_and_released_at_half() {
        let (mut streams, mut reader, _) = streams(6);
        let mut held_after = None;
        for i in 0..4 {
            if streams.token(SeqId(1), token(i), Timestamp(0)) == Delivered::NearlyFull {
                held_after = Some(i);
            }
        }
        assert_eq!(held_after, Some(3), "two places stay free");
        assert_eq!(streams.check(Timestamp(10), 1), StreamCheck::default());
        for _ in 0..2 {
            reader.try_recv().expect("a token");
        }
        assert_eq!(streams.check(Timestamp(10), 1).caught_up, [SeqId(1)]);
    }

    #[test]
    fn a_reader_that_reads_nothing_stalls_after_the_timeout() {
        let (mut streams, _reader, _) = streams(8);
        for i in 0..6 {
            streams.token(SeqId(1), token(i), Timestamp(1000));
        }
        assert_eq!(streams.check(Timestamp(1999), 1), StreamCheck::default());
        assert_eq!(streams.check(Timestamp(2000), 1).stalled, [SeqId(1)]);
    }

    #[test]
    fn a_reader_that_reads_slowly_does_not_stall() {
        let (mut streams, mut reader, _) = streams(12);
        for i in 0..10 {
            streams.token(SeqId(1), token(i), Timestamp(0));
        }
        for read in 1..=3 {
            reader.try_recv().expect("a token");
            assert_eq!(streams.check(Timestamp(read * 900), 1), StreamCheck::default());
        }
        assert_eq!(streams.check(Timestamp(3699), 1), StreamCheck::default());
        assert_eq!(streams.check(Timestamp(3700), 1).stalled, [SeqId(1)]);
    }

    #[test]
    fn closing_returns_the_permit_and_the_last_event_arrives() {
        let (mut streams, mut reader, permits) = streams(4);
        assert_eq!(permits.available_permits(), 0);
        streams.close(SeqId(1), Some(token(9)), None);
        assert_eq!(permits.available_permits(), 1);
        assert_eq!(reader.try_recv().expect("the last event"), token(9));
    }

    /// Number of free permits at the moment at which the reader of a response stream was woken.
    struct Woken(Arc<Semaphore>, AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0.available_permits(), Ordering::Relaxed);
        }
    }

    #[test]
    fn a_client_that_learns_of_the_end_finds_its_permit_free() {
        let (mut streams, mut reader, permits) = streams(4);
        let woken = Arc::new(Woken(permits, AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&woken));
        assert!(reader.poll_recv(&mut Context::from_waker(&waker)).is_pending());
        streams.close(SeqId(1), Some(token(9)), None);
        assert_eq!(woken.1.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_reader_that_left_is_noticed() {
        let (mut streams, reader, _) = streams(4);
        drop(reader);
        assert_eq!(streams.check(Timestamp(0), 1).gone, [SeqId(1)]);
        assert_eq!(streams.token(SeqId(1), token(0), Timestamp(0)), Delivered::Gone);
    }

    #[test]
    fn unread_events_are_a_share_of_the_room_of_the_open_streams_only() {
        // The buffers of 6 and 10 events have room for 4 and 8 beside the 2 reserved entries each.
        let (mut streams, _reader, _) = streams(6);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("one permit");
        let (events, _other_reader) = mpsc::channel(10);
        streams.open(SeqId(2), Outlet { events, permit, ended: None });
        for i in 0..3 {
            streams.token(SeqId(1), token(i), Timestamp(0));
        }
        assert_eq!(streams.buffered_percent(), 25.0, "3 of 4 + 8");
        streams.close(SeqId(2), None, None);
        assert_eq!(streams.buffered_percent(), 75.0, "3 of 4");
    }
}
