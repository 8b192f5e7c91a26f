//! Tests of the recorded events of sequences and steps.

use super::*;
use crate::kit::small_device;
use crate::messages::BeginCapture;
use crate::trace::Record;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tiercel_config::{EngineSettings, SloTargets};
use tiercel_device::{
    BlockId, Clock, Epoch, SamplingParams, SeqSlice, SliceInput, StepError, Ticket, Tier,
};
use tiercel_policy::admission::Patience;
use tiercel_policy::blocks::Salt;
use tiercel_policy::scheduler::{Action, FinishReason, Usage};
use tiercel_policy::{Grant, Preempted, Weight};

/// Recorder that keeps all events.
#[derive(Default)]
struct Kept(RefCell<Vec<Event>>);

impl Record for Kept {
    fn record(&self, _: Timestamp, event: &Event) {
        self.0.borrow_mut().push(event.clone());
    }
}

impl Kept {
    /// Removes and returns the events that were recorded so far.
    fn take(&self) -> Vec<Event> {
        self.0.take()
    }
}

fn recorded() -> (SequenceTrace, Rc<Kept>) {
    let kept = Rc::new(Kept::default());
    let recorder: Rc<dyn Record> = kept.clone();
    (SequenceTrace::new(Tracer::new(Some(recorder), Clock::wall())), kept)
}

fn unrecorded() -> SequenceTrace {
    SequenceTrace::new(Tracer::new(None, Clock::wall()))
}

fn new(seq: u64) -> NewSequence {
    NewSequence {
        seq: SeqId(seq),
        tier: Tier::Premium,
        priority: 0,
        salt: Salt([1; 16]),
        weight: Weight::default(),
        prompt: Arc::from([1, 2, 3]),
        max_tokens: 20,
        stop_tokens: Arc::from([]),
        sampling: Arc::new(SamplingParams::greedy()),
        targets: SloTargets::default(),
        may_tighten: None,
        patience: Patience::default(),
        has_retry_credit: false,
        cache_salt: None,
        arrival: Timestamp(seq),
    }
}

/// Makes a step with one slice: the two tokens of sequence 1 from position 4 on.
fn batch(step: u64) -> StepBatch {
    let slice = SeqSlice {
        seq: SeqId(1),
        first_pos: 4,
        input: SliceInput::Known([8, 9].into_iter().collect()),
        table: [].into(),
        sample: Some(0),
    };
    StepBatch { id: StepId(step), starts: vec![], ends: vec![], slices: vec![slice] }
}

fn done(step: u64) -> StepDone {
    StepDone { id: StepId(step), result: Err(StepError::Failed("on purpose".into())) }
}

fn submitted(step: u64) -> Event {
    let slice = Slice { seq: SeqId(1), first_pos: 4, tokens: 2, sample: Some(0) };
    Event::StepSubmitted { step: StepId(step), slices: vec![slice] }
}

/// The record that sequence 1 starts or resumes with its first four tokens computed already.
fn resumed() -> Event {
    Event::Resumed { seq: SeqId(1), computed: 4, copied: 0, failed: 0 }
}

fn ticket(seq: u64) -> Ticket {
    Ticket { seq: SeqId(seq), epoch: Epoch(0) }
}

#[test]
fn a_sequence_arrives_starts_with_its_first_slice_and_ends() {
    let (mut trace, kept) = recorded();
    trace.arrived(&new(1));
    trace.submitted(&batch(1), Timestamp(100));
    trace.submitted(&batch(2), Timestamp(150));
    trace.first_token(SeqId(1));
    let seq = SeqId(1);
    let usage = Usage { completion_tokens: 3, preemptions: 2, ..Usage::default() };
    trace.ended(&EndReport {
        seq,
        tier: Tier::Premium,
        outcome: Some(Ok(FinishReason::Length)),
        usage,
        arrival: Timestamp(0),
        first_token_at: None,
        last_token_at: None,
    });
    let ending = Ending::Length;
    let expected = [
        Event::Arrived { seq, tier: Tier::Premium, prompt: 3, max_tokens: 20 },
        resumed(),
        submitted(1),
        submitted(2),
        Event::FirstToken { seq },
        Event::Ended { seq, ending, tokens: 3, preemptions: 2 },
    ];
    assert_eq!(kept.take(), expected);
}

