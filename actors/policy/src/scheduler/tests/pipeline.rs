//! Tests of the scheduler with two steps in flight.

use super::{all_sample, grant_all, grant_first, scheduler_of_depth, sequence, ticket};
use crate::accounting::StepShares;
use crate::protocol::{GrantOutcome, PreemptOutcome, Preempted, StepGrant, StepRequest};
use crate::scheduler::sequence::Sequence;
use crate::scheduler::*;
use tiercel_device::{
    SeqId, SliceInput, StepBatch, StepDone, StepError, StepId, Tier, Timestamp, TokenId,
};

/// Time so late that every step in flight is due to end, and the next step may be planned.
pub(super) const LATE: Timestamp = Timestamp(1_000_000);

/// Time that the host takes to plan a step, us: longer than any step of these tests.
const HOST_US: u64 = 10_000;

/// Creates a scheduler with two steps in flight, whose host is so slow that two steps in flight are worth while.
fn two_deep() -> State {
    let mut s = scheduler_of_depth(2, |_| ());
    s.observe_planning(HOST_US);
    s
}

pub(super) fn with_sequences(count: u64, prompt: u32) -> State {
    let mut s = two_deep();
    (1..=count).for_each(|id| s.enqueue(sequence(id, Tier::Standard, prompt)));
    s
}

/// Returns the block store's answer that grants all blocks of a step request, with the number of valid tokens that the
/// scheduler has for each sequence.
pub(super) fn grant(s: &State, request: &StepRequest) -> StepGrant {
    let mut grant = grant_all(request);
    for (granted, want) in grant.grants.iter_mut().zip(&request.wants) {
        let known = live(s, want.ticket.seq.0).kv.computed;
        let ends = want.len.min(known + want.new_tokens);
        if let GrantOutcome::Run { computed, cover, .. } = &mut granted.outcome {
            (*computed, *cover) = (known, ends);
        }
    }
    grant
}

pub(super) fn submit(s: &mut State) -> StepBatch {
    let now = s.next_plan().map_or(LATE, |due| due.max(LATE));
    let request = s.plan(now).expect("something to run");
    let granted = grant(s, &request);
    let batch = s.granted(granted).0.expect("a batch");
    s.check().expect("invariants hold");
    batch
}

pub(super) fn done(s: &mut State, batch: &StepBatch, token: TokenId) -> Vec<Effect> {
    let effects = s.step_done(all_sample(batch, token), LATE);
    s.check().expect("invariants hold");
    effects
}

/// Completes a step with a failure and returns what is reported to clients.
fn fails(s: &mut State, batch: &StepBatch) -> Vec<Effect> {
    let result = Err(StepError::Failed("kernel".into()));
    let effects = s.step_done(StepDone { id: batch.id, result }, LATE);
    s.check().expect("invariants hold");
    effects
}

fn members(batch: &StepBatch) -> Vec<u64> {
    batch.slices.iter().map(|slice| slice.seq.0).collect()
}

fn live(s: &State, id: u64) -> &Sequence {
    s.queue.table.get(SeqId(id)).expect("it is live")
}

#[test]
fn the_second_step_is_planned_shortly_before_the_first_ends_and_takes_its_token_from_it() {
    let mut s = with_sequences(1, 4);
    let request = s.plan(Timestamp(500)).expect("it can run");
    assert_eq!(s.next_plan(), None, "the store is asked");
    let first = s.granted(grant_all(&request)).0.expect("a batch");
    // The step takes 140 us, which is less than the planning lead, so the next step may be planned at once.
    assert_eq!(s.next_plan(), Some(Timestamp(500)));
    let second = submit(&mut s);
    let slice = &second.slices[0];
    assert_eq!(slice.input, SliceInput::SampledBy(first.id));
    assert_eq!((slice.first_pos, slice.sample), (4, Some(1)));
    assert!(s.plan(LATE).is_none(), "two are in flight");
    let tokens: Vec<Effect> = [done(&mut s, &first, 7), done(&mut s, &second, 8)].concat();
    let tokens: Vec<u32> = tokens
        .iter()
        .map(|effect| match effect {
            Effect::Token { token, .. } => *token,
            Effect::Ended(report) => panic!("{report:?}"),
        })
        .collect();
    assert_eq!(tokens, [7, 8]);
    assert_eq!((live(&s, 1).kv.computed, live(&s, 1).len()), (5, 6));
}

