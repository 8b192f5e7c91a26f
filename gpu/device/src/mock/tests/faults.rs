//! Tests of the mock device's faults: of those that it injects, and of the engine's mistakes that it must find.

use super::*;
use crate::{Constraint, ConstraintState, NoToken, TokenMask};

#[test]
fn unknown_sequences_and_bad_slices_are_engine_faults() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let done = bench.step(&[], vec![known(9, 0, &PROMPT, &[0, 1], Some(0))]).await;
        let sampled = done.result.expect("costs one sequence only").sampled;
        assert_eq!(sampled, [(SeqId(9), Err(NotSampled::UnknownSequence(SeqId(9))))]);
        bench.sampled(&[1], vec![known(1, 0, &PROMPT[..1], &[0], None)]).await;
        for (slice, what) in [
            (known(1, 1, &[99], &[0], None), "the input is not"),
            (known(1, 1, &PROMPT[1..], &[0], Some(0)), "too short"),
            (known(1, 1, &PROMPT[1..], &[0, 99], Some(0)), "does not exist"),
            (known(1, 1, &PROMPT[1..], &[0, 1], Some(1)), "does not follow"),
            (known(1, 1, &[], &[0], None), "no input"),
        ] {
            let why = bench.failed(&[], vec![slice]).await;
            assert!(why.contains(what), "{why} should say: {what}");
        }
        let twice =
            vec![known(1, 1, &PROMPT[1..2], &[0], None), known(1, 1, &PROMPT[1..2], &[2], None)];
        assert!(bench.failed(&[], twice).await.contains("two slices"));
        assert_eq!(bench.log.total(), 7);
    });
}

#[test]
fn a_failed_step_leaves_its_sequence_where_it_was() {
    for kind in [Fingerprints::PerBlock, Fingerprints::PerSlot] {
        local(|| async move {
            let faults = MockFaults { step_fails: 0.5, ..MockFaults::default() };
            let mut bench = Bench::open(|options| {
                (options.faults, options.fingerprints) = (faults, kind);
            });
            let expected = bench.oracle.output(&PROMPT, 12);
            let (mut output, mut failures, mut starts) = (Vec::new(), 0, vec![1]);
            while output.len() < expected.len() {
                let i = output.len();
                let all: Vec<TokenId> = PROMPT.iter().chain(&output).copied().collect();
                let first = if i == 0 { 0 } else { 5 + i };
                let slice = known(1, first as u32, &all[first..], &[0, 1, 2, 3, 4], Some(i as u32));
                let done = bench.step(&starts, vec![slice]).await;
                starts.clear();
                match done.result {
                    Ok(_) => output.extend(tokens(done)),
                    Err(error) => {
                        assert_eq!(error, StepError::Failed("injected".to_owned()));
                        failures += 1;
                    }
                }
            }
            assert_eq!(output, expected);
            assert!(failures > 2, "{failures} failures");
            assert_eq!(bench.log.total(), 0);
        });
    }
}

#[test]
fn what_follows_a_failed_step_is_computed_from_garbage_without_blaming_the_engine() {
    local(|| async {
        let faults = MockFaults { step_fails: 0.5, ..MockFaults::default() };
        let (no_token, mut followed) = (options(&Clock::simulated()).vocab_size, 0);
        for seed in 0..20 {
            let faults = faults.clone();
            let mut bench = Bench::open(|options| (options.faults, options.seed) = (faults, seed));
            let prompt = known(1, 0, &PROMPT, &[0, 1], Some(0));
            let first = bench.submit(&[1], vec![prompt]).expect("room");
            let mut next = known(1, 6, &[], &[0, 1], Some(1));
            next.input = SliceInput::SampledBy(StepId(1));
            let other = known(2, 0, &PROMPT, &[2, 3], Some(0));
            let second = bench.submit(&[2], vec![next, other]).expect("room");
            let failed = first.await.expect("an answer").result.is_err();
            let second = second.await.expect("an answer").result;
            if let (true, Ok(output)) = (failed, second) {
                let tokens =
                    output.sampled.into_iter().map(|(_, sampled)| sampled.expect("no fault").token);
                let tokens: Vec<bool> = tokens.map(|token| token == no_token).collect();
                assert_eq!(tokens, [true, false], "one is no token, the other is");
                followed += 1;
            }
            assert_eq!(bench.log.total(), 0);
        }
        assert!(followed > 0, "no step that failed was followed by one that did not");
    });
}

