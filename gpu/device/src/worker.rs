//! The OS thread that runs steps for a device whose calls block. A bounded channel feeds the thread.

use crate::guarded::Guarded;
use crate::{StepBatch, StepDone, StepError, StepId, StepOutput, StepRunner, SubmitError};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::Duration;

/// Runner of steps for a thread of its own: begins steps and waits for their ends, in order. A device that computes
/// while its thread does other work may still run one step when the next is begun.
pub trait QueuedRunner: Send + 'static {
    /// Whether the device can begin the given step only when all steps before it have ended. If so, the thread that
    /// runs the device's steps waits for the earlier steps first.
    fn waits(&self, _batch: &StepBatch) -> bool {
        false
    }
    /// Begins a step. A step that could not begin is never waited for.
    ///
    /// # Errors
    /// [`StepError`]; nothing that the step wrote is then valid.
    fn begin(&mut self, batch: &StepBatch) -> Result<(), StepError>;
    /// Completes the newest step, if the device needs more for it than [`QueuedRunner::begin`] could give, because a
    /// step before it had not ended. The thread calls this when that step has ended and its outcome is reported. An
    /// error becomes the outcome of the newest step.
    fn proceed(&mut self) {}
    /// Whether the oldest step in progress has ended or failed, so that the thread should call [`QueuedRunner::end`]
    /// now.
    fn has_ended(&mut self) -> bool;
    /// Waits for the oldest step that was begun and not waited for yet, and returns its output.
    ///
    /// # Errors
    /// [`StepError`]; nothing that the step wrote is then valid.
    fn end(&mut self) -> Result<StepOutput, StepError>;
    /// Runs one step from begin to end. No other step may be in progress.
    ///
    /// # Errors
    /// [`StepError`]; nothing that the step wrote is then valid.
    fn run(&mut self, batch: &StepBatch) -> Result<StepOutput, StepError> {
        self.begin(batch)?;
        self.end()
    }
}

type StepJob = (StepBatch, Box<dyn FnOnce(StepDone) + Send>);

/// A [`StepRunner`] that runs a [`QueuedRunner`] on its own thread. Dropping the `StepRunner` joins the thread.
pub struct StepThread {
    jobs: Option<Sender<StepJob>>,
    thread: Option<JoinHandle<()>>,
}

impl StepThread {
    /// Starts the thread that runs steps. `depth` is the device's `max_steps_in_flight`.
    ///
    /// # Errors
    /// The operating system could not start a thread.
    pub fn start(depth: usize, runner: impl QueuedRunner) -> std::io::Result<StepThread> {
        let depth = depth.max(1);
        let (jobs, work) = bounded::<StepJob>(depth);
        let steps =
            Steps { runner: Guarded::new(runner), begun: VecDeque::with_capacity(depth), depth };
        let thread = std::thread::Builder::new()
            .name("tiercel-device".into())
            .spawn(move || steps.run(&work))?;
        Ok(StepThread { jobs: Some(jobs), thread: Some(thread) })
    }
}

/// Interval at which the step thread polls for the end of the oldest step, while it could still accept another step,
/// and at which the copy thread polls for the ends of batches, while a batch is in flight. Mostly the next step is
/// submitted within one interval; then the step thread accepts no further step, and blocks until the oldest step ends.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A step that the thread has begun and whose end is not reported yet.
struct Begun {
    id: StepId,
    done: Box<dyn FnOnce(StepDone) + Send>,
    /// Error of a step that could not begin. It is reported in order, after the ends of the steps before it.
    error: Option<StepError>,
}

/// State of the thread that runs steps.
struct Steps<R> {
    runner: Guarded<R>,
    begun: VecDeque<Begun>,
    depth: usize,
}

impl<R: QueuedRunner> Steps<R> {
    /// Loop of the step thread: runs steps until no more can be submitted and the end of every submitted step is
    /// reported.
    fn run(mut self, work: &Receiver<StepJob>) {
        loop {
            let next = match self.begun.len() {
                0 => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                begun if begun < self.depth => work.recv_timeout(POLL_INTERVAL),
                _ => Err(RecvTimeoutError::Timeout),
            };
            let ended = match next {
                Ok(job) => {
                    self.begin(job);
                    self.begun.len() >= self.depth
                }
                Err(RecvTimeoutError::Disconnected) if self.begun.is_empty() => return,
                Err(RecvTimeoutError::Disconnected) => true,
                Err(RecvTimeoutError::Timeout) => {
                    self.begun.len() >= self.depth || self.oldest_has_ended()
                }
            };
            if ended {
                self.end();
            }
        }
    }

    fn begin(&mut self, (batch, done): StepJob) {
        if self.runner.call(|runner| Ok::<_, StepError>(runner.waits(&batch))).unwrap_or(false) {
            while !self.begun.is_empty() {
                self.end();
            }
        }
        let error = self.runner.call(|runner| runner.begin(&batch)).err();
        self.begun.push_back(Begun { id: batch.id, done, error });
    }

    fn oldest_has_ended(&mut self) -> bool {
        let failed = self.begun.front().is_some_and(|oldest| oldest.error.is_some());
        failed || self.runner.call(|runner| Ok::<_, StepError>(runner.has_ended())).unwrap_or(true)
    }

    /// Waits for the oldest step in progress and reports its outcome to the callback of the step. Then lets the next
    /// step proceed, which the device may be waiting for.
    fn end(&mut self) {
        let Some(Begun { id, done, error }) = self.begun.pop_front() else { return };
        let result = match error {
            Some(error) => Err(error),
            None => self.runner.call(R::end),
        };
        done(StepDone { id, result });
        if !self.begun.is_empty() {
            // A loss of the device is kept, and every later step fails with it.
            let _ = self.runner.call(|runner| {
                runner.proceed();
                Ok::<_, StepError>(())
            });
        }
    }
}

impl StepRunner for StepThread {
    fn submit(
        &mut self,
        batch: StepBatch,
        done: Box<dyn FnOnce(StepDone) + Send>,
    ) -> Result<(), SubmitError> {
        send(self.jobs.as_ref(), (batch, done))
    }
}

impl Drop for StepThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        join(self.thread.take());
    }
}

/// Submits a job to a thread of the device without waiting.
pub(crate) fn send<T>(jobs: Option<&Sender<T>>, job: T) -> Result<(), SubmitError> {
    match jobs.map(|jobs| jobs.try_send(job)) {
        Some(Ok(())) => Ok(()),
        Some(Err(TrySendError::Full(_))) => Err(SubmitError::Full),
        Some(Err(TrySendError::Disconnected(_))) | None => Err(SubmitError::Stopped),
    }
}

pub(crate) fn join(thread: Option<JoinHandle<()>>) {
    // Joins the thread, unless this is the thread itself, and ignores the result: the thread's loop catches panics of
    // the device, so there is nothing more to report.
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
    {
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests;