#[test]
fn on_a_device_that_takes_one_nothing_is_planned_before_it_ends() {
    for (device, setting) in [(1, 2), (2, 1)] {
        let mut s =
            scheduler_of_depth(device, |settings| settings.scheduler.steps_in_flight = setting);
        s.enqueue(sequence(1, Tier::Standard, 4));
        submit(&mut s);
        assert_eq!(s.next_plan(), None);
        assert!(s.plan(LATE).is_none());
    }
}

#[test]
fn steps_follow_at_once_only_where_the_host_takes_time() {
    let mut s = scheduler_of_depth(2, |_| ());
    s.enqueue(sequence(1, Tier::Standard, 4));
    let first = submit(&mut s);
    assert_eq!(s.next_plan(), None);
    assert!(s.plan(LATE).is_none());
    s.observe_planning(HOST_US);
    assert!(s.plan(LATE).is_some());
    assert_eq!(first.slices.len(), 1);
}

#[test]
fn the_lead_becomes_such_that_few_steps_are_late() {
    let mut pipeline = crate::scheduler::pipeline::Pipeline::new(2);
    (0..100).for_each(|_| pipeline.observe_planning(HOST_US));
    let (step_us, mut late, mut now) = (200_000.0, 0, Timestamp(0));
    let mut begins = Timestamp(0);
    for number in 0..20_000_u64 {
        let step = pipeline.reserve(now);
        pipeline.reserved(step).expect("it was asked for");
        let in_flight = |begins| crate::scheduler::pipeline::InFlight {
            step,
            members: vec![SeqId(1)],
            work: StepWork::default(),
            time_us: [0.0; 4],
            shares: StepShares::default(),
            begins,
            expected_us: step_us,
            invalidated: false,
            partial: false,
        };
        pipeline.submit(in_flight(begins));
        let due = pipeline.next_plan().expect("a second step is allowed");
        // Simulated noise: the step ends up to 4 ms sooner than expected.
        let ends = begins + step_us as u64 - number * 7919 % 4000;
        let next = (ends >= due).then(|| pipeline.reserve(due));
        if let Some(next) = next {
            pipeline.reserved(next).expect("it was asked for");
            let follows = crate::scheduler::pipeline::InFlight { step: next, ..in_flight(ends) };
            pipeline.submit(follows);
        }
        let ended = pipeline.ended(step, ends).expect("it was in flight");
        pipeline.learn_lead(&ended);
        late += u64::from(next.is_none() && number >= 10_000);
        if let Some(next) = next {
            pipeline.ended(next, ends + 1).expect("it follows");
        }
        (now, begins) = (ends + 2, ends + 2);
    }
    assert!((300..700).contains(&late), "{late} of 10,000 were late");
}

#[test]
fn a_sequence_whose_last_token_is_in_flight_is_in_no_further_step() {
    let mut s = with_sequences(2, 4);
    s.queue.table.update(SeqId(1), |sequence| sequence.text.tokens.extend([1, 1, 1]));
    let first = submit(&mut s);
    assert_eq!(members(&first), [1, 2]);
    let second = submit(&mut s);
    assert_eq!(members(&second), [2], "the first has four tokens when that step ends");
    let effects = done(&mut s, &first, 7);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Ended(_))), "{effects:?}");
}

