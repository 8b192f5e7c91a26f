//! Threads that compute token masks of constrained sequences while the device runs a step.
//!
//! When an output token of a sequence has been chosen, a mask thread advances the sequence's [`ConstraintState`] and
//! computes the mask of the next token. At the same time, the engine plans and the device computes the next step. The
//! sampler waits for a mask only if the mask is not ready when the sampler needs it.

use crate::{Constraint, ConstraintState, NoToken, TokenId, TokenMask};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// Maximum number of jobs that wait for a mask thread. When the queue is full, the submitting thread computes the mask.
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
    /// Hands a job to the mask threads. Runs the job on the calling thread if the queue is full or no mask thread
    /// exists.
    fn submit(&self, job: Job) {
        let Some(queue) = self.jobs.get_or_init(start_threads) else { return job.run() };
        match queue.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job.run(),
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
}

/// Mask of the next output token.
enum Next {
    Computing(Receiver<Turn>),
    Ready(Turn),
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
        ConstrainedOutput { constraint, threads: threads.clone(), tokens: Vec::new(), next }
    }

    /// Returns the mask of output token number `index` (from 0), and waits for the mask if it is not ready. A repeated
    /// step asks for the mask of an output token that was chosen before; this token and all later tokens are then
    /// discarded.
    ///
    /// # Errors
    /// [`NoToken`] if the constraint leaves no token for this position.
    pub fn mask(&mut self, index: u32) -> Result<&TokenMask, NoToken> {
        let index = index as usize;
        if index > self.tokens.len() {
            return Err(NoToken::Stuck("an output token was skipped".to_owned()));
        }
        if index < self.tokens.len() {
            self.tokens.truncate(index);
            let from = From::Start(self.constraint.clone());
            self.next = compute(&self.threads, from, self.tokens.clone());
        }
        match &self.turn().mask {
            Ok(mask) => Ok(mask),
            Err(reason) => Err(reason.clone()),
        }
    }

    /// Appends the chosen token to the output; a mask thread computes the mask of the following token.
    pub fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        if let Some(state) = self.turn().state.take() {
            self.next = compute(&self.threads, From::State(state), vec![token]);
        }
    }

    /// Returns the turn of the next output token, and waits for the turn if it is not ready.
    fn turn(&mut self) -> &mut Turn {
        if let Next::Computing(answer) = &self.next {
            let turn = answer.recv().unwrap_or_else(|_| Turn::stuck("its thread ended"));
            self.next = Next::Ready(turn);
        }
        match &mut self.next {
            Next::Ready(turn) => turn,
            Next::Computing(_) => unreachable!("the turn has just been received"),
        }
    }
}

fn compute(threads: &MaskThreads, from: From, tokens: Vec<TokenId>) -> Next {
    let (answer, turn) = bounded(1);
    threads.submit(Job { from, tokens, answer });
    Next::Computing(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Constraint for tests: the output counts up from 0 and ends after `last`. The computation of the mask at
    /// `panics_at` panics.
    #[derive(Debug)]
    struct Counting {
        last: u32,
        panics_at: u32,
    }

    struct CountingState {
        next: u32,
        last: u32,
        panics_at: u32,
    }

    impl Constraint for Counting {
        fn start(&self) -> Box<dyn ConstraintState> {
            Box::new(CountingState { next: 0, last: self.last, panics_at: self.panics_at })
        }
    }

    impl ConstraintState for CountingState {
        fn mask(&mut self) -> Result<TokenMask, NoToken> {
            assert_ne!(self.next, self.panics_at, "a broken grammar");
            if self.next > self.last {
                return Err(NoToken::Complete);
            }
            let mut mask = TokenMask::none(100);
            mask.allow(self.next);
            Ok(mask)
        }

        fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
            if token != self.next {
                return Err(NoToken::Stuck(format!("{token} is not {}", self.next)));
            }
            self.next += 1;
            Ok(())
        }
    }

    fn output(last: u32, panics_at: u32) -> ConstrainedOutput {
        ConstrainedOutput::start(Arc::new(Counting { last, panics_at }), &MaskThreads::default())
    }

    fn only(output: &mut ConstrainedOutput, index: u32) -> TokenId {
        let mask = output.mask(index).expect("a token is left");
        assert_eq!(mask.count(), 1);
        mask.nth(0).expect("one token")
    }

    #[test]
    fn masks_follow_the_position_of_the_output() {
        let mut output = output(10, u32::MAX);
        for index in 0..5 {
            assert_eq!(only(&mut output, index), index);
            assert_eq!(only(&mut output, index), index, "asked again");
            output.push(index);
        }
        // A repeated step samples the last two tokens again.
        assert_eq!(only(&mut output, 3), 3);
        output.push(3);
        assert_eq!(only(&mut output, 4), 4);
        assert_eq!(only(&mut output, 0), 0, "from the beginning");
        assert!(matches!(output.mask(1), Err(NoToken::Stuck(_))), "a token was skipped");
    }

    #[test]
    fn a_complete_output_leaves_no_token() {
        let mut output = output(1, u32::MAX);
        for index in 0..2 {
            only(&mut output, index);
            output.push(index);
        }
        assert_eq!(output.mask(2), Err(NoToken::Complete));
        assert_eq!(only(&mut output, 1), 1, "the last token again");
    }

    #[test]
    fn a_token_that_is_not_allowed_ends_the_output() {
        let mut output = output(10, u32::MAX);
        output.push(7);
        assert_eq!(output.mask(1), Err(NoToken::Stuck("7 is not 0".to_owned())));
    }

    #[test]
    fn a_panic_costs_its_own_sequence_only() {
        let threads = MaskThreads::default();
        let start = |panics_at| {
            ConstrainedOutput::start(Arc::new(Counting { last: 9, panics_at }), &threads)
        };
        let (mut broken, mut sound) = (start(1), start(u32::MAX));
        for output in [&mut broken, &mut sound] {
            assert_eq!(only(output, 0), 0);
            output.push(0);
        }
        assert!(matches!(broken.mask(1), Err(NoToken::Stuck(why)) if why.contains("panicked")));
        broken.push(1);
        assert!(broken.mask(2).is_err());
        assert_eq!(only(&mut sound, 1), 1);
        assert_eq!(only(&mut broken, 0), 0, "the token before the panic again");
    }

    #[test]
    fn more_jobs_than_the_queue_holds_are_all_answered() {
        let threads = MaskThreads::default();
        let constraint: Arc<dyn Constraint> = Arc::new(Counting { last: 9, panics_at: u32::MAX });
        let mut outputs: Vec<ConstrainedOutput> = (0..2 * QUEUE)
            .map(|_| ConstrainedOutput::start(constraint.clone(), &threads))
            .collect();
        assert!(outputs.iter_mut().all(|output| only(output, 0) == 0));
    }
}