#[test]
fn the_duration_of_a_step_behind_another_counts_from_the_end_of_the_first() {
    let (mut trace, kept) = recorded();
    trace.submitted(&batch(1), Timestamp(100));
    trace.submitted(&batch(2), Timestamp(150));
    kept.take();
    trace.stepped(&done(1), Timestamp(300));
    trace.stepped(&done(2), Timestamp(420));
    let ended = |step, duration_us| Event::StepEnded { step: StepId(step), ok: false, duration_us };
    // Step 1 lasted from 100 to 300 us, and step 2 from then to 420 us.
    assert_eq!(kept.take(), [ended(1, 200), ended(2, 120)]);
}

#[test]
fn a_committed_swap_is_followed_by_a_resume_and_an_aborted_or_stale_one_is_not() {
    let (mut trace, kept) = recorded();
    let copied = StoreEvent::PreemptCopied { ticket: ticket(1), copied: 3, failed: 1, on_host: 3 };
    trace.store_event(copied, Some(Phase::Preempting), PreemptDecision::Stale);
    assert_eq!(kept.take(), []);
    trace.store_event(copied, Some(Phase::Preempting), PreemptDecision::Abort);
    trace.submitted(&batch(1), Timestamp(1));
    let (seq, failed) = (SeqId(1), 1);
    let aborted = Event::PreemptAborted { seq, copied: 3, failed };
    assert_eq!(kept.take(), [aborted, submitted(1)]);
    trace.store_event(copied, Some(Phase::Preempting), PreemptDecision::Commit);
    trace.submitted(&batch(2), Timestamp(2));
    let committed = Event::PreemptCommitted { seq, copied: 3, failed };
    assert_eq!(kept.take(), [committed, resumed(), submitted(2)]);
}

#[test]
fn blocks_that_were_copied_in_resume_only_a_sequence_that_waited_for_them() {
    let (mut trace, kept) = recorded();
    let event = StoreEvent::Resumed { ticket: ticket(1), computed: 8, copied: 2, failed: 1 };
    trace.store_event(event, Some(Phase::Running), PreemptDecision::Stale);
    trace.store_event(event, None, PreemptDecision::Stale);
    assert_eq!(kept.take(), []);
    trace.store_event(event, Some(Phase::Opening), PreemptDecision::Stale);
    let resumed = Event::Resumed { seq: SeqId(1), computed: 8, copied: 2, failed: 1 };
    assert_eq!(kept.take(), [resumed]);
}

/// Makes a scheduler whose sequence 1 runs and whose sequence 2 waits.
fn one_runs_and_one_waits() -> Scheduler {
    let (info, profile) = small_device();
    let mut core = Scheduler::new(&EngineSettings::default(), &info, profile);
    core.enqueue(new(1));
    core.enqueue(new(2));
    let Some(Action::Reserve { request, .. }) = core.next_action(Timestamp(9)) else {
        panic!("two sequences wait");
    };
    let grant = |ticket: Ticket| {
        let table: Arc<[BlockId]> = Arc::from([BlockId(0)]);
        let outcome = match ticket.seq {
            SeqId(1) => GrantOutcome::Run { computed: 0, cover: 3, table: Some(table) },
            _ => GrantOutcome::Denied { pending_blocks: 0 },
        };
        Grant { ticket, outcome }
    };
    let grants = request.wants.iter().map(|want| grant(want.ticket)).collect();
    core.granted(StepGrant { step: request.step, grants, ..StepGrant::default() });
    assert_eq!(core.phase(SeqId(1)), Some(Phase::Running));
    assert_eq!(core.phase(SeqId(2)), Some(Phase::Waiting));
    core
}

