//! Threads that compute token masks of constrained sequences while the device runs a step.
//!
//! When an output token of a sequence has been chosen, a mask thread advances the sequence's [`ConstraintState`] and
//! computes the mask of the next token. At the same time, the engine plans and the device computes the next step. The
//! sampler waits for a mask only if the mask is not ready when the sampler needs it, and only for a short time
//! ([`MaskWait`]): a sequence whose mask comes later is left out of the draws of the step.

use crate::threads::{lower_thread_priority, thread_us};
use crate::{
    Clock, Constraint, ConstraintState, NoToken, NotSampled, Timestamp, TokenId, TokenMask,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Longest time that a step of a server waits for masks, us (a GPU may wait longer while it computes). Grammars whose
/// masks take long must not lengthen the steps of other sequences.
pub const MASK_WAIT_US: u64 = 1_000;

/// Maximum number of jobs that wait in a lane. When the queue of its lane is full, a job is submitted again when its
/// mask is needed.
const QUEUE: usize = 1024;
/// Maximum number of threads of the quick lane, which has one thread for every four processors, and at least one.
const THREADS_MAX: usize = 8;
/// Processor time of a mask from which its constraint counts as slow, us. Masks of usual grammars take 2,300 us at most
/// (`mask_times`) with a vocabulary of 49,000 tokens, and larger vocabularies take longer. Masks of hostile grammars
/// take 50,000 us and more.
const SLOW_US: u64 = 20_000;

/// Threads that compute masks. Clones share the threads. The threads start with the first constrained sequence, and end
/// when no clone and no constrained sequence is left.
#[derive(Debug, Clone, Default)]
pub struct MaskThreads {
    /// Lanes of the threads, which are empty until the threads start; the inner value is `None` if the operating system
    /// could not start the threads.
    lanes: Arc<OnceLock<Option<Lanes>>>,
}

/// Queues of jobs for mask threads.
#[derive(Debug)]
struct Lanes {
    quick: Sender<Job>,
    /// Jobs of slow constraints. One thread of low priority computes these, so that they hold up neither other
    /// constraints nor the device's threads.
    slow: Sender<Job>,
}

/// Job of a mask thread: to advance a state by some tokens, and to compute the mask of the next token.
struct Job {
    constraint: Arc<dyn Constraint>,
    /// State from which the job starts; `None` for the state before the first output token.
    state: Option<Box<dyn ConstraintState>>,
    tokens: Vec<TokenId>,
    answer: Sender<Turn>,
    /// Points to a value that exists as long as the sequence waits for the answer.
    wanted: Weak<()>,
}

/// Answer that a sequence waits for.
struct Awaited {
    answer: Receiver<Turn>,
    /// Exists as long as the sequence waits, for [`Job::wanted`].
    _wanted: Arc<()>,
}

/// State of a constraint at one position of the output, and the mask of the token at that position.
struct Turn {
    state: Option<Box<dyn ConstraintState>>,
    mask: Result<TokenMask, NoToken>,
}

impl MaskThreads {
    /// Hands a job to a lane, or keeps the job unsent if the queue of the lane is full. If no mask thread exists, runs
    /// the job on the calling thread.
    fn submit(&self, job: Job, awaited: Awaited) -> Next {
        let Some(lanes) = self.lanes.get_or_init(Lanes::start) else {
            job.run();
            return Next::Computing(awaited);
        };
        match if job.is_slow() { &lanes.slow } else { &lanes.quick }.try_send(job) {
            Ok(()) => Next::Computing(awaited),
            Err(TrySendError::Full(job)) => Next::Unsent(Some((job, awaited))),
            Err(TrySendError::Disconnected(job)) => {
                job.run();
                Next::Computing(awaited)
            }
        }
    }
}

impl Lanes {
    fn start() -> Option<Lanes> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (slow, slow_work) = bounded::<Job>(QUEUE);
        let slow_thread = start_thread("tiercel-slow-masks", move || {
            lower_thread_priority();
            slow_work.iter().for_each(Job::run);
        });
        let (quick, work) = bounded::<Job>(QUEUE);
        let quick_threads = (0..(processors / 4).clamp(1, THREADS_MAX)).filter(|_| {
            let (work, slow) = (work.clone(), slow.clone());
            start_thread("tiercel-masks", move || work.iter().for_each(|job| job.run_quick(&slow)))
        });
        (quick_threads.count() > 0 && slow_thread).then_some(Lanes { quick, slow })
    }
}

