//! Tests of the recorder: the contents and the limits of recordings.

use super::*;
use crate::recording::Unanswered;
use crate::request::{FinishReason, RequestFault, Usage};
use tiercel_config::SloTargets;
use tiercel_device::{Constraint, ConstraintState, SamplingParams, Tier, TokenId};
use tiercel_policy::Weight;
use tiercel_policy::blocks::Salt;

const LIMITS: RecordingLimits = RecordingLimits { max_sequences: 3, max_us: 60_000_000 };

fn request(prompt: &[TokenId]) -> Request {
    Request {
        tier: Tier::Standard,
        priority: 0,
        salt: Salt([0; 16]),
        weight: Weight::default(),
        prompt: Arc::from(prompt),
        max_tokens: 9,
        stop_tokens: Arc::from([]),
        sampling: Arc::new(SamplingParams::greedy()),
        targets: SloTargets::default(),
        may_tighten: None,
        max_wait_ms: None,
        waited_ms: 0,
        sibling: false,
        cache_salt: None,
        returning: false,
    }
}

fn arrives(recorder: &Recorder, seq: u64) -> Place {
    let place = recorder.arrived(&request(&[1, 2, 3]), None).expect("it is recorded");
    recorder.answered(place, Some(SeqId(seq)));
    place
}

fn ends(recorder: &Recorder) -> Vec<Option<RecordedEnd>> {
    recorder.end();
    let recording = recorder.ended().expect("it has ended");
    recording.sequences().iter().map(|row| row.end.map(|(end, _)| end)).collect()
}

#[derive(Debug)]
struct Grammar;

impl Constraint for Grammar {
    fn start(&self) -> Box<dyn ConstraintState> {
        unreachable!("the recorder only asks whether there is a constraint")
    }
}

#[test]
fn a_recording_tells_which_outputs_follow_a_constraint() {
    let recorder = Recorder::new(Clock::wall());
    recorder.begin(LIMITS, None, &[]).expect("none runs");
    let constraint: Option<Arc<dyn Constraint>> = Some(Arc::new(Grammar));
    for constraint in [None, constraint] {
        let sampling = Arc::new(SamplingParams { constraint, ..SamplingParams::greedy() });
        recorder.arrived(&Request { sampling, ..request(&[1]) }, None);
    }
    recorder.end();
    let recording = recorder.ended().expect("it has ended");
    let constrained: Vec<bool> =
        recording.sequences().iter().map(|row| row.asked.constrained).collect();
    assert_eq!(constrained, [false, true]);
}

#[test]
fn every_end_is_recorded_and_what_goes_on_stays_open() {
    let recorder = Recorder::new(Clock::wall());
    assert!(recorder.arrived(&request(&[1]), None).is_none(), "no recording runs");
    let limits = RecordingLimits { max_sequences: 9, ..LIMITS };
    recorder.begin(limits, Some(2), &[]).expect("none runs");
    assert_eq!(recorder.begin(limits, None, &[]), None, "one runs");
    assert!(recorder.ended().is_none());
    (1..=7).for_each(|seq| _ = arrives(&recorder, seq));
    let refused = recorder.arrived(&request(&[1]), None).expect("it is recorded");
    recorder.answered(refused, None);
    let usage = Usage { completion_tokens: 4, preemptions: 2, ..Usage::default() };
    let finished = |reason| StreamEvent::Finished { reason, usage };
    let token = StreamEvent::Token { token: 5, logprobs: None };
    recorder.taken(SeqId(1), Some(&token));
    recorder.taken(SeqId(1), Some(&finished(FinishReason::Stop)));
    recorder.left(SeqId(1));
    recorder.taken(SeqId(2), Some(&finished(FinishReason::Length)));
    let fault = RequestFault::TurnedAway { retry_after_ms: 5 };
    recorder.taken(SeqId(3), Some(&StreamEvent::Failed(fault)));
    recorder.taken(SeqId(4), Some(&token));
    recorder.left(SeqId(4));
    recorder.taken(SeqId(5), None);
    recorder.refused_with_another(SeqId(1));
    recorder.refused_with_another(SeqId(7));
    recorder.left(SeqId(7));
    assert_eq!(recorder.status().map(|status| (status.sequences, status.live)), Some((8, 1)));
    let expected = [
        Some(RecordedEnd::Stop),
        Some(RecordedEnd::Length),
        Some(RecordedEnd::TurnedAway),
        Some(RecordedEnd::Left),
        Some(RecordedEnd::Failed),
        None,
        Some(RecordedEnd::Refused),
        Some(RecordedEnd::Refused),
    ];
    assert_eq!(ends(&recorder), expected);
    let recording = recorder.ended().expect("it has ended");
    let rows = recording.sequences();
    assert_eq!((rows[0].progress.tokens, rows[0].progress.preemptions), (4, 2));
    assert_eq!(rows[3].progress.tokens, 1);
    assert_eq!(rows[1].shared.map(|shared| (shared.number, shared.tokens)), Some((0, 2)));
}

