//! Tests of mask threads and of constrained outputs.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU32};

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
    let start =
        |panics_at| ConstrainedOutput::start(Arc::new(Counting { last: 9, panics_at }), &threads);
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
    let mut outputs: Vec<ConstrainedOutput> =
        (0..2 * QUEUE).map(|_| ConstrainedOutput::start(constraint.clone(), &threads)).collect();
    assert!(outputs.iter_mut().all(|output| only(output, 0) == 0));
}

#[test]
fn a_job_that_found_the_queue_full_is_submitted_again_when_its_mask_is_needed() {
    let (open, gate) = bounded(1);
    let (clock, threads) = (Clock::wall(), MaskThreads::default());
    let constraint: Arc<dyn Constraint> = Arc::new(Gated { gate });
    let mut outputs: Vec<ConstrainedOutput> =
        (0..2 * QUEUE).map(|_| ConstrainedOutput::start(constraint.clone(), &threads)).collect();
    let mut ready = |wait_us| {
        let wait = MaskWait::from_now(&clock, Some(wait_us));
        outputs.iter_mut().filter_map(|output| output.mask(0, &wait).ok()).count()
    };
    assert_eq!(ready(0), 0, "every mask thread waits at the gate");
    drop(open);
    while ready(1_000) < 2 * QUEUE {}
}

/// Constraint for tests whose masks use more processor time than those of a quick constraint. As soon as the constraint
/// counts as slow, its masks wait for a message instead.
#[derive(Debug)]
struct Slow {
    gate: Receiver<()>,
    slow: Arc<AtomicBool>,
}

struct SlowState {
    gate: Receiver<()>,
    slow: Arc<AtomicBool>,
}

impl Constraint for Slow {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(SlowState { gate: self.gate.clone(), slow: self.slow.clone() })
    }

    fn slow(&self) -> Option<&AtomicBool> {
        Some(&self.slow)
    }
}

impl ConstraintState for SlowState {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        if self.slow.load(Ordering::Relaxed) {
            let _ = self.gate.recv();
        } else {
            let end_us = thread_us() + SLOW_US + 1_000;
            while thread_us() < end_us {}
        }
        let mut mask = TokenMask::none(100);
        mask.allow(0);
        Ok(mask)
    }

    fn advance(&mut self, _: TokenId) -> Result<(), NoToken> {
        Ok(())
    }
}

#[test]
fn slow_constraints_do_not_hold_up_quick_ones() {
    let (open, gate) = bounded::<()>(1);
    let (clock, threads) = (Clock::wall(), MaskThreads::default());
    let slow = Arc::new(Slow { gate, slow: Arc::default() });
    // All are in the quick lane before the first of them shows that the constraint is slow.
    let mut slow_outputs: Vec<ConstrainedOutput> =
        (0..2 * THREADS_MAX).map(|_| ConstrainedOutput::start(slow.clone(), &threads)).collect();
    let counting = Arc::new(Counting { last: 9, panics_at: u32::MAX });
    let mut quick = ConstrainedOutput::start(counting, &threads);
    let wait = MaskWait::from_now(&clock, Some(20_000_000));
    assert!(quick.mask(0, &wait).is_ok(), "the other outputs wait at the gate");
    assert!(slow.slow.load(Ordering::Relaxed));
    drop(open);
    for output in &mut slow_outputs {
        assert_eq!(only(output, 0), 0);
        output.push(0);
        assert_eq!(only(output, 1), 0);
    }
}

#[test]
fn masks_of_sequences_that_have_ended_are_not_computed() {
    let (open, gate) = bounded::<()>(1);
    let threads = MaskThreads::default();
    let start = |constraint: Arc<dyn Constraint>| ConstrainedOutput::start(constraint, &threads);
    let gated: Vec<ConstrainedOutput> =
        (0..THREADS_MAX).map(|_| start(Arc::new(Gated { gate: gate.clone() }))).collect();
    let computed = Arc::new(AtomicU32::new(0));
    drop(start(Arc::new(Counted { computed: computed.clone() })));
    drop(open);
    for mut output in gated {
        only(&mut output, 0);
    }
    let counted: Arc<dyn Constraint> = Arc::new(Counted { computed: computed.clone() });
    for _ in 0..THREADS_MAX {
        only(&mut start(counted.clone()), 0);
    }
    assert_eq!(computed.load(Ordering::Relaxed), THREADS_MAX as u32);
}

/// Constraint for tests that counts its masks.
#[derive(Debug)]
struct Counted {
    computed: Arc<AtomicU32>,
}

impl Constraint for Counted {
    fn start(&self) -> Box<dyn ConstraintState> {
        self.computed.fetch_add(1, Ordering::Relaxed);
        Box::new(CountingState { next: 0, last: 9, panics_at: u32::MAX })
    }
}
