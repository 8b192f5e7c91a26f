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

    /// Waits for the answer to a job; returns `None` if the wait ends first.
    fn receive(&self, answer: &Receiver<Turn>) -> Option<Turn> {
        let received = match &self.end {
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((clock, end)) => {
                answer.recv_timeout(Duration::from_micros(end.since_us(clock.now())))
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
        ConstrainedOutput { constraint, threads: threads.clone(), tokens: Vec::new(), next }
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

    /// Returns the turn of the next output token; `None` if the turn is not ready before `wait` ends.
    fn turn(&mut self, wait: &MaskWait) -> Option<&mut Turn> {
        if let Next::Computing(answer) = &self.next {
            self.next = Next::Ready(wait.receive(answer)?);
        }
        match &mut self.next {
            Next::Ready(turn) => Some(turn),
            Next::Computing(_) => None,
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

    /// Constraint for tests: counts up from 0, and computes each mask only when `gate` receives a message.
    #[derive(Debug)]
    struct Gated {
        gate: Receiver<()>,
    }

    struct GatedState {
        counting: CountingState,
        gate: Receiver<()>,
    }

    impl Constraint for Gated {
        fn start(&self) -> Box<dyn ConstraintState> {
            let counting = CountingState { next: 0, last: 9, panics_at: u32::MAX };
            Box::new(GatedState { counting, gate: self.gate.clone() })
        }
    }

    impl ConstraintState for GatedState {
        fn mask(&mut self) -> Result<TokenMask, NoToken> {
            // The other end is gone when the test has ended.
            let _ = self.gate.recv();
            self.counting.mask()
        }

        fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
            self.counting.advance(token)
        }
    }

    fn output(last: u32, panics_at: u32) -> ConstrainedOutput {
        ConstrainedOutput::start(Arc::new(Counting { last, panics_at }), &MaskThreads::default())
    }

    fn mask(output: &mut ConstrainedOutput, index: u32) -> Result<&TokenMask, NotSampled> {
        output.mask(index, &MaskWait::endless())
    }

    fn only(output: &mut ConstrainedOutput, index: u32) -> TokenId {
        let mask = mask(output, index).expect("a token is left");
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
        let skipped = mask(&mut output, 1);
        assert!(matches!(skipped, Err(NotSampled::NoToken(NoToken::Stuck(_)))), "{skipped:?}");
    }

    #[test]
    fn a_mask_that_is_late_can_be_asked_for_again() {
        let (open, gate) = bounded(1);
        let (clock, threads) = (Clock::wall(), MaskThreads::default());
        let mut output = ConstrainedOutput::start(Arc::new(Gated { gate }), &threads);
        for index in 0..3 {
            for wait_us in [0, 500] {
                let wait = MaskWait::from_now(&clock, Some(wait_us));
                assert_eq!(output.mask(index, &wait), Err(NotSampled::MaskLate));
            }
            open.send(()).expect("the constraint lives");
            assert_eq!(only(&mut output, index), index);
            let wait = MaskWait::from_now(&clock, Some(0));
            assert!(output.mask(index, &wait).is_ok(), "a mask that is ready needs no wait");
            output.push(index);
        }
    }

    #[test]
    fn a_complete_output_leaves_no_token() {
        let mut output = output(1, u32::MAX);
        for index in 0..2 {
            only(&mut output, index);
            output.push(index);
        }
        assert_eq!(mask(&mut output, 2), Err(NoToken::Complete.into()));
        assert_eq!(only(&mut output, 1), 1, "the last token again");
    }

    #[test]
    fn a_token_that_is_not_allowed_ends_the_output() {
        let mut output = output(10, u32::MAX);
        output.push(7);
        assert_eq!(mask(&mut output, 1), Err(NoToken::Stuck("7 is not 0".to_owned()).into()));
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
        let why = mask(&mut broken, 1).expect_err("its computation panicked").to_string();
        assert!(why.contains("panicked"), "{why}");
        broken.push(1);
        assert!(mask(&mut broken, 2).is_err());
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
