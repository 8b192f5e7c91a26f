//! Threads that compute token masks of constrained sequences while the device runs a step.
//!
//! When an output token of a sequence has been chosen, a mask thread advances the sequence's [`ConstraintState`] and
//! computes the mask of the next token. At the same time, the engine plans and the device computes the next step. The
//! sampler waits for a mask only if the mask is not ready when the sampler needs it, and only for a short time
//! ([`MaskWait`]): a sequence whose mask comes later is left out of the draws of the step.

use crate::{
    Clock, Constraint, ConstraintState, NoToken, NotSampled, Timestamp, TokenId, TokenMask,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Longest time that a step of a server waits for masks, us. Masks take microseconds; grammars that were made to take
/// long must not lengthen the steps of other sequences.
pub const MASK_WAIT_US: u64 = 1_000;

/// Maximum number of jobs that wait for a mask thread. When the queue is full, a job is submitted again when its mask is
/// needed.
const QUEUE: usize = 1024;
/// Maximum number of mask threads. A machine has one mask thread for every four processors, and at least one.
const THREADS_MAX: usize = 8;

/// Threads that compute masks. Clones share the threads. The threads start with the first constrained sequence, and end
/// when no clone and no constrained sequence is left.
#[derive(Debug, Clone, Default)]
pub struct MaskThreads {
    /// Queue of jobs for the threads, which is empty until the threads start; the inner value is `None` if the
    /// operating system could not start any thread.
    jobs: Arc<OnceLock<Option<Sender<Job>>>>,
}

/// Job of a mask thread: to advance a state by some tokens, and to compute the mask of the next token.
#[derive(Debug)]
struct Job {
    from: From,
    tokens: Vec<TokenId>,
    answer: Sender<Turn>,
}

/// State from which a job starts.
enum From {
    /// The state before the first output token.
    Start(Arc<dyn Constraint>),
    /// The state after an earlier output token.
    State(Box<dyn ConstraintState>),
}

/// State of a constraint at one position of the output, and the mask of the token at that position.
struct Turn {
    state: Option<Box<dyn ConstraintState>>,
    mask: Result<TokenMask, NoToken>,
}

impl std::fmt::Debug for From {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            From::Start(_) => "Start",
            From::State(_) => "State",
        })
    }
}

impl MaskThreads {
    /// Hands a job to the mask threads; its answer comes from `answer`. Runs the job on the calling thread if no mask
    /// thread exists.
    fn submit(&self, job: Job, answer: Receiver<Turn>) -> Next {
        let Some(queue) = self.jobs.get_or_init(start_threads) else {
            job.run();
            return Next::Computing(answer);
        };
        match queue.try_send(job) {
            Ok(()) => Next::Computing(answer),
            Err(TrySendError::Full(job)) => Next::Unsent(Some((job, answer))),
            Err(TrySendError::Disconnected(job)) => {
                job.run();
                Next::Computing(answer)
            }
        }
    }
}

fn start_threads() -> Option<Sender<Job>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (queue, work) = bounded::<Job>(QUEUE);
    let threads = (0..(processors / 4).clamp(1, THREADS_MAX)).filter(|_| {
        let work = work.clone();
        let thread = std::thread::Builder::new().name("tiercel-masks".into());
        thread.spawn(move || work.iter().for_each(Job::run)).is_ok()
    });
    (threads.count() > 0).then_some(queue)
}

impl Job {
    fn run(self) {
        let Job { from, tokens, answer } = self;
        let turn = catch_unwind(AssertUnwindSafe(|| Turn::compute(from, &tokens)));
        let panicked = || Turn::stuck("the computation of its mask panicked");
        // The receiver of the answer is gone if the sequence has ended.
        let _ = answer.send(turn.unwrap_or_else(|_| panicked()));
    }
}

impl Turn {
    fn compute(from: From, tokens: &[TokenId]) -> Turn {
        let mut state = match from {
            From::Start(constraint) => constraint.start(),
            From::State(state) => state,
        };
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
    Unsent(Option<(Job, Receiver<Turn>)>),
    Computing(Receiver<Turn>),
    Ready(Turn),
}

/// Time that one step may wait for masks, all its sequences together.
#[derive(Debug, Clone)]
pub struct MaskWait {
    /// Clock of real time and the moment at which the wait ends; `None` for a wait without end.
    end: Option<(Clock, Timestamp)>,
}

impl MaskWait {
    /// Returns a wait of a step that ends `wait_us` microseconds from now, by a clock of real time; with `None` the wait
    /// has no end.
    pub fn from_now(clock: &Clock, wait_us: Option<u64>) -> MaskWait {
        MaskWait { end: wait_us.map(|us| (clock.clone(), clock.now() + us)) }
    }

    /// Returns a wait without end.
    pub const fn endless() -> MaskWait {
        MaskWait { end: None }
    }

    /// Waits for the answer to a job; returns `None` if the wait ends first. A wait that has an end is no wait at all if
    /// the answer is `late` already.
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
        let next = compute(threads, From::Start(constraint.clone()), Vec::new());
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
            let from = From::Start(self.constraint.clone());
            self.next = compute(&self.threads, from, self.tokens.clone());
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
            self.next = compute(&self.threads, From::State(state), vec![token]);
        }
    }

    /// Returns the turn of the next output token; `None` if the turn is not ready before `wait` ends, or not at once if an
    /// earlier wait has ended.
    fn turn(&mut self, wait: &MaskWait) -> Option<&mut Turn> {
        if let Next::Unsent(unsent) = &mut self.next {
            let (job, answer) = unsent.take()?;
            self.next = self.threads.submit(job, answer);
        }
        if let Next::Unsent(unsent) = &mut self.next {
            // Only a step that waits for all its masks has time to compute one.
            let (job, answer) = unsent.take_if(|_| wait.end.is_none())?;
            job.run();
            self.next = Next::Computing(answer);
        }
        if let Next::Computing(answer) = &self.next {
            let turn = wait.receive(answer, self.late);
            self.late = turn.is_none();
            self.next = Next::Ready(turn?);
        }
        match &mut self.next {
            Next::Ready(turn) => Some(turn),
            Next::Unsent(_) | Next::Computing(_) => None,
        }
    }
}

fn compute(threads: &MaskThreads, from: From, tokens: Vec<TokenId>) -> Next {
    let (answer, turn) = bounded(1);
    threads.submit(Job { from, tokens, answer }, turn)
}

#[cfg(test)]
mod tests;
