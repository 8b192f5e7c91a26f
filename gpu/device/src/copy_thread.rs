//! The OS thread that feeds the link of a device with batches of copies. It starts batches without waiting for them and
//! polls for their ends, so that the two directions run at once and a batch that a sequence waits for is behind few others.

use crate::copy_lane::CopyLane;
use crate::worker::{join, panic_text};
use crate::{CopyBatch, CopyDirection, CopyDone, CopyEngine, CopyError, CopyId, SubmitError};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Copy side of a device for a thread of its own: begins batches of copies, and tells which have ended. In each
/// direction, batches run in the order in which they began, at most [`COPIES_IN_FLIGHT`](crate::COPIES_IN_FLIGHT) at once;
/// the directions are independent of each other. A device whose copies block the thread copies in [`QueuedCopier::begin`].
pub trait QueuedCopier: Send + 'static {
    /// Begins a batch of copies. No copy of a batch that could not begin touches a block any more.
    ///
    /// # Errors
    /// [`CopyError`]; the batch is then not in flight.
    fn begin(&mut self, batch: &CopyBatch) -> Result<(), CopyError>;
    /// Whether the oldest batch in flight in a direction has ended or failed, so that the thread should call
    /// [`QueuedCopier::end`] now.
    fn has_ended(&mut self, direction: CopyDirection) -> bool;
    /// Waits for the oldest batch in flight in a direction. Returns the time for which the batch kept the link busy, us.
    ///
    /// # Errors
    /// [`CopyError`]; the content of the destination blocks is then undefined.
    fn end(&mut self, direction: CopyDirection) -> Result<u64, CopyError>;
    /// Copies one batch from begin to end, and returns the time for which it kept the link busy, us. No other batch of
    /// its direction may be in flight.
    ///
    /// # Errors
    /// [`CopyError`]; the content of the destination blocks is then undefined.
    fn copy(&mut self, batch: &CopyBatch) -> Result<u64, CopyError> {
        self.begin(batch)?;
        self.end(batch.direction)
    }
}

type Done = Box<dyn FnOnce(CopyDone) + Send>;
type CopyJob = (CopyBatch, Done);
type Lanes = [CopyLane<CopyJob>; 2];

/// Interval at which the copy thread polls for the ends of batches in flight.
const LOOKS: Duration = Duration::from_micros(50);