#[test]
fn preemptions_and_copies_of_a_grant_are_recorded_unless_their_sequence_has_ended() {
    let core = one_runs_and_one_waits();
    let (mut trace, kept) = recorded();
    let freed = PreemptOutcome::Freed { blocks: 2, on_host: 1, retained: 0 };
    let copying = PreemptOutcome::Copying { blocks: 3, retained: 0 };
    let preempted = [(2, freed), (1, copying), (1, freed), (9, freed)];
    let preempted = preempted.map(|(seq, outcome)| Preempted { ticket: ticket(seq), outcome });
    let outcome = GrantOutcome::Copying { blocks: 4 };
    let grants = [2, 9].map(|seq| Grant { ticket: ticket(seq), outcome: outcome.clone() });
    let grant = StepGrant {
        step: StepId(2),
        grants: grants.into(),
        preempted: preempted.into(),
        ..StepGrant::default()
    };
    trace.granted(&grant, &core);
    let [first, second] = [SeqId(1), SeqId(2)];
    let expected = [
        Event::GaveMore { seq: second, blocks: 2, on_host: 1 },
        Event::PreemptCopying { seq: first, blocks: 3 },
        Event::PreemptFreed { seq: first, blocks: 2, on_host: 1 },
        Event::ResumeCopying { seq: second, blocks: 4 },
    ];
    assert_eq!(kept.take(), expected);
    trace.submitted(&batch(2), Timestamp(1));
    assert_eq!(kept.take(), [resumed(), submitted(2)], "a preempted sequence resumes");
}

#[test]
fn commands_are_recorded_as_text_with_the_sequence_that_they_name() {
    let (trace, kept) = recorded();
    let seq = SeqId(1);
    let control = Control::Reprioritize { seq, tier: Tier::Premium, priority: -2 };
    trace.command(&control, true);
    trace.command(&Control::Pause(seq), false);
    let text = "reprioritize to premium, priority -2".to_owned();
    let expected = [
        Event::Command { seq: Some(seq), text, known: true },
        Event::Command { seq: Some(seq), text: "pause".to_owned(), known: false },
    ];
    assert_eq!(kept.take(), expected);
}

#[test]
fn without_a_recorder_no_state_is_maintained() {
    let mut trace = unrecorded();
    trace.arrived(&new(1));
    trace.submitted(&batch(1), Timestamp(1));
    let copied = StoreEvent::PreemptCopied { ticket: ticket(2), copied: 3, failed: 1, on_host: 3 };
    trace.store_event(copied, Some(Phase::Preempting), PreemptDecision::Commit);
    assert!(trace.without_blocks.is_empty() && trace.began.is_empty());
}

#[test]
fn a_capture_begins_with_the_phases_and_ends_with_the_events_since() {
    let core = one_runs_and_one_waits();
    let mut trace = unrecorded();
    // Left over from a capture that is long past: sequence 1 runs, so its next slice is no resume.
    trace.without_blocks.insert(SeqId(1));
    trace.submitted(&batch(1), Timestamp(1));
    let begin = |number| {
        let (captured, capture) = oneshot::channel();
        (BeginCapture { number, captured }, capture)
    };
    let (seventh, mut capture) = begin(7);
    assert_eq!(trace.begin_capture(seventh, &core, Timestamp(10)), Ok(()));
    assert_eq!(trace.begin_capture(begin(8).0, &core, Timestamp(11)), Err(CaptureBusy));
    trace.end_capture(Some(8), Timestamp(12));
    assert!(capture.try_recv().is_err(), "the other capture never began");
    trace.submitted(&batch(2), Timestamp(13));
    trace.end_capture(Some(7), Timestamp(20));
    let capture = capture.try_recv().expect("it has ended");
    let phases = [(SeqId(1), Phase::Running), (SeqId(2), Phase::Waiting)];
    assert_eq!((capture.began, capture.ended), (Timestamp(10), Timestamp(20)));
    assert_eq!((capture.phases.as_slice(), capture.cut), (phases.as_slice(), None));
    let events: Vec<Event> = capture.entries.into_iter().map(|entry| entry.event).collect();
    assert_eq!(events, [submitted(2)]);
    assert!(trace.without_blocks.is_empty() && trace.began.is_empty() && !trace.tracer.is_on());
    let (ninth, mut capture) = begin(9);
    assert_eq!(trace.begin_capture(ninth, &core, Timestamp(30)), Ok(()));
    trace.end_capture(Some(7), Timestamp(31));
    assert!(capture.try_recv().is_err(), "the seventh ended long ago");
    trace.end_capture(None, Timestamp(32));
    assert_eq!(capture.try_recv().map(|capture| capture.ended), Ok(Timestamp(32)));
    let (mut recorded, _) = recorded();
    assert_eq!(recorded.begin_capture(begin(1).0, &core, Timestamp(1)), Err(CaptureBusy));
}
