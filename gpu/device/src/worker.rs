//! Device and copy threads: plain OS threads fed by bounded channels, for devices whose work blocks.

use crate::{
    Clock, CopyBatch, CopyDone, CopyEngine, CopyError, StepBatch, StepDone, StepError, StepOutput,
    StepRunner, SubmitError,
};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

/// Computes a step on the calling thread.
pub trait BlockingRunner: Send + 'static {
    /// Runs one step to its end.
    ///
    /// # Errors
    /// [`StepError`]; nothing the step wrote may then be believed.
    fn run(&mut self, batch: &StepBatch) -> Result<StepOutput, StepError>;
}

/// Copies blocks on the calling thread.
pub trait BlockingCopier: Send + 'static {
    /// Copies one batch.
    ///
    /// # Errors
    /// [`CopyError`]; the destinations are then undefined.
    fn copy(&mut self, batch: &CopyBatch) -> Result<(), CopyError>;
}

type StepJob = (StepBatch, Box<dyn FnOnce(StepDone) + Send>);
type CopyJob = (CopyBatch, Box<dyn FnOnce(CopyDone) + Send>);

/// A [`StepRunner`] that runs a [`BlockingRunner`] on its own thread. Dropping it joins the thread.
pub struct StepThread {
    jobs: Option<Sender<StepJob>>,
    thread: Option<JoinHandle<()>>,
}

impl StepThread {
    /// Starts the thread. `depth` is the device's `max_steps_in_flight`.
    ///
    /// # Errors
    /// The operating system could not start a thread.
    pub fn start(depth: usize, runner: impl BlockingRunner) -> std::io::Result<StepThread> {
        let (jobs, work) = bounded::<StepJob>(depth.max(1));
        let thread = std::thread::Builder::new()
            .name("tiercel-device".into())
            .spawn(move || step_loop(&work, runner))?;
        Ok(StepThread { jobs: Some(jobs), thread: Some(thread) })
    }
}

fn step_loop(work: &Receiver<StepJob>, mut runner: impl BlockingRunner) {
    let mut lost: Option<String> = None;
    for (batch, done) in work {
        let result = match &lost {
            Some(why) => Err(StepError::DeviceLost(why.clone())),
            // A panic in a kernel must not leave the engine waiting for an answer that never comes.
            None => catch_unwind(AssertUnwindSafe(|| runner.run(&batch)))
                .unwrap_or_else(|panic| Err(StepError::DeviceLost(panic_text(panic.as_ref())))),
        };
        if let Err(StepError::DeviceLost(why)) = &result {
            lost = Some(why.clone());
        }
        done(StepDone { id: batch.id, result });
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

/// A [`CopyEngine`] that runs a [`BlockingCopier`] on its own thread. Dropping it joins the thread.
pub struct CopyThread {
    jobs: Option<Sender<CopyJob>>,
    thread: Option<JoinHandle<()>>,
}

impl CopyThread {
    /// Starts the thread; at most `depth` batches wait.
    ///
    /// # Errors
    /// The operating system could not start a thread.
    pub fn start(depth: usize, copier: impl BlockingCopier) -> std::io::Result<CopyThread> {
        let (jobs, work) = bounded::<CopyJob>(depth.max(1));
        let thread = std::thread::Builder::new()
            .name("tiercel-copy".into())
            .spawn(move || copy_loop(&work, copier))?;
        Ok(CopyThread { jobs: Some(jobs), thread: Some(thread) })
    }
}

fn copy_loop(work: &Receiver<CopyJob>, mut copier: impl BlockingCopier) {
    let clock = Clock::wall();
    for (batch, done) in work {
        let start = clock.now();
        let result = catch_unwind(AssertUnwindSafe(|| copier.copy(&batch)))
            .unwrap_or_else(|panic| Err(CopyError::Failed(panic_text(panic.as_ref()))));
        done(CopyDone { id: batch.id, duration_us: clock.now().since_us(start), result });
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

fn send<T>(jobs: Option<&Sender<T>>, job: T) -> Result<(), SubmitError> {
    match jobs.map(|jobs| jobs.try_send(job)) {
        Some(Ok(())) => Ok(()),
        Some(Err(TrySendError::Full(_))) => Err(SubmitError::Full),
        Some(Err(TrySendError::Disconnected(_))) | None => Err(SubmitError::Stopped),
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    // The loop catches panics of the device; the join result holds nothing more to report.
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
    {
        let _ = thread.join();
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepId;
    use std::sync::mpsc;

    struct Panicking;
    impl BlockingRunner for Panicking {
        fn run(&mut self, batch: &StepBatch) -> Result<StepOutput, StepError> {
            if batch.id == StepId(2) {
                panic!("kernel fault");
            }
            Ok(StepOutput::default())
        }
    }

    fn batch(id: u64) -> StepBatch {
        StepBatch { id: StepId(id), starts: vec![], ends: vec![], slices: vec![] }
    }

    #[test]
    fn a_panic_in_a_step_becomes_device_lost_and_every_step_is_answered() {
        let mut device = StepThread::start(4, Panicking).expect("a thread");
        let (tx, rx) = mpsc::channel();
        for id in 1..=3 {
            let tx = tx.clone();
            let done = Box::new(move |done| tx.send(done).expect("the test listens"));
            device.submit(batch(id), done).expect("room for three");
        }
        let answers: Vec<StepDone> = (0..3).map(|_| rx.recv().expect("an answer")).collect();
        assert!(answers[0].result.is_ok());
        for late in &answers[1..] {
            assert!(
                matches!(&late.result, Err(StepError::DeviceLost(why)) if why == "kernel fault")
            );
        }
    }
}
