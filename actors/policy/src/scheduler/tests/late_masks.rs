//! Tests of sequences whose masks are late, so that their draws are postponed.

use super::pipeline::{LATE, done, grant, submit, with_sequences};
use super::{all_sample, grant_all, scheduler, sequence, step, ticket};
use crate::protocol::{PreemptOutcome, Preempted};
use crate::scheduler::*;
use tiercel_device::{NotSampled, SeqId, SliceInput, StepBatch, StepDone, Tier, Timestamp};

/// Returns the result of a successful step in which the mask of sequence 1 is late, and token 7 is sampled for the
/// others.
fn late_for_the_first(batch: &StepBatch) -> StepDone {
    let mut done = all_sample(batch, 7);
    if let Ok(output) = &mut done.result {
        let first = output.sampled.iter_mut().find(|(seq, _)| *seq == SeqId(1));
        first.expect("sequence 1 is in the step").1 = Err(NotSampled::MaskLate);
    }
    done
}

/// Returns first position, input and sampled output number of the slice of sequence 1.
fn first_slice(batch: &StepBatch) -> (u32, SliceInput, Option<u32>) {
    let slice = batch.slices.iter().find(|slice| slice.seq == SeqId(1)).expect("a slice");
    (slice.first_pos, slice.input.clone(), slice.sample)
}

#[test]
fn a_sequence_whose_mask_was_late_computes_its_last_token_again() {
    let mut s = scheduler(|_| ());
    for id in 1..=2 {
        s.enqueue(sequence(id, Tier::Standard, 4));
    }
    let prompt = submit(&mut s);
    let effects = s.step_done(late_for_the_first(&prompt), Timestamp(1));
    assert!(matches!(&effects[..], [Effect::Token { seq: SeqId(2), .. }]), "{effects:?}");
    for at in 2..4 {
        let again = submit(&mut s);
        let last = SliceInput::Known([3].into_iter().collect());
        assert_eq!(first_slice(&again), (3, last, Some(0)));
        s.step_done(late_for_the_first(&again), Timestamp(at));
        assert_eq!(s.counters().postponed_draws, at);
        s.check().expect("invariants hold");
    }
    step(&mut s);
    let next = submit(&mut s);
    assert_eq!(first_slice(&next).0, 4, "the draw was made");
}

#[test]
fn results_of_a_step_behind_a_late_mask_do_not_count_for_its_sequence() {
    let mut s = with_sequences(2, 4);
    let prompt = submit(&mut s);
    let behind = submit(&mut s);
    assert_eq!(first_slice(&behind), (4, SliceInput::SampledBy(prompt.id), Some(1)));
    s.step_done(late_for_the_first(&prompt), LATE);
    let again = submit(&mut s);
    let last = SliceInput::Known([3].into_iter().collect());
    assert_eq!(first_slice(&again), (3, last, Some(0)));
    let effects = done(&mut s, &behind, 7);
    assert!(matches!(&effects[..], [Effect::Token { seq: SeqId(2), .. }]), "{effects:?}");
    let effects = done(&mut s, &again, 7);
    assert!(matches!(&effects[0], Effect::Token { seq: SeqId(1), .. }), "{effects:?}");
    s.check().expect("invariants hold");
}

#[test]
fn a_plan_that_relied_on_a_late_draw_computes_the_last_token_again() {
    let mut s = with_sequences(1, 4);
    let prompt = submit(&mut s);
    let request = s.plan(LATE).expect("a step behind the first");
    let granted = grant(&s, &request);
    s.step_done(late_for_the_first(&prompt), LATE);
    let batch = s.granted(granted).0.expect("a batch");
    let last = SliceInput::Known([3].into_iter().collect());
    assert_eq!(first_slice(&batch), (3, last, Some(0)));
    s.check().expect("invariants hold");
}

#[test]
fn a_preempted_sequence_does_not_open_before_the_step_with_its_void_part_has_ended() {
    let mut s = with_sequences(1, 4);
    let prompt = submit(&mut s);
    let behind = submit(&mut s);
    s.step_done(late_for_the_first(&prompt), LATE);
    let error = s.cost_error().step;
    let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 1, retained: 0 };
    s.preempted(Preempted { ticket: ticket(1), outcome });
    let request = s.plan(LATE).expect("news for the block store");
    assert!(request.wants.is_empty(), "a step still has it");
    s.granted(grant_all(&request));
    s.check().expect("invariants hold");
    done(&mut s, &behind, 7);
    assert_eq!(s.cost_error().step, error, "the device left the void part out");
    assert_eq!(s.plan(LATE).expect("a step").wants.len(), 1);
}

#[test]
fn a_step_teaches_no_costs_if_the_device_leaves_out_a_sequence_that_has_ended() {
    let mut s = with_sequences(1, 4);
    let prompt = submit(&mut s);
    let behind = submit(&mut s);
    let error = s.cost_error().step;
    s.cancel(SeqId(1));
    s.step_done(late_for_the_first(&prompt), LATE);
    let learned = s.cost_error().step;
    assert_ne!(learned, error, "the prompt was computed");
    done(&mut s, &behind, 7);
    assert_eq!(s.cost_error().step, learned, "the device left the sequence out");
}
