//! Tests of steps that fail or never run, and of a model fault.

use super::{NOW, all_sample, grant_all, ids, scheduler, sequence, step, submit};
use crate::protocol::{Grant, GrantOutcome, StepGrant};
use crate::scheduler::*;
use tiercel_device::{NotSampled, SeqId, StepBatch, StepDone, StepError, Tier, Timestamp};

#[test]
fn a_suspect_without_blocks_lets_the_others_make_room() {
    let mut s = scheduler(|_| ());
    for id in 1..=2 {
        s.enqueue(sequence(id, Tier::Standard, 4));
    }
    let batch = submit(&mut s);
    let failed = Err(StepError::Failed("kernel".into()));
    s.step_done(StepDone { id: batch.id, result: failed }, Timestamp(1));
    // Sequence 1, the first suspect of the failed step, succeeds alone and is cleared; sequence 2, the second suspect,
    // is denied blocks.
    let alone = submit(&mut s);
    s.step_done(all_sample(&alone, 1), Timestamp(2));
    for _ in 0..2 {
        let request = s.plan(NOW).expect("a step");
        assert_eq!(ids(&request), [2]);
        let outcome = GrantOutcome::Denied { pending_blocks: 0 };
        let grants = vec![Grant { ticket: request.wants[0].ticket, outcome }];
        s.granted(StepGrant { step: request.step, grants, ..StepGrant::default() });
        assert!(s.may_replan(), "there is more to do at once");
        let batch = submit(&mut s);
        assert_eq!(batch.slices[0].seq, SeqId(1), "it runs meanwhile");
        s.step_done(all_sample(&batch, 1), Timestamp(3));
    }
}

#[test]
fn a_step_that_never_runs_holds_nothing_up() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 4));
    let request = s.plan(NOW).expect("a step");
    s.cancel(SeqId(1)).expect("it lives");
    assert!(s.granted(grant_all(&request)).0.is_none());
    assert!(s.may_replan());
    let release = s.plan(NOW).expect("a release");
    assert_eq!(release.completed_step, request.step, "copies behind it may start");
}

#[test]
fn a_failed_step_is_investigated_one_member_at_a_time() {
    let mut s = scheduler(|_| ());
    for id in 1..=3 {
        s.enqueue(sequence(id, Tier::Standard, 4));
    }
    let batch = submit(&mut s);
    let fail = |batch: &StepBatch| StepDone {
        id: batch.id,
        result: Err(StepError::Failed("kernel".into())),
    };
    assert!(s.step_done(fail(&batch), Timestamp(1)).is_empty(), "nobody is guilty yet");
    let alone = submit(&mut s);
    assert_eq!(alone.slices.len(), 1);
    assert_eq!(s.step_done(all_sample(&alone, 1), Timestamp(2)).len(), 1);
    let alone = submit(&mut s);
    let effects = s.step_done(fail(&alone), Timestamp(3));
    assert!(matches!(
        &effects[..],
        [Effect::Ended(EndReport { seq: SeqId(2), outcome: Some(Err(RequestFault::Step(_))), .. })]
    ));
    step(&mut s);
    assert_eq!(submit(&mut s).slices.len(), 2, "then everybody runs together again");
}

#[test]
fn a_model_fault_ends_only_its_own_request() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 4));
    s.enqueue(sequence(2, Tier::Standard, 4));
    let batch = submit(&mut s);
    let mut done = all_sample(&batch, 1);
    if let Ok(output) = &mut done.result {
        output.sampled[0].1 = Err(NotSampled::BadLogits);
    }
    let effects = s.step_done(done, Timestamp(1));
    assert!(matches!(&effects[0], Effect::Ended(report) if report.seq == SeqId(1)));
    assert!(matches!(&effects[1], Effect::Token { seq: SeqId(2), .. }));
}