#[test]
fn what_is_computed_after_a_stop_token_is_discarded() {
    let mut s = with_sequences(1, 4);
    let (first, second) = (submit(&mut s), submit(&mut s));
    let effects = done(&mut s, &first, 99);
    assert!(matches!(&effects[..], [Effect::Ended(_)]), "{effects:?}");
    assert_eq!(done(&mut s, &second, 8), []);
    let request = s.plan(LATE).expect("its blocks are given back");
    assert_eq!(request.released, [SeqId(1)]);
    assert_eq!(request.completed_step, second.id);
    assert!(s.granted(grant_all(&request)).0.is_none());
    assert!(s.is_drained());
}

#[test]
fn copies_wait_for_steps_that_are_in_flight() {
    let mut s = with_sequences(1, 4);
    let first = submit(&mut s);
    let request = s.plan(LATE).expect("a second step");
    assert_eq!(request.completed_step, StepId(first.id.0 - 1));
    // Let the block store grant nothing, so that the second step is never submitted while the first is still in flight.
    let nothing = StepGrant { step: request.step, ..StepGrant::default() };
    assert!(s.granted(nothing).0.is_none());
    let request = s.plan(LATE).expect("it wants to go on");
    assert_eq!(request.completed_step, StepId(first.id.0 - 1));
}

#[test]
fn chunks_of_a_prompt_follow_each_other_in_flight() {
    let mut s = with_sequences(1, 70);
    let (first, second) = (submit(&mut s), submit(&mut s));
    let part = |batch: &StepBatch| (batch.slices[0].first_pos, batch.slices[0].input.len());
    assert_eq!((part(&first), part(&second)), ((0, 32), (32, 32)));
    done(&mut s, &first, 0);
    assert_eq!(live(&s, 1).kv.computed, 32);
    let third = submit(&mut s);
    assert_eq!((part(&third), third.slices[0].sample), ((64, 6), Some(0)));
}

#[test]
fn the_store_hears_of_the_end_of_a_step_at_once_although_the_next_is_not_planned_yet() {
    let mut s = with_sequences(2, 4);
    let (first, second) = (submit(&mut s), submit(&mut s));
    assert_eq!(s.take_completed(), None);
    s.step_done(all_sample(&first, 7), LATE);
    assert!(s.plan(Timestamp(0)).is_none(), "it is not time for the next");
    assert_eq!(s.take_completed(), Some(first.id));
    assert_eq!(s.take_completed(), None, "once");
    s.step_done(all_sample(&second, 7), LATE);
    assert_eq!(s.plan(LATE).expect("a third step").completed_step, second.id);
    assert_eq!(s.take_completed(), None, "the request told it");
}

#[test]
fn a_step_that_is_being_planned_has_not_completed() {
    let mut s = with_sequences(1, 4);
    let first = submit(&mut s);
    let request = s.plan(LATE).expect("the next is planned");
    s.step_done(all_sample(&first, 7), LATE);
    assert_eq!(s.take_completed(), Some(first.id), "and not that which is to follow");
    let granted = grant(&s, &request);
    assert!(s.granted(granted).0.is_some());
}

/// Creates a scheduler with two decoding sequences, and a step of both in flight.
fn decoding() -> (State, StepBatch) {
    let mut s = with_sequences(2, 4);
    let prompts = submit(&mut s);
    done(&mut s, &prompts, 7);
    let step = submit(&mut s);
    (s, step)
}

#[test]
fn the_token_of_a_victim_counts_and_it_opens_only_after_it() {
    let (mut s, in_flight) = decoding();
    let request = s.plan(LATE).expect("another step");
    let outcome = PreemptOutcome::Freed { blocks: 2, on_host: 0, retained: 0 };
    let preempted = vec![Preempted { ticket: ticket(2), outcome }];
    let follows = s.granted(StepGrant { preempted, ..grant_first(&request) }).0.expect("a batch");
    s.check().expect("invariants hold");
    assert_eq!((members(&in_flight), members(&follows)), (vec![1, 2], vec![1]));
    assert_eq!(s.phase(SeqId(2)), Some(Phase::Waiting));
    let delivered = done(&mut s, &in_flight, 8);
    assert_eq!(delivered.len(), 2, "{delivered:?}");
    let victim = live(&s, 2);
    assert_eq!((&victim.text.tokens[4..], victim.kv.computed), (&[7, 8][..], 0));
    let request = s.plan(LATE).expect("it opens again");
    let want = request.wants.iter().find(|want| want.ticket.seq == SeqId(2)).expect("it wants");
    assert_eq!(want.len, 6);
}

