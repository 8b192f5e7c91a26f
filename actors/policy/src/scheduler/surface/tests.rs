use super::*;
use crate::admission::Patience;
use crate::scheduler::outcome::{EndReport, FinishReason};
use crate::scheduler::tests::{all_sample, grant_all, scheduler, scheduler_of_depth, sequence};

/// Creates a scheduler without sequences and without actions.
fn surface() -> Scheduler {
    over(scheduler(|_| ()))
}

/// Creates the interface of a scheduler with the state `state`.
fn over(state: State) -> Scheduler {
    Scheduler { state, actions: VecDeque::new(), must_plan: false, wakes_at: Timestamp(0) }
}

/// Creates a scheduler with two steps in flight, whose host takes 10 us to plan a step.
fn two_deep() -> Scheduler {
    let mut s = over(scheduler_of_depth(2, |_| ()));
    // The mean planning time starts at 0 us, and one observation counts a tenth.
    s.observe_planning(100);
    s
}

fn reserve(s: &mut Scheduler, now: u64) -> StepRequest {
    match s.next_action(Timestamp(now)) {
        Some(Action::Reserve { request, .. }) => request,
        other => panic!("{other:?}"),
    }
}

fn submit(s: &mut Scheduler, now: u64) -> StepBatch {
    match s.next_action(Timestamp(now)) {
        Some(Action::Submit(batch)) => batch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cycle_is_reserve_submit_deliver_and_the_completion_is_told_in_any_case() {
    let mut s = surface();
    assert!(s.next_action(Timestamp(0)).is_none(), "nothing happened");
    assert!(s.is_settled());
    s.enqueue(NewSequence { max_tokens: 2, ..sequence(1, Tier::Standard, 5) });
    assert!(!s.is_settled(), "a step is to be planned");
    let request = reserve(&mut s, 10);
    assert!(s.next_action(Timestamp(10)).is_none(), "the block store has yet to answer");
    assert!(s.is_settled());
    s.granted(grant_all(&request));
    let batch = submit(&mut s, 20);
    s.step_done(all_sample(&batch, 1), Timestamp(30));
    assert!(!s.is_settled(), "a token is to be delivered");
    let delivered = s.next_action(Timestamp(30));
    assert!(
        matches!(&delivered, Some(Action::Deliver(effects)) if effects.len() == 1),
        "{delivered:?}"
    );
    let request = reserve(&mut s, 30);
    assert_eq!(request.completed_step, batch.id, "the request tells that the step completed");
    assert!(s.next_action(Timestamp(30)).is_none());
    s.set_hold(SeqId(1), Hold::Operator, true);
    s.granted(grant_all(&request));
    let batch = submit(&mut s, 40);
    s.cancel(SeqId(1));
    assert!(matches!(s.next_action(Timestamp(41)), Some(Action::Deliver(_))));
    s.step_done(all_sample(&batch, 1), Timestamp(50));
    let released = reserve(&mut s, 50);
    assert_eq!(released.released, [SeqId(1)]);
    s.granted(grant_all(&released));
    assert!(s.next_action(Timestamp(51)).is_none() && s.is_drained());
}

#[test]
fn an_empty_grant_is_no_reason_to_plan_again() {
    let mut s = surface();
    s.enqueue(sequence(1, Tier::Standard, 5));
    let request = reserve(&mut s, 10);
    s.granted(StepGrant { step: request.step, ..StepGrant::default() });
    assert!(s.next_action(Timestamp(20)).is_none());
    s.wake();
    reserve(&mut s, 30);
}

/// Returns the report of the only effect that is delivered next: the end of a sequence.
fn ended(s: &mut Scheduler) -> EndReport {
    let delivered = s.next_action(Timestamp(0));
    match delivered {
        Some(Action::Deliver(effects)) => match &effects[..] {
            [Effect::Ended(report)] => report.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_owner_is_told_once_when_the_next_step_may_be_planned() {
    let mut s = two_deep();
    s.enqueue(sequence(1, Tier::Standard, 5));
    let request = reserve(&mut s, 10);
    s.granted(grant_all(&request));
    submit(&mut s, 20);
    // The step begins at 10 us and takes 100 us and 10 us for each of five tokens, so it ends at 160 us. The next step
    // is planned twice the host's 10 us earlier.
    let action = s.next_action(Timestamp(20));
    assert!(matches!(action, Some(Action::WakeAt(Timestamp(140)))), "{action:?}");
    assert!(s.next_action(Timestamp(20)).is_none());
    s.wake();
    assert!(s.next_action(Timestamp(30)).is_none(), "the owner knows the time already");
    s.wake();
    reserve(&mut s, 140);
}

#[test]
fn the_owner_is_not_told_to_wake_the_scheduler_at_the_present_time() {
    let mut s = two_deep();
    s.enqueue(NewSequence { max_tokens: 1, ..sequence(1, Tier::Standard, 5) });
    let request = reserve(&mut s, 10);
    s.granted(grant_all(&request));
    submit(&mut s, 20);
    // The next step may be planned at 140 us, but the step in flight samples the only output token.
    assert!(s.next_action(Timestamp(140)).is_none());
}

#[test]
fn a_stopped_sequence_is_complete_and_a_failed_one_has_its_fault() {
    let mut s = surface();
    s.enqueue(sequence(1, Tier::Standard, 5));
    s.enqueue(sequence(2, Tier::Standard, 5));
    s.stop(SeqId(1));
    let report = ended(&mut s);
    assert_eq!((report.seq, report.outcome), (SeqId(1), Some(Ok(FinishReason::Stop))));
    s.fail(SeqId(2), RequestFault::Stalled);
    let report = ended(&mut s);
    assert_eq!((report.seq, report.outcome), (SeqId(2), Some(Err(RequestFault::Stalled))));
    assert_eq!(s.live().count(), 0);
}

#[test]
fn a_request_displaces_one_of_a_lower_tier_and_none_of_its_own() {
    let mut s = surface();
    s.enqueue(sequence(0, Tier::Standard, 5));
    assert!(!s.displace(Tier::Standard, 1, Timestamp(5)) && s.actions.is_empty());
    assert!(s.displace(Tier::Premium, 1, Timestamp(5)));
    // No request has left the queue yet, so the retry time is based on 10 s; the addition for sequence 0 is 0.
    let fault = RequestFault::TurnedAway { retry_after_ms: 10_000 };
    assert_eq!(ended(&mut s).outcome, Some(Err(fault)));
    assert!(!s.displace(Tier::Premium, 1, Timestamp(5)) && s.actions.is_empty());
}

#[test]
fn a_tick_ends_requests_whose_patience_is_over() {
    let mut s = surface();
    let patience = Patience { us: Some(5_432), before_us: 0, stated: true };
    s.enqueue(NewSequence { patience, ..sequence(0, Tier::Standard, 5) });
    s.tick(Timestamp(5_432));
    assert!(s.actions.is_empty(), "the request waits that long");
    s.tick(Timestamp(5_433));
    let fault = RequestFault::OutOfPatience {
        tier: Tier::Standard,
        patience_ms: 5,
        stated: true,
        retry_after_ms: 10_000,
    };
    assert_eq!(ended(&mut s).outcome, Some(Err(fault)));
}

#[test]
fn a_new_policy_orders_the_requests_that_wait() {
    let order = |policy: Option<Policy>| {
        let mut s = surface();
        s.enqueue(sequence(1, Tier::Standard, 5));
        s.enqueue(sequence(2, Tier::Premium, 5));
        policy.into_iter().for_each(|policy| s.set_policy(policy));
        let request = reserve(&mut s, 10);
        request.wants.iter().map(|want| want.ticket.seq.0).collect::<Vec<_>>()
    };
    assert_eq!((order(None), order(Some(Policy::Fcfs))), (vec![2, 1], vec![1, 2]));
}

#[test]
fn a_state_that_breaks_an_invariant_is_reported() {
    let mut s = surface();
    s.enqueue(sequence(1, Tier::Standard, 5));
    assert_eq!(s.check(), Ok(()));
    s.state.outbox.released.push(SeqId(1));
    let violation = s.check().expect_err("the sequence is live");
    assert!(violation.ends_with("is released and live"), "{violation}");
}

#[test]
fn the_owner_sees_the_numbers_of_the_state() {
    let mut s = surface();
    s.enqueue(sequence(1, Tier::Standard, 5));
    assert!(!s.is_drained(), "a sequence is live, although no action is due");
    assert_eq!((s.phase(SeqId(1)), s.phase(SeqId(2))), (Some(Phase::Waiting), None));
    let waiting = [0, 0, 1, 0];
    assert_eq!(s.census(), Census { waiting, running: 0, preempted: 0 });
    assert_eq!(s.max_num_seqs(), 8);
    let request = reserve(&mut s, 10);
    s.granted(grant_all(&request));
    let batch = submit(&mut s, 20);
    s.step_done(all_sample(&batch, 1), Timestamp(30));
    s.stop(SeqId(1));
    // Two output tokens were predicted, half of the longest output of four tokens; one came.
    let error = PredictionError { requests: 1, absolute_tokens: 1.0, tokens: 1 };
    assert_eq!(s.prediction_error(), error);
    s.copied(3, 4);
    // Three blocks of 1000 bytes take 3 us at 1 GB/s.
    assert!((s.cost_error().copy - 0.25).abs() < 1e-9, "{:?}", s.cost_error());
    s.copied(2, 4);
    assert_eq!((s.counters().steps, s.counters().copied_blocks), (1, 5));
}

#[test]
fn sequences_on_hold_are_no_work() {
    let mut s = surface();
    assert!(!s.has_work());
    s.enqueue(sequence(1, Tier::Standard, 5));
    assert!(s.has_work());
    s.set_hold(SeqId(1), Hold::Operator, true);
    assert!(!s.has_work());
    s.enqueue(sequence(2, Tier::Standard, 5));
    assert!(s.has_work());
}
