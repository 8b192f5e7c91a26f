//! Tests of preempted sequences that retain some of their KV blocks on the device while they wait.

use super::knobs::{longer, plan, run, tiered};
use crate::protocol::{PreemptOutcome, Preempted, StepGrant, StepRequest, StoreEvent};
use crate::scheduler::*;
use tiercel_config::{PreemptionMode, VictimRule};
use tiercel_device::{SeqId, Tier};

/// Creates a scheduler with two background sequences: 1 runs, and 2 was preempted and retains two blocks on the device.
fn parked() -> State {
    let mut s = tiered(|_| ());
    for id in 1..=2 {
        s.enqueue(longer(id, Tier::Background, 9, 9));
    }
    run(&mut s, 1);
    freed(&mut s, 2, 2);
    s
}

/// Takes blocks of sequence `id`, which must be among the victims of the plan and keeps `retained` blocks. If the
/// sequence runs, it is preempted.
fn freed(s: &mut State, id: u64, retained: u32) {
    let request = plan(s);
    let victim = request.victims.iter().find(|victim| victim.ticket.seq == SeqId(id));
    let ticket = victim.expect("it is a victim").ticket;
    let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained };
    let preempted = vec![Preempted { ticket, outcome }];
    s.granted(StepGrant { step: request.step, preempted, ..StepGrant::default() });
    s.check().expect("invariants hold");
}

fn victims(request: &StepRequest) -> Vec<u64> {
    request.victims.iter().map(|victim| victim.ticket.seq.0).collect()
}

/// Returns how many victims may be preempted for sequence `id`.
fn may_take(request: &StepRequest, id: u64) -> u32 {
    let mut wants = request.wants.iter();
    wants.find(|want| want.ticket.seq == SeqId(id)).expect("it wants").max_victims
}

#[test]
fn it_is_a_victim_before_all_that_run_and_is_preempted_once() {
    let mut s = parked();
    assert_eq!(victims(&plan(&mut s)), [2, 1]);
    let mut s = parked();
    freed(&mut s, 2, 1);
    assert_eq!((s.counters().preemptions(), s.phase(SeqId(2))), (1, Some(Phase::Waiting)));
    freed(&mut s, 2, 0);
    assert_eq!(victims(&plan(&mut s)), [1], "it has nothing more to give");
}

#[test]
fn any_sequence_may_take_retained_blocks() {
    let mut s = parked();
    s.enqueue(longer(3, Tier::Background, 9, 9));
    s.enqueue(longer(4, Tier::Standard, 9, 9));
    let request = plan(&mut s);
    assert_eq!(victims(&request), [2, 1]);
    assert_eq!([1, 3, 4].map(|id| may_take(&request, id)), [2, 1, 2]);

    // A preempted premium sequence that retains blocks precedes the background victim in the list; a standard sequence
    // may nevertheless preempt both.
    let mut s = tiered(|_| ());
    s.enqueue(longer(1, Tier::Background, 9, 9));
    s.enqueue(longer(2, Tier::Premium, 9, 9));
    run(&mut s, 1);
    freed(&mut s, 2, 2);
    s.set_hold(SeqId(2), Hold::Operator, true);
    s.enqueue(longer(3, Tier::Standard, 9, 9));
    let request = plan(&mut s);
    assert_eq!((victims(&request), may_take(&request, 3)), (vec![2, 1], 2));
}

#[test]
fn it_has_given_up_what_it_kept_when_it_runs_again() {
    let mut s = parked();
    run(&mut s, 2);
    assert_eq!(s.phase(SeqId(2)), Some(Phase::Running));
    assert_eq!(victims(&plan(&mut s)), [2, 1], "as any that runs");
    let group = |s: &mut State| plan(s).victims[0].group;
    let (mut waits, mut runs) = (parked(), parked());
    run(&mut runs, 2);
    assert_ne!(group(&mut waits), group(&mut runs));
}

#[test]
fn what_a_copied_victim_keeps_counts_from_its_commit() {
    let mut s = tiered(|_| ());
    for id in 1..=2 {
        s.enqueue(longer(id, Tier::Background, 9, 9));
    }
    run(&mut s, 1);
    let request = plan(&mut s);
    let ticket = request.victims[0].ticket;
    let outcome = PreemptOutcome::Copying { blocks: 1, retained: 2 };
    let preempted = vec![Preempted { ticket, outcome }];
    s.granted(StepGrant { step: request.step, preempted, ..StepGrant::default() });
    s.enqueue(longer(3, Tier::Standard, 9, 9));
    let request = plan(&mut s);
    assert_eq!(victims(&request), [1], "while it is copied it can give nothing");
    s.granted(StepGrant { step: request.step, ..StepGrant::default() });
    let decision =
        s.store_event(StoreEvent::PreemptCopied { ticket, copied: 1, failed: 0, on_host: 1 });
    assert_eq!(decision, PreemptDecision::Commit);
    assert_eq!(victims(&plan(&mut s)), [2, 1]);
}

#[test]
fn copying_is_weighed_against_computing_unless_the_mode_says_which() {
    let weighed = |mode, victim| {
        let mut s = tiered(|e| {
            e.preemption.mode = mode;
            e.preemption.victim = victim;
        });
        s.enqueue(longer(1, Tier::Background, 9, 9));
        let request = plan(&mut s);
        let first_block_us = request.costs.recompute_us(0..1);
        assert!(request.costs.copy_us > 0.0 && first_block_us > request.costs.copy_us);
        (request.victims_by_cost, request.resumes_by_cost)
    };
    assert_eq!(weighed(PreemptionMode::Auto, VictimRule::Rank), (false, true));
    assert_eq!(weighed(PreemptionMode::Swap, VictimRule::ResumeCost), (true, false));
}
