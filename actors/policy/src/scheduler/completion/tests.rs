//! Tests of what the scheduler counts and learns when steps and copies end.

use super::*;
use crate::accounting::StepShares;
use crate::scheduler::budget::slack_reserve::SlackReserve;
use crate::scheduler::tests::{BLOCK, all_sample, scheduler, sequence, step, submit, ticket};
use crate::scheduler::{Hold, NewSequence};
use tiercel_config::{SheddingForm, SloTargets};
use tiercel_device::StepTiming;

#[test]
fn steps_and_their_sequences_are_counted() {
    let mut s = scheduler(|_| ());
    for id in 1..=3 {
        s.enqueue(sequence(id, Tier::Standard, 4));
    }
    step(&mut s);
    step(&mut s);
    assert_eq!((s.counters().steps, s.counters().slices), (2, 6));
    assert_eq!(s.counters().failed_steps, 0);
    for failed in [1, 2] {
        let batch = submit(&mut s);
        let result = Err(StepError::Failed("kernel".into()));
        s.step_done(StepDone { id: batch.id, result }, Timestamp(600));
        assert_eq!((s.counters().steps, s.counters().failed_steps), (2, failed));
    }
}

#[test]
fn a_predicted_step_is_compared_with_its_time_of_computing_and_sampling() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 4));
    let batch = submit(&mut s);
    let mut done = all_sample(&batch, 1);
    if let Ok(output) = &mut done.result {
        output.timing = StepTiming { forward_us: 100, sampling_us: 60, host_us: 1000 };
    }
    s.step_done(done, Timestamp(700));
    // The step was predicted to take 100 us and 10 us for each of four tokens; 140 / 160 - 1 = -0.125.
    assert!((s.cost_error().step - 0.125).abs() < 1e-9, "{:?}", s.cost_error());
}

#[test]
fn premium_requests_in_target_beside_lower_tiers_make_the_reserve_smaller() {
    let saving_after = |tier, ttft_ms, lower_came, change: fn(&mut State, NewSequence)| {
        let mut s = scheduler(|_| ());
        s.reserve = SlackReserve::new(0.9);
        s.queue.arrivals.set(Tier::Background, lower_came);
        s.basis.targets.premium = SloTargets { ttft_ms: Some(ttft_ms), ..SloTargets::default() };
        for id in 1..=10 {
            let request = NewSequence { max_tokens: 1, ..sequence(id, tier, 4) };
            change(&mut s, request);
            step(&mut s);
        }
        s.reserve.saving_max()
    };
    let plain = |s: &mut State, request| s.enqueue(request);
    let held = |s: &mut State, request: NewSequence| {
        let seq = request.seq;
        s.enqueue(request);
        s.set_hold(seq, Hold::Stream, true);
        s.set_hold(seq, Hold::Stream, false);
    };
    let own_target = |s: &mut State, request| {
        let targets = SloTargets { ttft_ms: Some(9e9), ..SloTargets::default() };
        s.enqueue(NewSequence { targets, ..request });
    };
    let (full, none) = (0.05, 0.0);
    let assert_saving = |saving: f64, expected: f64| assert!((saving - expected).abs() < 1e-9);
    let came = Some(Timestamp(0));
    assert_saving(saving_after(Tier::Premium, 500.0, came, plain), none);
    assert_saving(saving_after(Tier::Premium, 0.0, came, plain), full);
    assert_saving(saving_after(Tier::Premium, 500.0, None, plain), full);
    assert_saving(saving_after(Tier::Standard, 500.0, came, plain), full);
    assert_saving(saving_after(Tier::Premium, 500.0, came, held), full);
    assert_saving(saving_after(Tier::Premium, 500.0, came, own_target), full);
}

#[test]
fn a_client_that_gives_up_a_late_premium_request_counts_as_a_missed_target() {
    let saving_after = |late, waited_us, answered| {
        let mut s = scheduler(|_| ());
        s.reserve = SlackReserve::new(0.99);
        s.queue.arrivals.set(Tier::Background, Some(Timestamp(0)));
        (0..100).for_each(|_| s.reserve.ended(true));
        s.enqueue(sequence(1, Tier::Premium, 4));
        if late {
            s.queue.set_late(SeqId(1), true, &s.basis);
            s.deadlines.late.update(s.queue.table.get(SeqId(1)).expect("it waits"));
        }
        if waited_us > 0 {
            s.deadlines.judge(&mut s.queue, &s.basis, Timestamp(waited_us));
        }
        if answered {
            step(&mut s);
        }
        s.cancel(SeqId(1)).expect("it has not ended");
        s.reserve.saving_max()
    };
    let (one_nine, two_nines) = (0.05, 0.10);
    let assert_saving = |saving: f64, expected: f64| assert!((saving - expected).abs() < 1e-9);
    assert_saving(saving_after(true, 0, false), two_nines);
    assert_saving(saving_after(true, 60_000_000, false), two_nines);
    assert_saving(saving_after(false, 0, false), one_nine);
    assert_saving(saving_after(true, 0, true), one_nine);
}