/// Starts a thread; returns whether the operating system could start it.
fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name(name.into()).spawn(work).is_ok()
}

impl Job {
    fn is_slow(&self) -> bool {
        self.constraint.slow().is_some_and(|slow| slow.load(Ordering::Relaxed))
    }

    /// Runs the job on a thread of the quick lane, or hands it to the slow lane if its constraint has become slow since
    /// it was submitted.
    fn run_quick(self, slow: &Sender<Job>) {
        match self.is_slow() {
            true => slow.try_send(self).unwrap_or_else(|refused| refused.into_inner().run()),
            false => self.run(),
        }
    }

    fn run(self) {
        let Job { constraint, state, tokens, answer, wanted } = self;
        if wanted.strong_count() == 0 {
            return;
        }
        // The first mask after a failed step may replay the whole output, which says nothing about the grammar.
        let is_usual = tokens.len() <= 1;
        let began_us = thread_us();
        let compute = || Turn::compute(state.unwrap_or_else(|| constraint.start()), &tokens);
        let turn = catch_unwind(AssertUnwindSafe(compute));
        if let Some(slow) = constraint.slow()
            && is_usual
            && thread_us().saturating_sub(began_us) > SLOW_US
        {
            slow.store(true, Ordering::Relaxed);
        }
        let panicked = || Turn::stuck("the computation of its mask panicked");
        // The receiver of the answer is gone if the sequence has ended.
        let _ = answer.send(turn.unwrap_or_else(|_| panicked()));
    }
}

impl Turn {
    fn compute(mut state: Box<dyn ConstraintState>, tokens: &[TokenId]) -> Turn {
        let advanced = tokens.iter().try_for_each(|token| state.advance(*token));
        let mask = advanced.and_then(|()| state.mask());
        Turn { state: Some(state), mask }
    }

    fn stuck(why: &str) -> Turn {
        Turn { state: None, mask: Err(NoToken::Stuck(why.to_owned())) }
    }
}

/// Output tokens of one constrained sequence so far, and the mask of the next token.
pub struct ConstrainedOutput {
    constraint: Arc<dyn Constraint>,
    threads: MaskThreads,
    /// Output tokens so far.
    tokens: Vec<TokenId>,
    next: Next,
    /// Whether a step has waited in vain for the mask of the next token. No further step waits for this mask.
    late: bool,
}

/// Mask of the next output token.
enum Next {
    /// The queue of the mask threads was full. The inner value is `Some` whenever no method runs.
    Unsent(Option<(Job, Awaited)>),
    Computing(Awaited),
    Ready(Turn),
}

/// Time that one step may wait for masks, all its sequences together.
#[derive(Debug, Clone)]
pub struct MaskWait {
    /// Clock of real time and the moment at which the wait ends; `None` for a wait without end.
    end: Option<(Clock, Timestamp)>,
}

impl MaskWait {
    /// Returns a wait of a step that ends `wait_us` microseconds from now, by a clock of real time; with `None` the
    /// wait has no end.
    pub fn from_now(clock: &Clock, wait_us: Option<u64>) -> MaskWait {
        MaskWait { end: wait_us.map(|us| (clock.clone(), clock.now() + us)) }
    }

    /// Returns a wait without end.
    pub const fn endless() -> MaskWait {
        MaskWait { end: None }
    }

