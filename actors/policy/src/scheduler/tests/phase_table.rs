//! Test of the table of phases and events in `docs/phases.md`: applies each event in each phase of a sequence, and
//! compares the outcomes with the table.

use super::{
    MIRROR_PERCENT, NOW, all_sample, grant_all, scheduler, scheduler_of_depth, sequence, submit,
    ticket,
};
use crate::protocol::{
    Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant, StepRequest, StoreEvent,
};
use crate::scheduler::*;
use tiercel_device::{
    Epoch, NotSampled, SeqId, StepBatch, StepDone, StepError, StepId, StepOutput, Ticket, Tier,
    Timestamp,
};

/// Id of the sequence to which the events of the phase table happen.
const ID: SeqId = SeqId(1);
/// Another sequence, which waits.
const RIVAL: SeqId = SeqId(2);

/// Function that brings a sequence into a phase. It also returns the batch of a step in flight that includes the
/// sequence, if there is one.
type Setup = fn() -> (State, Option<StepBatch>);

const PHASES: [(&str, Setup); 9] = [
    ("Waiting", waiting),
    ("Waiting (preempted)", parked),
    ("Waiting (retained blocks)", keeping),
    ("Waiting, still in a step", robbed),
    ("Running, in a step", stepping),
    ("Running, in two steps", stepping_twice),
    ("Running, between steps", running),
    ("Opening", opening),
    ("Preempting", preempting),
];

/// Function that applies one scheduler event to the test's sequence, and returns the outcome in words, such as `ends`.
type Event = fn(&mut State, Option<&StepBatch>) -> String;

const EVENTS: [(&str, Event); 15] = [
    ("cancel", |s, _| match s.cancel(ID) {
        Some(_) => "ends".into(),
        None => "unknown".into(),
    }),
    ("displaced", |s, _| turned_away(s.displace(Tier::Standard, 1, NOW).is_some())),
    ("waits too long", |s, _| turned_away(!s.expire(Timestamp(1_000_000_000)).is_empty())),
    ("hold", |s, _| {
        s.set_hold(ID, Hold::Operator, true);
        let planned = s.plan(NOW).is_some_and(|request| {
            s.granted(StepGrant { step: request.step, ..StepGrant::default() });
            names(&request, ID)
        });
        if planned { "planned" } else { "not planned" }.into()
    }),
    ("reprioritize", |s, _| {
        // The rival came first, so the sequence is before it only by its new tier and its new priority together.
        s.enqueue(NewSequence { arrival: Timestamp(0), ..sequence(RIVAL.0, Tier::Premium, 4) });
        let before = before_rival(s);
        let reprioritize = |s: &mut State, tier, priority| {
            s.reprioritize(ID, tier, priority);
            before_rival(s)
        };
        let after = [
            reprioritize(s, Tier::Premium, -1),
            reprioritize(s, Tier::Premium, 0),
            reprioritize(s, Tier::Standard, -1),
        ];
        s.cancel(RIVAL);
        match (before, after) {
            (Some(false), [Some(true), Some(false), Some(false)]) => "ranked anew".into(),
            (None, [None, None, None]) => "unknown".into(),
            wrong => format!("{wrong:?}"),
        }
    }),
    ("step: token", |s, batch| stepped(s, batch, |batch| all_sample(batch, 7))),
    ("step: stop token", |s, batch| stepped(s, batch, |batch| all_sample(batch, 99))),
    ("step: model fault", |s, batch| {
        stepped(s, batch, |batch| {
            let mut done = all_sample(batch, 7);
            if let Ok(output) = &mut done.result {
                output.sampled[0].1 = Err(NotSampled::BadLogits);
            }
            done
        })
    }),
    ("step fails", |s, batch| {
        stepped(s, batch, |batch| StepDone {
            id: batch.id,
            result: Err(StepError::Failed("kernel".into())),
        })
    }),
    ("copied out, needed", |s, _| {
        s.enqueue(sequence(RIVAL.0, Tier::Premium, 4));
        copied_out(s, current(s))
    }),
    ("copied out, not needed", |s, _| copied_out(s, current(s))),
    ("copied out, stale", |s, _| copied_out(s, Ticket { seq: ID, epoch: Epoch(9) })),
    ("copied in", |s, _| copied_in(s, current(s))),
    ("copied in, stale", |s, _| copied_in(s, Ticket { seq: ID, epoch: Epoch(9) })),
    ("preempted, freed", |s, _| {
        let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 0 };
        // Preempt only if the plan lists the sequence as a victim, as the block store does.
        let Some(request) = s.plan(NOW) else { return "is not offered".into() };
        if request.victims.iter().all(|victim| victim.ticket.seq != ID) {
            s.granted(StepGrant { step: request.step, ..StepGrant::default() });
            return "is not offered".into();
        }
        let before = s.counters().preemptions();
        s.preempted(Preempted { ticket: current(s), outcome });
        let again = s.counters().preemptions() == before;
        if again { "gives retained blocks" } else { "loses its blocks" }.into()
    }),
];