/// A [`CopyEngine`] that runs a [`QueuedCopier`] on its own thread. Dropping the `CopyEngine` waits for all submitted
/// batches and joins the thread.
pub struct CopyThread {
    lanes: Arc<Mutex<Lanes>>,
    /// Channel that wakes the thread when a batch was queued. Closing it ends the thread.
    bell: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CopyThread {
    /// Starts the thread that copies blocks.
    ///
    /// # Errors
    /// The operating system could not start a thread.
    pub fn start(copier: impl QueuedCopier) -> std::io::Result<CopyThread> {
        let lanes = Arc::new(Mutex::new(Lanes::default()));
        let (bell, rings) = bounded(1);
        let copies =
            Copies { copier, lanes: Arc::clone(&lanes), in_flight: Default::default(), lost: None };
        let thread = std::thread::Builder::new()
            .name("tiercel-copy".into())
            .spawn(move || copies.run(&rings))?;
        Ok(CopyThread { lanes, bell: Some(bell), thread: Some(thread) })
    }
}

impl CopyEngine for CopyThread {
    fn submit(
        &mut self,
        batch: CopyBatch,
        done: Box<dyn FnOnce(CopyDone) + Send>,
    ) -> Result<(), SubmitError> {
        let (lane, ahead_of_need) = (batch.direction.index(), batch.ahead_of_need);
        let pushed = lock(&self.lanes)[lane].push((batch, done), ahead_of_need);
        pushed.map_err(|_| SubmitError::Full)?;
        match self.bell.as_ref().map(|bell| bell.try_send(())) {
            // A full bell channel will wake the thread too: the thread has not taken the earlier ring yet.
            Some(Ok(()) | Err(TrySendError::Full(()))) => Ok(()),
            Some(Err(TrySendError::Disconnected(()))) | None => Err(SubmitError::Stopped),
        }
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        drop(self.bell.take());
        join(self.thread.take());
    }
}

/// Locks the queues. A panic of another thread cannot leave a queue half changed, so a poisoned lock is as good as any.
fn lock(lanes: &Mutex<Lanes>) -> MutexGuard<'_, Lanes> {
    lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the thread that feeds the link.
struct Copies<C> {
    copier: C,
    lanes: Arc<Mutex<Lanes>>,
    /// For each direction, the batches that were begun and whose ends are not reported yet, oldest first.
    in_flight: [VecDeque<(CopyId, Done)>; 2],
    /// Reason for which the device is lost; every batch is then answered with it.
    lost: Option<String>,
}

impl<C: QueuedCopier> Copies<C> {
    /// Loop of the copy thread: until no more batches can be submitted and the end of every submitted batch is reported.
    fn run(mut self, rings: &Receiver<()>) {
        loop {
            self.start_waiting();
            let busy = self.in_flight.iter().any(|batches| !batches.is_empty());
            let rung = match busy {
                true => rings.recv_timeout(LOOKS),
                false => rings.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let closed = rung == Err(RecvTimeoutError::Disconnected);
            if closed && busy {
                CopyDirection::BOTH.into_iter().for_each(|direction| self.end_oldest(direction));
            } else if closed && !self.start_waiting() {
                return;
            }
        }
    }

    /// Begins the batches that may start, the directions in turn. Returns whether there was one.
    fn start_waiting(&mut self) -> bool {
        let mut started = false;
        loop {
            let mut more = false;
            for direction in CopyDirection::BOTH {
                let job = lock(&self.lanes)[direction.index()].start();
                if let Some(job) = job {
                    self.begin(job);
                    more = true;
                }
            }
            started |= more;
            // Reports at once what has ended: a device whose copies block the thread has copied in `begin`. What waits
            // for the place of a batch that has ended may start now.
            if !self.end_ended() && !more {
                return started;
            }
        }
    }

    fn begin(&mut self, (batch, done): CopyJob) {
        let (id, direction) = (batch.id, batch.direction);
        match self.attempt(|copier| copier.begin(&batch)) {
            Ok(()) => self.in_flight[direction.index()].push_back((id, done)),
            Err(error) => self.report(direction, (id, done), Err(error)),
        }
    }

    /// Reports the batches in flight that have ended. Returns whether there was one.
    fn end_ended(&mut self) -> bool {
        let mut ended = false;
        for direction in CopyDirection::BOTH {
            while !self.in_flight[direction.index()].is_empty()
                && self.attempt(|copier| Ok(copier.has_ended(direction))).unwrap_or(true)
            {
                self.end_oldest(direction);
                ended = true;
            }
        }
        ended
    }

    /// Waits for the oldest batch in flight in a direction, if there is one, and reports its end.
    fn end_oldest(&mut self, direction: CopyDirection) {
        if let Some(oldest) = self.in_flight[direction.index()].pop_front() {
            let result = self.attempt(|copier| copier.end(direction));
            self.report(direction, oldest, result);
        }
    }

    fn report(
        &mut self,
        direction: CopyDirection,
        (id, done): (CopyId, Done),
        result: Result<u64, CopyError>,
    ) {
        lock(&self.lanes)[direction.index()].end();
        let duration_us = *result.as_ref().unwrap_or(&0);
        done(CopyDone { id, duration_us, result: result.map(drop) });
    }

    /// Calls the device's copier, unless the device is lost. If the call panics or reports the loss of the device, all
    /// later calls fail with that loss: after a panic, copies may still be running on blocks that must not be used.
    fn attempt<T>(
        &mut self,
        what: impl FnOnce(&mut C) -> Result<T, CopyError>,
    ) -> Result<T, CopyError> {
        if let Some(why) = &self.lost {
            return Err(CopyError::DeviceLost(why.clone()));
        }
        let copier = &mut self.copier;
        let result = catch_unwind(AssertUnwindSafe(|| what(copier)))
            .unwrap_or_else(|panic| Err(CopyError::DeviceLost(panic_text(panic.as_ref()))));
        if let Err(CopyError::DeviceLost(why)) = &result {
            self.lost = Some(why.clone());
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CopyDirection::{In, Out};
    use std::sync::mpsc;

    /// Test copier that reports the batches that it begins, and ends them when the test says so. Batch 4 cannot begin,
    /// batch 5 fails, the device is lost with batch 6, and batch 7 panics.
    struct Scripted {
        begun: mpsc::Sender<u64>,
        in_flight: [VecDeque<u64>; 2],
        /// Batches that the test lets end.
        released: Arc<Mutex<Vec<u64>>>,
    }

    impl QueuedCopier for Scripted {
        fn begin(&mut self, batch: &CopyBatch) -> Result<(), CopyError> {
            let id = batch.id.0;
            self.begun.send(id).expect("the test listens");
            match id {
                4 => return Err(CopyError::Failed("refused".into())),
                7 => panic!("a bug"),
                _ => self.in_flight[batch.direction.index()].push_back(id),
            }
            Ok(())
        }

        fn has_ended(&mut self, direction: CopyDirection) -> bool {
            let oldest = self.in_flight[direction.index()].front().expect("asked about none");
            self.released.lock().expect("no panic").contains(oldest)
        }

        fn end(&mut self, direction: CopyDirection) -> Result<u64, CopyError> {
            match self.in_flight[direction.index()].pop_front() {
                Some(5) => Err(CopyError::Failed("torn".into())),
                Some(6) => Err(CopyError::DeviceLost("gone".into())),
                Some(id) => Ok(id * 10),
                None => panic!("nothing is in flight"),
            }
        }
    }

    /// Copy thread on a scripted copier, and what the test hears of it.
    struct Bench {
        device: CopyThread,
        begun: mpsc::Receiver<u64>,
        released: Arc<Mutex<Vec<u64>>>,
        answers: (mpsc::Sender<CopyDone>, mpsc::Receiver<CopyDone>),
    }

    impl Bench {
        fn new() -> Bench {
            let ((begun, heard), released) = (mpsc::channel(), Arc::default());
            let copier =
                Scripted { begun, in_flight: Default::default(), released: Arc::clone(&released) };
            let device = CopyThread::start(copier).expect("a thread");
            Bench { device, begun: heard, released, answers: mpsc::channel() }
        }

        fn submit(&mut self, id: u64, direction: CopyDirection, ahead_of_need: bool) {
            let batch = CopyBatch::needed(CopyId(id), direction, Vec::new());
            let tx = self.answers.0.clone();
            let done = Box::new(move |done| tx.send(done).expect("the test listens"));
            let batch = CopyBatch { ahead_of_need, ..batch };
            self.device.submit(batch, done).expect("room");
        }

        /// Submits a batch that a sequence waits for, and waits until it has begun.
        fn begin(&mut self, id: u64, direction: CopyDirection) {
            self.submit(id, direction, false);
            assert_eq!(self.begun.recv(), Ok(id));
        }

        /// Lets a batch end and returns the answer that comes next.
        fn end(&self, id: u64) -> (u64, u64, Result<(), CopyError>) {
            self.released.lock().expect("no panic").push(id);
            self.answer()
        }

        fn answer(&self) -> (u64, u64, Result<(), CopyError>) {
            let done = self.answers.1.recv().expect("an answer");
            (done.id.0, done.duration_us, done.result)
        }
    }

    #[test]
    fn a_batch_in_ends_while_batches_out_are_in_flight() {
        let mut bench = Bench::new();
        bench.begin(1, Out);
        bench.begin(2, Out);
        bench.begin(3, In);
        assert_eq!(bench.end(3), (3, 30, Ok(())));
        assert_eq!(bench.end(1), (1, 10, Ok(())));
        assert_eq!(bench.end(2), (2, 20, Ok(())));
    }

    #[test]
    fn a_batch_that_a_sequence_waits_for_overtakes_batches_ahead_of_need() {
        let mut bench = Bench::new();
        bench.begin(1, Out);
        for (id, ahead) in [(8, true), (9, true), (2, false), (3, false)] {
            bench.submit(id, Out, ahead);
        }
        for id in [1, 2, 3, 8, 9] {
            assert_eq!(bench.end(id).0, id);
        }
        assert_eq!(bench.begun.try_iter().collect::<Vec<_>>(), [2, 3, 8, 9]);
    }

    #[test]
    fn no_more_batches_of_a_direction_begin_than_may_be_in_flight() {
        let mut bench = Bench::new();
        bench.begin(1, In);
        bench.begin(2, In);
        bench.submit(3, In, false);
        // Batch 8 was submitted after batch 3 and has begun, so the thread has seen batch 3 and left it waiting.
        bench.begin(8, Out);
        assert_eq!(bench.end(1).0, 1);
        assert_eq!(bench.begun.recv(), Ok(3));
    }

    #[test]
    fn a_batch_that_fails_costs_no_other() {
        let mut bench = Bench::new();
        bench.begin(4, Out);
        assert_eq!(bench.answer(), (4, 0, Err(CopyError::Failed("refused".into()))));
        bench.begin(5, Out);
        bench.begin(1, Out);
        assert_eq!(bench.end(5), (5, 0, Err(CopyError::Failed("torn".into()))));
        assert_eq!(bench.end(1), (1, 10, Ok(())));
    }

    #[test]
    fn when_the_device_is_lost_every_batch_is_answered_with_the_cause() {
        let lost = |why: &str| Err(CopyError::DeviceLost(why.into()));
        let mut bench = Bench::new();
        for (id, direction) in [(6, Out), (1, Out), (2, In)] {
            bench.begin(id, direction);
        }
        bench.submit(3, Out, false);
        assert_eq!(bench.end(6), (6, 0, lost("gone")));
        let mut others = [bench.answer(), bench.answer(), bench.answer()];
        others.sort_by_key(|(id, ..)| *id);
        assert_eq!(others, [1, 2, 3].map(|id| (id, 0, lost("gone"))));
        let mut bench = Bench::new();
        bench.begin(7, In);
        assert_eq!(bench.answer(), (7, 0, lost("a bug")));
    }

    #[test]
    fn dropping_the_copy_side_waits_for_every_batch() {
        let mut bench = Bench::new();
        for id in [1, 2, 3, 8] {
            bench.submit(id, Out, id == 8);
        }
        drop(bench.device);
        let ids: Vec<u64> = bench.answers.1.try_iter().map(|done| done.id.0).collect();
        assert_eq!(ids, [1, 2, 3, 8]);
    }
}