    /// Waits for the answer to a job; returns `None` if the wait ends first. A wait that has an end is no wait at all
    /// if the answer is `late` already.
    fn receive(&self, answer: &Receiver<Turn>, late: bool) -> Option<Turn> {
        let received = match &self.end {
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((clock, end)) => {
                let left_us = if late { 0 } else { end.since_us(clock.now()) };
                answer.recv_timeout(Duration::from_micros(left_us))
            }
        };
        match received {
            Ok(turn) => Some(turn),
            Err(RecvTimeoutError::Disconnected) => Some(Turn::stuck("its thread ended")),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}

impl std::fmt::Debug for ConstrainedOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConstrainedOutput").field("tokens", &self.tokens.len()).finish()
    }
}

impl ConstrainedOutput {
    /// Starts the output of a sequence; a mask thread computes the mask of the first token.
    pub fn start(constraint: Arc<dyn Constraint>, threads: &MaskThreads) -> ConstrainedOutput {
        let next = compute(threads, &constraint, None, Vec::new());
        ConstrainedOutput {
            constraint,
            threads: threads.clone(),
            tokens: Vec::new(),
            next,
            late: false,
        }
    }

    /// Returns the mask of output token number `index` (from 0). A repeated step asks for the mask of an output token
    /// that was chosen before; this token and all later tokens are then discarded.
    ///
    /// # Errors
    /// [`NotSampled::MaskLate`] if the mask is not ready before `wait` ends: the draw can be tried again.
    /// [`NotSampled::NoToken`] if the constraint leaves no token for this position.
    pub fn mask(&mut self, index: u32, wait: &MaskWait) -> Result<&TokenMask, NotSampled> {
        let index = index as usize;
        if index > self.tokens.len() {
            return Err(NoToken::Stuck("an output token was skipped".to_owned()).into());
        }
        if index < self.tokens.len() {
            self.tokens.truncate(index);
            self.late = false;
            self.next = compute(&self.threads, &self.constraint, None, self.tokens.clone());
        }
        match self.turn(wait).map(|turn| &turn.mask) {
            Some(Ok(mask)) => Ok(mask),
            Some(Err(reason)) => Err(reason.clone().into()),
            None => Err(NotSampled::MaskLate),
        }
    }

    /// Appends the chosen token to the output; a mask thread computes the mask of the following token.
    pub fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        // The turn is ready, because the token was chosen with its mask.
        if let Some(state) = self.turn(&MaskWait::endless()).and_then(|turn| turn.state.take()) {
            self.next = compute(&self.threads, &self.constraint, Some(state), vec![token]);
        }
    }

    /// Returns the turn of the next output token; `None` if the turn is not ready before `wait` ends, or not at once if
    /// an earlier wait has ended.
    fn turn(&mut self, wait: &MaskWait) -> Option<&mut Turn> {
        if let Next::Unsent(unsent) = &mut self.next {
            let (job, awaited) = unsent.take()?;
            self.next = self.threads.submit(job, awaited);
        }
        if let Next::Unsent(unsent) = &mut self.next {
            // Only a step that waits for all its masks has time to compute one.
            let (job, awaited) = unsent.take_if(|_| wait.end.is_none())?;
            job.run();
            self.next = Next::Computing(awaited);
        }
        if let Next::Computing(awaited) = &self.next {
            let turn = wait.receive(&awaited.answer, self.late);
            self.late = turn.is_none();
            self.next = Next::Ready(turn?);
        }
        match &mut self.next {
            Next::Ready(turn) => Some(turn),
            Next::Unsent(_) | Next::Computing(_) => None,
        }
    }
}

/// Has the mask computed that follows `tokens` after a state; `None` stands for the state before the first output
/// token.
fn compute(
    threads: &MaskThreads,
    constraint: &Arc<dyn Constraint>,
    state: Option<Box<dyn ConstraintState>>,
    tokens: Vec<TokenId>,
) -> Next {
    let (send, answer) = bounded(1);
    let wanted = Arc::new(());
    let job = Job {
        constraint: Arc::clone(constraint),
        state,
        tokens,
        answer: send,
        wanted: Arc::downgrade(&wanted),
    };
    threads.submit(job, Awaited { answer, _wanted: wanted })
}

#[cfg(test)]
mod tests;