fn turned_away(somebody: bool) -> String {
    if somebody { "turned away" } else { "nothing" }.into()
}

/// Whether the tested sequence `ID` is before the second sequence, `RIVAL`, in the order of service; `None` if either
/// of them is not live.
fn before_rival(s: &State) -> Option<bool> {
    let table = &s.queue.table;
    let rank = |seq| {
        let mut live = table.active().chain(table.queue());
        live.find(|(_, sequence)| sequence.id == seq).map(|(rank, _)| rank)
    };
    Some(rank(ID)? < rank(RIVAL)?)
}

fn names(request: &StepRequest, seq: SeqId) -> bool {
    request.wants.iter().any(|want| want.ticket.seq == seq)
}

fn waiting() -> (State, Option<StepBatch>) {
    let mut s = scheduler(|e| e.preemption.mirror_percent = MIRROR_PERCENT);
    s.enqueue(sequence(1, Tier::Background, 8));
    (s, None)
}

fn stepping() -> (State, Option<StepBatch>) {
    let (mut s, _) = waiting();
    let batch = submit(&mut s);
    (s, Some(batch))
}

fn running() -> (State, Option<StepBatch>) {
    let (mut s, batch) = stepping();
    s.step_done(all_sample(&batch.expect("in a step"), 7), Timestamp(1));
    (s, None)
}

fn two_deep() -> State {
    let mut s = scheduler_of_depth(2, |e| e.preemption.mirror_percent = MIRROR_PERCENT);
    s.enqueue(sequence(1, Tier::Background, 8));
    s.observe_planning(10_000);
    s
}

fn stepping_twice() -> (State, Option<StepBatch>) {
    let mut s = two_deep();
    let batch = submit(&mut s);
    submit(&mut s);
    (s, Some(batch))
}

/// Creates a scheduler with a sequence that is in a step in flight and was preempted for the next step.
fn robbed() -> (State, Option<StepBatch>) {
    let mut s = two_deep();
    let batch = submit(&mut s);
    let request = s.plan(NOW).expect("it wants to grow");
    let outcome = PreemptOutcome::Freed { blocks: 2, on_host: 2, retained: 0 };
    let preempted = vec![Preempted { ticket: ticket(1), outcome }];
    s.granted(StepGrant { step: request.step, preempted, ..StepGrant::default() });
    (s, Some(batch))
}

fn opening() -> (State, Option<StepBatch>) {
    let (mut s, _) = parked();
    let request = s.plan(NOW).expect("it wants to open");
    let outcome = GrantOutcome::Copying { blocks: 1 };
    let grants = vec![Grant { ticket: request.wants[0].ticket, outcome }];
    s.granted(StepGrant { step: request.step, grants, ..StepGrant::default() });
    (s, None)
}

fn take(outcome: PreemptOutcome) -> (State, Option<StepBatch>) {
    let (mut s, _) = running();
    let request = s.plan(NOW).expect("it wants to grow");
    let preempted = vec![Preempted { ticket: ticket(1), outcome }];
    s.granted(StepGrant { step: request.step, preempted, ..StepGrant::default() });
    (s, None)
}