#[test]
fn a_step_that_follows_a_late_mask_is_computed_from_garbage_without_blaming_the_engine() {
    local(|| async {
        let faults = MockFaults { mask_late: 1.0, ..MockFaults::default() };
        let mut bench = Bench::open(|options| options.faults = faults);
        let prompt = known(1, 0, &PROMPT, &[0, 1], Some(0));
        let first = bench.submit(&[1], vec![prompt]).expect("room");
        let mut next = known(1, 6, &[], &[0, 1], Some(1));
        next.input = SliceInput::SampledBy(StepId(1));
        let second = bench.submit(&[], vec![next.clone()]).expect("room");
        let late = first.await.expect("an answer").result.expect("a good step").sampled;
        assert_eq!(late, [(SeqId(1), Err(NotSampled::MaskLate))]);
        assert!(second.await.expect("an answer").result.is_ok(), "its result is garbage");
        // The engine may submit a step that relies on the first step just after the first step has ended.
        let third = bench.submit(&[], vec![next]).expect("room");
        assert!(third.await.expect("an answer").result.is_ok(), "its result is garbage");
        // The last token once more, twice.
        for _ in 0..2 {
            let again = known(1, 5, &PROMPT[5..], &[0, 1], Some(0));
            let late = bench.step(&[], vec![again]).await.result.expect("a good step").sampled;
            assert_eq!(late, [(SeqId(1), Err(NotSampled::MaskLate))]);
        }
        assert_eq!(bench.log.total(), 0);
    });
}

/// Constraint for tests that allows no token.
#[derive(Debug)]
struct Nothing;

impl Constraint for Nothing {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Nothing)
    }
}

impl ConstraintState for Nothing {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        Err(NoToken::Complete)
    }

    fn advance(&mut self, _: TokenId) -> Result<(), NoToken> {
        Ok(())
    }
}

#[test]
fn a_step_that_follows_a_constraint_without_a_token_does_not_fail() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let constraint = Some(Arc::new(Nothing) as Arc<dyn Constraint>);
        bench.sampling = Arc::new(SamplingParams { constraint, ..SamplingParams::greedy() });
        let prompt = known(1, 0, &PROMPT, &[0, 1], Some(0));
        let first = bench.submit(&[1], vec![prompt]).expect("room");
        let mut next = known(1, 6, &[], &[0, 1], Some(1));
        next.input = SliceInput::SampledBy(StepId(1));
        bench.sampling = Arc::new(SamplingParams::greedy());
        let other = known(2, 0, &PROMPT, &[2, 3], Some(0));
        let second = bench.submit(&[2], vec![next, other]).expect("room");
        let none = first.await.expect("an answer").result.expect("a good step").sampled;
        assert_eq!(none, [(SeqId(1), Err(NotSampled::NoToken(NoToken::Complete)))]);
        let sampled = second.await.expect("an answer").result.expect("a good step").sampled;
        assert!(
            sampled.iter().any(|(seq, token)| *seq == SeqId(2) && token.is_ok()),
            "{sampled:?}"
        );
        assert_eq!(bench.log.total(), 0);
    });
}

#[test]
fn copies_fail_and_slow_down_by_seed() {
    local(|| async {
        let faults = MockFaults { copy_fails: 0.4, copy_slow: 0.4, ..MockFaults::default() };
        let run = |seed| {
            let faults = faults.clone();
            async move {
                let mut bench =
                    Bench::open(|options| (options.faults, options.seed) = (faults, seed));
                let mut seen = Vec::new();
                for _ in 0..40 {
                    let done = bench.copy(CopyDirection::Out, &[(0, 0)]).await.expect("an answer");
                    seen.push((done.duration_us, done.result.is_ok()));
                }
                seen
            }
        };
        let seen = run(7).await;
        assert_eq!(seen, run(7).await);
        assert_ne!(seen, run(8).await);
        for kind in [(16, true), (16, false), (160, true), (160, false)] {
            assert!(seen.contains(&kind), "{kind:?} in {seen:?}");
        }
    });
}

#[test]
fn a_lost_device_stays_lost() {
    local(|| async {
        let faults = MockFaults { lost_at_step: Some(StepId(2)), ..MockFaults::default() };
        let mut bench = Bench::open(|options| options.faults = faults);
        bench.sampled(&[1], vec![known(1, 0, &PROMPT, &[0, 1], Some(0))]).await;
        for _ in 0..2 {
            let done = bench.step(&[], vec![]).await;
            assert!(matches!(done.result, Err(StepError::DeviceLost(_))));
        }
        let done = bench.copy(CopyDirection::Out, &[(0, 0)]).await.expect("an answer");
        assert!(matches!(done.result, Err(CopyError::DeviceLost(_))));
    });
}

#[test]
fn noise_changes_durations_and_a_seed_repeats_them() {
    local(|| async {
        let run = |seed| async move {
            let mut bench =
                Bench::open(|options| (options.noise_sigma, options.seed) = (0.2, seed));
            let mut ends = Vec::new();
            for _ in 0..5 {
                bench.sampled(&[], vec![]).await;
                ends.push(bench.clock.now());
            }
            ends
        };
        assert_eq!(run(1).await, run(1).await);
        assert_ne!(run(1).await, run(2).await);
    });
}

#[test]
fn dropping_the_device_lets_its_tasks_end() {
    local(|| async {
        let mut bench = Bench::open(|_| {});
        let step = bench.submit(&[], vec![]).expect("room");
        let log = bench.log.clone();
        drop(bench);
        assert!(step.await.expect("what was submitted is answered").result.is_ok());
        assert_eq!(log.total(), 0);
    });
}
