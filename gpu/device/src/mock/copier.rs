//! Copy side of the mock device: one queue of copies for each direction, in the order of [`CopyQueue`], served at the
//! bandwidth of the link. Copies in the two directions run at once.

use super::faults::{Draws, Purpose};
use super::{MockOptions, Shared};
use crate::copy_queue::{CopyQueue, WAITING_MAX};
use crate::{CopyBatch, CopyDirection, CopyDone, CopyEngine, CopyError, CopyPair, SubmitError};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::mpsc;

type Job = (CopyBatch, Box<dyn FnOnce(CopyDone) + Send>);

/// Copy side of the mock device; passes batches to the tasks that copy them.
pub(super) struct MockCopier {
    outs: mpsc::Sender<Job>,
    ins: mpsc::Sender<Job>,
}

impl MockCopier {
    /// Starts the mock device's copy tasks on the current thread, one for each direction of copies.
    pub(super) fn start(options: &MockOptions, shared: &Rc<RefCell<Shared>>) -> MockCopier {
        let start = |purpose| {
            let (jobs, work) = mpsc::channel(WAITING_MAX);
            let link = Link {
                options: options.clone(),
                shared: Rc::clone(shared),
                faults: Draws::new(options.seed, purpose),
            };
            tokio::task::spawn_local(link.run(work));
            jobs
        };
        MockCopier { outs: start(Purpose::ProfileNoiseAndCopiesOut), ins: start(Purpose::CopiesIn) }
    }
}

impl CopyEngine for MockCopier {
    fn submit(
        &mut self,
        batch: CopyBatch,
        done: Box<dyn FnOnce(CopyDone) + Send>,
    ) -> Result<(), SubmitError> {
        let jobs = match batch.direction {
            CopyDirection::Out => &self.outs,
            CopyDirection::In => &self.ins,
        };
        jobs.try_send((batch, done)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => SubmitError::Full,
            mpsc::error::TrySendError::Closed(_) => SubmitError::Stopped,
        })
    }
}

/// State of the mock device's task that copies KV blocks in one direction.
struct Link {
    options: MockOptions,
    shared: Rc<RefCell<Shared>>,
    faults: Draws,
}

impl Link {
    async fn run(mut self, mut work: mpsc::Receiver<Job>) {
        let (mut queue, mut in_flight) = (CopyQueue::default(), VecDeque::new());
        loop {
            if in_flight.is_empty() {
                let Some(job) = work.recv().await else { return };
                accept(job, &mut queue, &mut in_flight);
            }
            while let Some((batch, done)) = in_flight.pop_front() {
                let (duration_us, result) = self.copy(&batch).await;
                // Batches that came while the copy ran took their places before it ended.
                while let Ok(job) = work.try_recv() {
                    accept(job, &mut queue, &mut in_flight);
                }
                queue.end();
                in_flight.extend(queue.next());
                done(CopyDone { id: batch.id, duration_us, result });
            }
        }
    }

    async fn copy(&mut self, batch: &CopyBatch) -> (u64, Result<(), CopyError>) {
        let faults = &self.options.faults;
        let fails = self.faults.chance(faults.copy_fails);
        let slow = if self.faults.chance(faults.copy_slow) { faults.slow_factor } else { 1.0 };
        if let Some(why) = &self.shared.borrow().lost {
            return (0, Err(CopyError::DeviceLost(why.clone())));
        }
        if let Some(pair) = batch.pairs.iter().find(|pair| !self.exists(pair)) {
            let CopyPair { device, host } = pair;
            return (0, Err(CopyError::Failed(format!("no such block: {device} or {host}"))));
        }
        self.wait_for_steps(batch).await;
        let now = self.options.clock.now();
        let timed = self.shared.borrow_mut().timed_faults.fails_copy(batch.direction, now);
        if timed == Some(true) {
            return (0, Err(CopyError::Failed("injected: the host pool is full".to_owned())));
        }
        let fails = fails || timed.is_some();
        let begun: Vec<Vec<u64>> = {
            let memory = &mut self.shared.borrow_mut().memory;
            let begin =
                |pair: &CopyPair| memory.begin_copy(batch.direction, pair.device.0, pair.host.0);
            batch.pairs.iter().map(begin).collect()
        };
        let bytes = self.options.block_bytes() as f64 * batch.pairs.len() as f64;
        let duration_us =
            (bytes / self.options.profile.link_bytes_per_s * 1e6 * slow).round() as u64;
        self.options.clock.sleep_us(duration_us).await;
        let mut shared = self.shared.borrow_mut();
        if let Some(why) = &shared.lost {
            return (duration_us, Err(CopyError::DeviceLost(why.clone())));
        }
        if fails {
            return (duration_us, Err(CopyError::Failed("injected".to_owned())));
        }
        for (pair, began) in batch.pairs.iter().zip(&begun) {
            shared.memory.end_copy(batch.direction, pair.device.0, pair.host.0, began);
        }
        (duration_us, Ok(()))
    }

    /// Waits until the step that runs has ended, if the fence of the batch names it or a later one.
    async fn wait_for_steps(&self, batch: &CopyBatch) {
        loop {
            let step_ended = match &*self.shared.borrow() {
                Shared { running: Some(step), step_ended, .. } if *step <= batch.after => {
                    Rc::clone(step_ended)
                }
                _ => return,
            };
            step_ended.notified().await;
        }
    }

    fn exists(&self, pair: &CopyPair) -> bool {
        let memory = &self.shared.borrow().memory;
        (pair.device.0 as usize) < memory.device_blocks()
            && (pair.host.0 as usize) < memory.host_blocks()
    }
}

/// Queues a batch of copies, and starts the next batch of the direction if it may start. A batch for which there is no
/// room fails.
fn accept(job: Job, queue: &mut CopyQueue<Job>, in_flight: &mut VecDeque<Job>) {
    let ahead_of_need = job.0.ahead_of_need;
    if let Err((batch, done)) = queue.push(job, ahead_of_need) {
        let result = Err(CopyError::Failed(SubmitError::Full.to_string()));
        done(CopyDone { id: batch.id, duration_us: 0, result });
    }
    in_flight.extend(queue.next());
}