fn parked() -> (State, Option<StepBatch>) {
    take(PreemptOutcome::Freed { blocks: 2, on_host: 2, retained: 0 })
}

fn keeping() -> (State, Option<StepBatch>) {
    take(PreemptOutcome::Freed { blocks: 1, on_host: 1, retained: 1 })
}

fn preempting() -> (State, Option<StepBatch>) {
    take(PreemptOutcome::Copying { blocks: 2, retained: 0 })
}

fn current(s: &State) -> Ticket {
    s.queue.table.get(ID).map_or(ticket(1), |sequence| sequence.ticket())
}

fn stepped(
    s: &mut State,
    batch: Option<&StepBatch>,
    done: impl Fn(&StepBatch) -> StepDone,
) -> String {
    let Some(batch) = batch else { return "cannot be".into() };
    let effects = s.step_done(done(batch), Timestamp(2));
    match effects.first() {
        Some(Effect::Token { .. }) => "delivers".into(),
        Some(Effect::Ended(_)) => "ends".into(),
        None if s.suspects.contains(ID) => "runs alone".into(),
        None => "nothing".into(),
    }
}

fn copied_out(s: &mut State, ticket: Ticket) -> String {
    match s.store_event(StoreEvent::PreemptCopied { ticket, copied: 2, failed: 0, on_host: 2 }) {
        PreemptDecision::Commit => "commit".into(),
        PreemptDecision::Abort => "abort".into(),
        PreemptDecision::Stale => "nothing".into(),
    }
}

fn copied_in(s: &mut State, ticket: Ticket) -> String {
    let before = s.phase(ID);
    s.store_event(StoreEvent::Resumed { ticket, computed: 4, copied: 1, failed: 0 });
    if s.phase(ID) == before { "nothing".into() } else { "goes on".into() }
}

fn phase_name(s: &State) -> &'static str {
    match s.phase(ID) {
        None => "gone",
        Some(Phase::Waiting) => "Waiting",
        Some(Phase::Running) => "Running",
        Some(Phase::Opening) => "Opening",
        Some(Phase::Preempting) => "Preempting",
    }
}

fn table() -> String {
    let mut table = String::from("| event |");
    for (phase, _) in PHASES {
        table += &format!(" {phase} |");
    }
    table += &format!("\n|---|{}\n", "---|".repeat(PHASES.len()));
    for (event, act) in EVENTS {
        table += &format!("| {event} |");
        for (_, setup) in PHASES {
            let (mut s, batch) = setup();
            let what = act(&mut s, batch.as_ref());
            s.check().expect("invariants hold");
            table += &format!(" {what} → {} |", phase_name(&s));
        }
        table += "\n";
    }
    table
}

#[test]
fn every_event_in_every_phase_does_what_the_documentation_says() {
    let documented = include_str!("../../../../../docs/phases.md");
    let table = table();
    assert!(documented.contains(&table), "docs/phases.md should hold this table:\n\n{table}");
}

#[test]
fn a_cancelled_sequence_is_gone_for_every_later_event() {
    for (phase, setup) in PHASES {
        let (mut s, batch) = setup();
        s.cancel(ID).expect("it lives");
        if let Some(batch) = &batch {
            assert!(s.step_done(all_sample(batch, 7), Timestamp(3)).is_empty(), "{phase}");
            // Complete the second step too, in phases with two steps in flight.
            let next = StepDone { id: StepId(batch.id.0 + 1), result: Ok(StepOutput::default()) };
            assert!(s.step_done(next, Timestamp(4)).is_empty(), "{phase}");
        }
        for (event, act) in EVENTS {
            act(&mut s, None);
            assert_eq!(s.phase(ID), None, "{event} after cancel in {phase}");
            s.cancel(RIVAL);
        }
        while let Some(request) = s.plan(NOW) {
            s.granted(grant_all(&request));
        }
        assert!(s.is_drained(), "{phase}");
    }
}