#[test]
fn a_recording_ends_at_its_sequences_and_at_its_time() {
    let recorder = Recorder::new(Clock::wall());
    recorder.begin(LIMITS, None, &[]).expect("none runs");
    (1..=3).for_each(|seq| _ = arrives(&recorder, seq));
    assert!(recorder.is_active());
    assert!(recorder.arrived(&request(&[1]), None).is_none(), "there is no room");
    let status = recorder.status().expect("a recording");
    assert_eq!((status.state, status.sequences), (RecordingState::Ended, 3));
    assert_eq!(status.cut, Some(RecordingCut::Sequences));
    let limits = RecordingLimits { max_us: 0, ..LIMITS };
    let began = recorder.begin(limits, None, &[]).expect("the other has ended");
    assert!(!recorder.add_steps(began, &[]), "its time is over");
    assert_eq!(recorder.status().and_then(|status| status.cut), Some(RecordingCut::Time));
    assert!(!recorder.end(), "it has ended");
}

#[test]
fn a_sequence_of_an_earlier_recording_changes_no_later_one() {
    let recorder = Recorder::new(Clock::wall());
    let began = recorder.begin(LIMITS, None, &[]).expect("none runs");
    let place = recorder.arrived(&request(&[1]), None).expect("it is recorded");
    arrives(&recorder, 1);
    recorder.end();
    // The clock counts in us, so another recording begins at another time.
    while recorder.clock.now() == began {}
    let later = recorder.begin(LIMITS, None, &[]).expect("the other has ended");
    arrives(&recorder, 2);
    recorder.answered(place, None);
    recorder.left(SeqId(1));
    let step = StepRecord { step: 2, ended_at_us: u64::MAX, ..StepRecord::default() };
    assert!(!recorder.add_steps(began, &[step]));
    assert!(recorder.add_steps(later, &[StepRecord { step: 1, ..StepRecord::default() }, step]));
    assert_eq!(recorder.status().map(|status| status.steps), Some(1), "one began before");
    assert_eq!(ends(&recorder), [None]);
}

#[test]
fn steps_beyond_the_limit_are_left_out_and_that_is_told() {
    let recorder = Recorder::new(Clock::wall());
    let began = recorder.begin(LIMITS, None, &[]).expect("none runs");
    let step = |step| StepRecord { step, ended_at_us: u64::MAX, ..StepRecord::default() };
    let told = || recorder.status().map(|status| status.steps_cut);
    let most = MAX_RECORDED_STEPS as u64;
    let steps: Vec<StepRecord> = (1..=most).map(step).collect();
    recorder.add_steps(began, &steps[..9]);
    recorder.add_steps(began, &steps);
    assert_eq!(told(), Some(false), "a step that is added twice counts once");
    assert_eq!(recorder.newest_step(), Some((began, most)));
    recorder.add_steps(began, &[step(most + 1)]);
    assert_eq!(told(), Some(true), "it is told while the recording runs");
    recorder.end();
    let recording = recorder.ended().expect("it has ended");
    assert_eq!((recording.steps().len(), recording.steps_cut()), (MAX_RECORDED_STEPS, true));
}

#[test]
fn a_recording_is_no_longer_than_its_longest_time() {
    let recorder = Recorder::new(Clock::wall());
    recorder.begin(RecordingLimits { max_us: 0, ..LIMITS }, None, &[]).expect("none runs");
    assert!(recorder.arrived(&request(&[1]), None).is_none(), "it is over");
    let recording = recorder.ended().expect("it has ended");
    assert_eq!((recording.length_us(), recording.cut()), (0, Some(RecordingCut::Time)));
}

#[test]
fn events_after_the_longest_time_are_not_recorded() {
    let recorder = Recorder::new(Clock::wall());
    let began = recorder.begin(LIMITS, None, &[]).expect("none runs");
    let place = arrives(&recorder, 1);
    recorder.taken(SeqId(1), Some(&StreamEvent::Token { token: 5, logprobs: None }));
    if let Some(recording) = running_one(&mut recorder.lock()) {
        recording.limits.max_us = 0;
    }
    recorder.taken(SeqId(1), Some(&StreamEvent::Token { token: 6, logprobs: None }));
    recorder.left(SeqId(1));
    recorder.abandoned(place);
    assert!(!recorder.add_steps(began, &[]));
    assert_eq!(recorder.status().and_then(|status| status.cut), Some(RecordingCut::Time));
    let recording = recorder.ended().expect("it has ended");
    let row = &recording.sequences()[0];
    assert_eq!((row.progress.tokens, row.end), (1, None));
}

#[test]
fn a_client_that_leaves_before_the_answer_has_left() {
    let recorder = Recorder::new(Clock::wall());
    recorder.begin(LIMITS, None, &[]).expect("none runs");
    drop(Unanswered::new(&recorder, recorder.arrived(&request(&[1]), None)));
    Unanswered::new(&recorder, recorder.arrived(&request(&[1]), None)).answered(None);
    assert_eq!(ends(&recorder), [Some(RecordedEnd::Left), Some(RecordedEnd::Refused)]);
}