#[test]
fn a_victim_is_not_opened_while_a_step_computes_for_it() {
    let (mut s, in_flight) = decoding();
    let request = s.plan(LATE).expect("another step");
    let outcome = PreemptOutcome::Freed { blocks: 2, on_host: 0, retained: 0 };
    let preempted = vec![Preempted { ticket: ticket(2), outcome }];
    let nothing_runs = StepGrant { step: request.step, preempted, ..StepGrant::default() };
    assert!(s.granted(nothing_runs).0.is_none());
    let request = s.plan(LATE).expect("the other one goes on");
    assert_eq!(request.wants.len(), 1, "{:?}", request.wants);
    s.granted(grant_all(&request));
    assert_eq!(done(&mut s, &in_flight, 8).len(), 2);
}

#[test]
fn after_a_failure_only_what_does_not_follow_from_it_is_believed() {
    let mut s = with_sequences(1, 4);
    let first = submit(&mut s);
    s.enqueue(sequence(2, Tier::Standard, 4));
    let second = submit(&mut s);
    assert_eq!(members(&second), [1, 2]);
    assert_eq!(fails(&mut s, &first), []);
    assert_eq!(live(&s, 1).planned_computed(), 0, "all of it is to be computed again");
    assert!(s.plan(LATE).is_none(), "the one it is for runs alone");
    let effects = done(&mut s, &second, 7);
    assert!(matches!(&effects[..], [Effect::Token { seq: SeqId(2), .. }]), "{effects:?}");
    let alone = submit(&mut s);
    assert_eq!((members(&alone), alone.slices[0].first_pos), (vec![1], 0));
    assert!(s.plan(LATE).is_none(), "nothing follows it at once");
    assert_eq!(done(&mut s, &alone, 7).len(), 1);
    assert_eq!(members(&submit(&mut s)), [1, 2]);
}

#[test]
fn a_step_that_fails_after_the_step_before_it_makes_no_suspects() {
    let mut s = with_sequences(1, 4);
    let first = submit(&mut s);
    s.enqueue(sequence(2, Tier::Standard, 4));
    let second = submit(&mut s);
    fails(&mut s, &first);
    assert_eq!(fails(&mut s, &second), []);
    let alone = submit(&mut s);
    assert_eq!(members(&alone), [1]);
    done(&mut s, &alone, 7);
    assert_eq!(members(&submit(&mut s)), [1, 2], "the other need not run alone");
}

#[test]
fn a_repeated_step_follows_no_invalidated_one() {
    let mut s = with_sequences(1, 4);
    let first = submit(&mut s);
    s.enqueue(sequence(2, Tier::Standard, 4));
    let second = submit(&mut s);
    fails(&mut s, &first);
    s.cancel(SeqId(1));
    assert!(s.plan(LATE).is_none(), "nobody is suspected any more, but a step is in vain");
    fails(&mut s, &second);
    assert_eq!(members(&submit(&mut s)), [2]);
}

#[test]
fn a_step_that_was_planned_on_one_that_failed_is_not_submitted() {
    let mut s = with_sequences(1, 70);
    let first = submit(&mut s);
    let request = s.plan(LATE).expect("the next chunk");
    let granted = grant(&s, &request);
    fails(&mut s, &first);
    assert!(s.granted(granted).0.is_none());
    assert!(s.may_replan());
    let again = submit(&mut s);
    assert_eq!((again.slices[0].first_pos, again.slices[0].input.len()), (0, 32));
}
