//! Tests of how the block store's answers change sequences, counters and the batch.

use super::*;
use crate::scheduler::tests::{
    BLOCK, NOW, grant_all, scheduler, scheduler_of_depth, sequence, step, ticket,
};
use tiercel_config::PreemptionMode;
use tiercel_device::{StepId, Timestamp};

/// Returns a standard sequence with three prompt tokens and `output` output tokens.
fn with_output(output: u32) -> Sequence {
    let mut sequence = Sequence::new(sequence(1, Tier::Standard, 3), BLOCK);
    (0..output).for_each(|token| sequence.push(token, NOW, BLOCK));
    sequence
}

#[test]
fn a_slice_is_a_decode_if_its_one_token_is_the_last_output() {
    let decode = |output, computed, cover| slice_of(&with_output(output), computed, cover).decode;
    assert!(decode(2, 4, 5));
    assert!(!decode(2, 3, 5), "two tokens");
    assert!(!decode(2, 2, 3), "a token that is computed again, before the last one");
    assert!(!decode(0, 2, 3), "the last token of a prompt");
}

#[test]
fn only_a_slice_after_all_known_tokens_takes_its_input_from_a_step_in_flight() {
    let mut sequence = with_output(0);
    let part = Part { step: StepId(7), computed: Some(3), samples: true, void: false };
    sequence.kv.in_flight.submit(part);
    let input = |computed, cover| slice_of(&sequence, computed, cover).slice.input;
    assert!(matches!(input(3, 4), SliceInput::SampledBy(StepId(7))));
    assert!(matches!(input(0, 2), SliceInput::Known(_)));
}

#[test]
fn the_time_of_a_step_is_split_by_tier() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 4));
    s.enqueue(sequence(2, Tier::Standard, 6));
    s.enqueue(sequence(3, Tier::Premium, 5));
    let request = s.plan(NOW).expect("a step");
    s.granted(grant_all(&request));
    // A prompt token takes 10 us: five tokens of premium, and four and six of standard.
    assert_eq!(s.pipeline.in_flight()[0].time_us, [0.0, 50.0, 40.0 + 60.0, 0.0]);
}

#[test]
fn prompt_tokens_and_cache_hits_are_counted_at_the_first_start() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 10));
    s.enqueue(sequence(2, Tier::Standard, 7));
    s.open(SeqId(1), 4);
    // 4 of 10 tokens were found, and one observation counts 5 %.
    assert!((s.queue.hit_share.mean() - 0.02).abs() < 1e-9, "{:?}", s.queue.hit_share);
    s.open(SeqId(2), 4);
    let counters = s.counters();
    assert_eq!((counters.prefix_query_tokens, counters.prefix_hit_tokens), (10 + 7, 4 + 4));
    assert_eq!(counters.recomputed_tokens, 0);
}

#[test]
fn tokens_to_compute_again_are_counted_at_each_resumption() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 10));
    s.open(SeqId(1), 0);
    for recomputed in [5, 10] {
        s.queue.table.active_mut(SeqId(1)).expect("it runs").kv.computed = 9;
        s.close(SeqId(1), false, 0);
        // 9 tokens were valid before the preemption, and 4 are now.
        s.open(SeqId(1), 4);
        assert_eq!(s.counters().recomputed_tokens, recomputed);
    }
    assert_eq!(s.counters().prefix_query_tokens, 10, "counted once");
}

#[test]
fn a_preempted_stream_whose_first_token_was_late_resumes_among_the_requests_in_time() {
    let late_after_preemption = |has_token| {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 4));
        if has_token {
            step(&mut s);
        } else {
            s.open(SeqId(1), 0);
        }
        s.queue.set_late(SeqId(1), true, &s.basis);
        s.close(SeqId(1), false, 0);
        let sequence = s.queue.table.get(SeqId(1)).expect("it waits");
        (sequence.service.late, sequence.service.key.late)
    };
    assert_eq!(late_after_preemption(true), (false, false));
    assert_eq!(late_after_preemption(false), (true, true), "it can starve");
}

#[test]
fn a_freed_victim_was_swapped_if_the_host_has_blocks_of_it() {
    for (on_host, swaps) in [(0, 0), (1, 1), (2, 1)] {
        let mut s = scheduler(|_| ());
        s.enqueue(sequence(1, Tier::Standard, 10));
        s.open(SeqId(1), 0);
        let outcome = PreemptOutcome::Freed { blocks: 3, on_host, retained: 0 };
        assert!(s.preempted(Preempted { ticket: ticket(1), outcome }).is_empty());
        let saved = s.queue.table.get(SeqId(1)).expect("it waits").kv.saved;
        let standard = Tier::Standard.index();
        let counted = (s.counters().swaps[standard], s.counters().recomputes[standard]);
        assert_eq!((saved, counted), (on_host > 0, (swaps, 1 - swaps)), "{on_host}");
    }
}

#[test]
fn a_victim_that_is_copied_out_will_retain_whole_blocks() {
    let mut s = scheduler(|_| ());
    s.enqueue(sequence(1, Tier::Standard, 20));
    s.open(SeqId(1), 0);
    let outcome = PreemptOutcome::Copying { blocks: 2, retained: 3 };
    s.preempted(Preempted { ticket: ticket(1), outcome });
    let sequence = s.queue.table.get(SeqId(1)).expect("it lives");
    assert_eq!((sequence.phase, sequence.kv.retained_tokens), (Phase::Preempting, 3 * BLOCK));
}

#[test]
fn victims_that_the_policy_drops_are_counted() {
    let mut s = scheduler(|e| e.preemption.mode = PreemptionMode::Drop);
    for id in 1..=2 {
        s.enqueue(sequence(id, Tier::Standard, 10));
        s.open(SeqId(id), 0);
        let outcome = PreemptOutcome::Freed { blocks: 3, on_host: 0, retained: 0 };
        assert_eq!(s.preempted(Preempted { ticket: ticket(id), outcome }).len(), 1);
    }
    assert_eq!(s.counters().drops, [0, 0, 2, 0]);
}

#[test]
fn a_plan_without_blocks_counts_as_empty_only_if_no_step_is_in_flight() {
    for (in_flight, empty_plans) in [(false, 1), (true, 0)] {
        let mut s = scheduler_of_depth(2, |_| ());
        s.observe_planning(10_000);
        if in_flight {
            s.enqueue(sequence(1, Tier::Standard, 4));
            let request = s.plan(NOW).expect("a step");
            assert!(s.granted(grant_all(&request)).0.is_some());
        }
        s.enqueue(sequence(2, Tier::Standard, 4));
        let request = s.plan(Timestamp(1_000_000)).expect("another step");
        s.granted(StepGrant { step: request.step, ..StepGrant::default() });
        assert_eq!(s.retry.empty_plans, empty_plans, "a step is in flight: {in_flight}");
    }
}

#[test]
fn the_next_plan_opens_as_many_sequences_as_got_their_blocks_beside_a_denied_one() {
    let mut s = scheduler(|_| ());
    for id in 1..=4 {
        s.enqueue(sequence(id, Tier::Standard, 4));
    }
    let request = s.plan(NOW).expect("a step");
    let mut grant = grant_all(&request);
    grant.grants[3].outcome = GrantOutcome::Denied { pending_blocks: 0 };
    s.granted(grant);
    assert_eq!(s.retry.open_limit, 3);
}
