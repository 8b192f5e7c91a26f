//! The OS thread that feeds the link of a device with batches of copies. It starts batches without waiting for them and
//! polls for their ends, so that the two directions run at once and a batch that a sequence waits for is behind few
//! other batches.

use crate::copy_queue::{CopyQueue, WAITING_MAX};
use crate::guarded::Guarded;
use crate::worker::{POLL_INTERVAL, join, send};
use crate::{CopyBatch, CopyDirection, CopyDone, CopyEngine, CopyError, CopyId, SubmitError};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// Copy side of a device for a thread of its own: begins batches of copies, and reports which batches have ended. In
/// each direction, batches run in the order in which they began, at most [`COPIES_IN_FLIGHT`](crate::COPIES_IN_FLIGHT)
/// at once; the directions are independent of each other. If a copy on the device blocks the thread,
/// [`QueuedCopier::begin`] does the whole copy.
pub trait QueuedCopier: Send + 'static {
    /// Begins a batch of copies. If the batch could not begin and the device is not lost, none of its copies touches a
    /// block any more.
    ///
    /// # Errors
    /// [`CopyError`]; the batch is then not in flight.
    fn begin(&mut self, batch: &CopyBatch) -> Result<(), CopyError>;
    /// Whether the oldest batch in flight in a direction has ended or failed, so that the thread should call
    /// [`QueuedCopier::end`] now.
    fn has_ended(&mut self, direction: CopyDirection) -> bool;
    /// Waits for the oldest batch in flight in a direction. Returns the time for which the batch kept the link busy,
    /// us.
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

/// A [`CopyEngine`] that runs a [`QueuedCopier`] on its own thread. Dropping the `CopyEngine` waits for the batches in
/// flight, fails the batches that have not begun, and joins the thread.
pub struct CopyThread {
    /// Channel of submitted batches. Closing it ends the thread.
    jobs: Option<Sender<CopyJob>>,
    thread: Option<JoinHandle<()>>,
}

impl CopyThread {
    /// Starts the thread that copies blocks.
    ///
    /// # Errors
    /// The operating system could not start a thread.
    pub fn start(copier: impl QueuedCopier) -> std::io::Result<CopyThread> {
        let (jobs, submitted) = bounded(WAITING_MAX);
        let (queues, in_flight) = Default::default();
        let copies = Copies { copier: Guarded::new(copier), submitted, queues, in_flight };
        let thread =
            std::thread::Builder::new().name("tiercel-copy".into()).spawn(move || copies.run())?;
        Ok(CopyThread { jobs: Some(jobs), thread: Some(thread) })
    }
}

impl CopyEngine for CopyThread {
    fn submit(
        &mut self,
        batch: CopyBatch,
        done: Box<dyn FnOnce(CopyDone) + Send>,
    ) -> Result<(), SubmitError> {
        send(self.jobs.as_ref(), (batch, done))
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        join(self.thread.take());
    }
}

/// State of the thread that feeds the link.
struct Copies<C> {
    copier: Guarded<C>,
    submitted: Receiver<CopyJob>,
    /// Batches that have not begun, by direction.
    queues: [CopyQueue<CopyJob>; 2],
    /// For each direction, the batches that were begun and whose ends are not reported yet, oldest first.
    in_flight: [VecDeque<(CopyId, Done)>; 2],
}