#[test]
fn premium_keeps_a_reserve_for_the_time_by_which_its_own_work_exceeds_its_target() {
    let mut s = scheduler(|_| ());
    s.basis.targets.premium.tpot_ms = Some(2.0);
    s.reserve = SlackReserve::new(0.999);
    s.queue.arrivals.set(Tier::Premium, Some(Timestamp(0)));
    let ended = InFlight {
        step: StepId(1),
        members: Vec::new(),
        work: StepWork::default(),
        time_us: [500.0, 1500.0, 9000.0, 9000.0],
        shares: StepShares::default(),
        begins: Timestamp(0),
        expected_us: 100.0,
        invalidated: false,
        partial: false,
    };
    // A step without work is predicted to take 100 us, so the cost model learns nothing from these steps.
    let timing = StepTiming { forward_us: 90, sampling_us: 10, host_us: 0 };
    let output = StepOutput { sampled: Vec::new(), timing };
    for number in 1..=64 {
        s.learn_from_step(&ended, &output, Timestamp(number * 100));
    }
    assert_eq!(s.reserve.reserve_us(), 0.0, "premium is alone");
    s.queue.arrivals.set(Tier::Background, Some(Timestamp(0)));
    for number in 65..=128 {
        s.learn_from_step(&ended, &output, Timestamp(number * 100));
    }
    // Each step holds 100 us of fixed cost and 2000 us of premium's and the system's work. The TPOT target is 2000 us,
    // so each of 64 steps adds 100 us to the lag. The reserve is the upper bound of the lag's bucket, which is 5 %
    // wide.
    let lag_us = 64.0 * 100.0;
    assert!(
        (lag_us..lag_us * 1.05).contains(&s.reserve.reserve_us()),
        "{}",
        s.reserve.reserve_us()
    );
}

#[test]
fn the_usage_of_tiers_is_measured_for_shedding_by_shares_alone() {
    let shares = |form| {
        let mut s = scheduler(|e| e.shedding.form = form);
        s.enqueue(sequence(1, Tier::Standard, 4));
        step(&mut s);
        s.usage.shares()
    };
    assert_eq!(shares(SheddingForm::Share), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(shares(SheddingForm::Forecast), [0.0; 4]);
}

#[test]
fn a_committed_preemption_is_a_swap_if_any_block_is_on_the_host() {
    // In the last case a copy of the block was on the host before the preemption, so nothing was copied.
    for (copied, on_host, swaps) in [(0, 0, 0), (1, 1, 1), (2, 2, 1), (0, 1, 1)] {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 10));
        s.open(SeqId(1), 0);
        s.queue.table.change(SeqId(1), |sequence| sequence.phase = Phase::Preempting);
        s.memory.shortage = true;
        let event = StoreEvent::PreemptCopied { ticket: ticket(1), copied, failed: 0, on_host };
        assert_eq!(s.store_event(event), PreemptDecision::Commit);
        let saved = s.queue.table.get(SeqId(1)).expect("it waits").kv.saved;
        let standard = Tier::Standard.index();
        let counted = (s.counters().swaps[standard], s.counters().recomputes[standard]);
        assert_eq!((saved, counted), (on_host > 0, (swaps, 1 - swaps)), "{on_host}");
    }
}

#[test]
fn copied_blocks_are_counted_and_correct_the_predicted_copy_times() {
    let mut s = scheduler(|_| ());
    s.copied(3, 4);
    s.copied(2, 4);
    assert_eq!(s.counters().copied_blocks, 5);
    assert!(s.cost_error().copy > 0.0);
}

#[test]
fn a_request_that_stops_at_its_first_token_counts_as_served() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 4));
    let batch = submit(&mut s);
    let stop_token = 99;
    assert_eq!(s.step_done(all_sample(&batch, stop_token), Timestamp(1_500)).len(), 1);
    let standard = Tier::Standard.index();
    assert_eq!(s.deadlines.flow[standard].excess(), 0);
    s.enqueue(sequence(2, Tier::Standard, 4));
    // One request left the queue after it had waited 1,499 us (it arrived at 1 us), so the next one waits as long.
    assert_eq!(s.queue.drain[standard].waiting(), 1);
    assert_eq!(s.queue.drain[standard].wait_us(Timestamp(1_500)), Some(1_499.0));
}

#[test]
fn the_blocks_that_the_last_step_filled_are_named_unless_the_sequence_failed() {
    let named = |result: fn() -> Result<Sampled, NotSampled>| {
        let mut s = scheduler(|_| ());
        s.enqueue(NewSequence { max_tokens: 1, ..sequence(1, Tier::Standard, 2 * BLOCK) });
        let batch = submit(&mut s);
        let mut done = all_sample(&batch, 1);
        if let Ok(output) = &mut done.result {
            output.sampled[0].1 = result();
        }
        s.step_done(done, Timestamp(700));
        assert_eq!(s.outbox.released, [SeqId(1)]);
        s.outbox.progress.iter().map(|progress| progress.hashes.len()).sum::<usize>()
    };
    assert_eq!(named(|| Ok(Sampled { token: 1, logprobs: None })), 2, "its last token");
    assert_eq!(named(|| Ok(Sampled { token: 99, logprobs: None })), 2, "a stop token");
    assert_eq!(named(|| Err(NotSampled::BadLogits)), 0, "wrong KV");
}