impl<C: QueuedCopier> Copies<C> {
    /// Loop of the copy thread, until no more batches can be submitted.
    fn run(mut self) {
        loop {
            self.begin_waiting();
            // Without a batch in flight, no batch waits for its turn either.
            let idle = self.in_flight.iter().all(VecDeque::is_empty);
            let next = match idle {
                true => self.submitted.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => self.submitted.recv_timeout(POLL_INTERVAL),
            };
            match next {
                Ok(job) => self.accept(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.close(),
            }
        }
    }

    /// Queues a batch. A batch for which the queue has no room fails.
    fn accept(&mut self, job: CopyJob) {
        let (direction, ahead_of_need) = (job.0.direction, job.0.ahead_of_need);
        if let Err(job) = self.queues[direction.index()].push(job, ahead_of_need) {
            fail(job, &SubmitError::Full);
        }
    }

    /// Begins the batches that may begin, the directions in turn, and reports the batches that have ended, until no
    /// batch may begin and no batch has ended.
    fn begin_waiting(&mut self) {
        loop {
            let mut goes_on = false;
            for direction in CopyDirection::BOTH {
                while let Ok(job) = self.submitted.try_recv() {
                    self.accept(job);
                }
                if let Some(job) = self.queues[direction.index()].next() {
                    self.begin(job);
                    goes_on = true;
                }
                // If a copy on the device blocks the thread, the batch has ended when `begin` returns.
                goes_on |= self.end_ended();
            }
            if !goes_on {
                return;
            }
        }
    }

    fn begin(&mut self, (batch, done): CopyJob) {
        let (id, direction) = (batch.id, batch.direction);
        match self.copier.call(|copier| copier.begin(&batch)) {
            Ok(()) => self.in_flight[direction.index()].push_back((id, done)),
            Err(error) => self.report(direction, (id, done), Err(error)),
        }
    }

    /// Reports the batches in flight that have ended. Returns whether there was one.
    fn end_ended(&mut self) -> bool {
        let mut ended = false;
        for direction in CopyDirection::BOTH {
            while !self.in_flight[direction.index()].is_empty()
                && self
                    .copier
                    .call(|copier| Ok::<_, CopyError>(copier.has_ended(direction)))
                    .unwrap_or(true)
            {
                self.end_oldest(direction);
                ended = true;
            }
        }
        ended
    }

    /// Waits for the oldest batch in flight in a direction, if there is one, and reports its end. Returns whether there
    /// was one.
    fn end_oldest(&mut self, direction: CopyDirection) -> bool {
        let Some(oldest) = self.in_flight[direction.index()].pop_front() else { return false };
        let result = self.copier.call(|copier| copier.end(direction));
        self.report(direction, oldest, result);
        true
    }

    fn report(
        &mut self,
        direction: CopyDirection,
        (id, done): (CopyId, Done),
        result: Result<u64, CopyError>,
    ) {
        self.queues[direction.index()].end();
        let duration_us = *result.as_ref().unwrap_or(&0);
        done(CopyDone { id, duration_us, result: result.map(drop) });
    }

    /// Fails the batches that have not begun: no sequence needs their blocks any more. Waits for the batches in flight.
    fn close(mut self) {
        self.queues
            .iter_mut()
            .flat_map(CopyQueue::drain)
            .for_each(|job| fail(job, &SubmitError::Stopped));
        for direction in CopyDirection::BOTH {
            while self.end_oldest(direction) {}
        }
    }
}

/// Reports a batch that has not begun as failed.
fn fail((batch, done): CopyJob, why: &SubmitError) {
    let result = Err(CopyError::Failed(why.to_string()));
    done(CopyDone { id: batch.id, duration_us: 0, result });
}

#[cfg(test)]
mod tests {
    use super::*;
    use CopyDirection::{In, Out};
    use std::sync::{Arc, Mutex, mpsc};

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

    /// Copy thread on a scripted copier, and the channels on which the test receives begins and answers.
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
    fn dropping_the_copy_side_waits_for_batches_in_flight_and_fails_the_others() {
        let mut bench = Bench::new();
        bench.begin(1, Out);
        bench.begin(2, In);
        bench.begin(3, Out);
        bench.submit(9, Out, true);
        drop(bench.device);
        let mut answers: Vec<_> =
            bench.answers.1.try_iter().map(|done| (done.id.0, done.result)).collect();
        answers.sort_by_key(|(id, _)| *id);
        let stopped = CopyError::Failed(SubmitError::Stopped.to_string());
        assert_eq!(answers, [(1, Ok(())), (2, Ok(())), (3, Ok(())), (9, Err(stopped))]);
    }
}
