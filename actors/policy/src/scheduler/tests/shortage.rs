//! Tests of plans while KV blocks are short, and while they are not.

use super::knobs::{longer, plain, plan, run, tiered};
use super::{
    MIRROR_PERCENT, NOW, all_sample, grant_all, grant_first, scheduler, sequence, step, ticket,
};
use crate::protocol::{Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant};
use crate::scheduler::*;
use tiercel_config::{AtLimit, EngineSettings, PreemptionMode, StepMix, VictimRule};
use tiercel_device::{SeqId, Tier, Timestamp};

#[test]
fn no_victims_are_named_while_free_blocks_are_enough_for_all() {
    let named = |free_blocks, arrives: Option<u32>| {
        let mut s = tiered(|e| {
            e.preemption.mirror_percent = 0;
            e.scheduler.watermark_percent = 3.0;
        });
        s.enqueue(longer(1, Tier::Background, 4, 9));
        let request = plan(&mut s);
        let batch = s.granted(StepGrant { free_blocks, ..grant_all(&request) }).0.expect("a batch");
        s.step_done(all_sample(&batch, 1), NOW);
        if let Some(prompt) = arrives {
            s.enqueue(sequence(2, Tier::Standard, prompt));
        }
        let request = plan(&mut s);
        (request.victims.len(), request.wants[0].max_victims)
    };
    // The sequence's fifth token needs a second block: without a free block the plan lists a victim, with one it lists
    // none.
    assert_eq!((named(0, None), named(1, None)), ((1, 1), (0, 0)));
    // The arriving sequence needs three blocks, the running one another, and three of the 100 blocks must stay free
    // (watermark): victims are listed with 6 free blocks, and none with 7.
    assert_eq!((named(6, Some(12)), named(7, Some(12))), ((1, 1), (0, 0)));
    assert_eq!(named(7, Some(13)), (1, 1), "as much as it could want");
}

#[test]
fn a_sequence_runs_before_the_victims_preempted_for_it_may_take_their_blocks_back() {
    let next = |pending_blocks| {
        let mut s = plain(|e| e.scheduler.mix = StepMix::PromptsAlone);
        s.enqueue(longer(1, Tier::Standard, 4, 9));
        run(&mut s, 1);
        let request = plan(&mut s);
        let outcome = GrantOutcome::Denied { pending_blocks };
        let grants = vec![Grant { ticket: ticket(1), outcome }];
        s.granted(StepGrant { step: request.step, grants, ..StepGrant::default() });
        s.enqueue(longer(2, Tier::Standard, 4, 9));
        plan(&mut s).wants[0].ticket.seq
    };
    assert_eq!((next(1), next(0)), (SeqId(1), SeqId(2)));
}

#[test]
fn two_that_were_preempted_too_often_do_not_take_each_others_blocks_in_turn() {
    let may_take = |at_limit, max_per_request| {
        let mut s = tiered(|e| {
            e.preemption.victim = VictimRule::LeastProgress;
            (e.preemption.at_limit, e.preemption.max_per_request) = (at_limit, max_per_request);
        });
        s.enqueue(longer(1, Tier::Standard, 4, 9));
        s.enqueue(longer(2, Tier::Standard, 4, 9));
        run(&mut s, 1);
        plan(&mut s).wants.iter().map(|want| want.max_victims).collect::<Vec<_>>()
    };
    assert_eq!(may_take(AtLimit::Spare, 8), [2, 2], "whoever comes first");
    // With both at the limit of preemptions, sequence 2 may preempt only itself, which has no effect.
    assert_eq!(may_take(AtLimit::Spare, 0), [2, 1]);
    assert_eq!(may_take(AtLimit::Promote, 0), [2, 1]);
}

/// Returns how many victims the second of two waiting premium sequences may preempt to start, in a plan at `at` us.
fn taken_to_start(change: impl FnOnce(&mut EngineSettings), at: u64) -> u32 {
    let mut s = tiered(|e| {
        e.preemption.max_per_request = 9;
        change(e);
    });
    s.enqueue(longer(1, Tier::Background, 4, 9));
    run(&mut s, 1);
    s.enqueue(NewSequence { arrival: Timestamp(400), ..sequence(7, Tier::Premium, 4) });
    s.enqueue(NewSequence { arrival: Timestamp(401), ..sequence(8, Tier::Premium, 4) });
    let request = s.plan(Timestamp(at)).expect("a step");
    let second = request.wants.iter().find(|want| want.ticket.seq == SeqId(8));
    second.expect("it waits").max_victims
}

#[test]
fn a_sequence_is_no_victim_before_it_had_some_tokens_nor_at_once_for_a_newcomer() {
    assert_eq!(taken_to_start(|_| (), 500), 1);
    assert_eq!(taken_to_start(|e| e.preemption.min_tokens = 1, 500), 1);
    assert_eq!(taken_to_start(|e| e.preemption.min_tokens = 2, 500), 0);
    assert_eq!(taken_to_start(|e| e.preemption.delay_ms = 1, 1_400), 0);
    assert_eq!(taken_to_start(|e| e.preemption.delay_ms = 1, 1_401), 1);
}

#[test]
fn premium_may_be_kept_from_yielding_and_background_from_taking() {
    let may_grow = |tier, change: fn(&mut EngineSettings)| {
        let mut s = tiered(change);
        for id in 1..=3 {
            s.enqueue(longer(id, tier, 4, 9));
        }
        run(&mut s, 1);
        plan(&mut s).wants.iter().map(|want| want.max_victims).collect::<Vec<_>>()
    };
    assert_eq!(may_grow(Tier::Premium, |_| ()), [3, 2, 1]);
    assert_eq!(may_grow(Tier::Premium, |e| e.preemption.premium_yields = false), [3, 0, 0]);
    assert_eq!(may_grow(Tier::Background, |_| ()), [3, 2, 1]);
    assert_eq!(may_grow(Tier::Background, |e| e.preemption.background_takes = false), [3, 0, 0]);
}

#[test]
fn the_best_ranked_reaches_past_itself_to_sequences_preempted_too_often() {
    let mut s = scheduler(|e| {
        e.preemption.max_per_request = 1;
        e.preemption.mirror_percent = MIRROR_PERCENT;
    });
    s.enqueue(sequence(1, Tier::Standard, 4));
    s.enqueue(sequence(2, Tier::Background, 4));
    step(&mut s);
    let request = s.plan(NOW).expect("a step");
    let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 0 };
    let preempted = vec![Preempted { ticket: ticket(2), outcome }];
    let (batch, _) = s.granted(StepGrant { preempted, ..grant_first(&request) });
    s.step_done(all_sample(&batch.expect("a batch"), 1), Timestamp(3));
    step(&mut s);
    let request = s.plan(NOW).expect("a step");
    let victims: Vec<u64> = request.victims.iter().map(|v| v.ticket.seq.0).collect();
    assert_eq!(victims, [1, 2], "who was preempted once is spared");
    assert_eq!(request.wants[0].max_victims, 2, "but not from the best-ranked");
}

#[test]
fn the_mode_decides_what_happens_to_the_blocks() {
    let swaps = |mode, prompt| {
        let mut s = scheduler(|e| {
            e.preemption.mode = mode;
            e.preemption.mirror_percent = MIRROR_PERCENT;
        });
        s.enqueue(sequence(1, Tier::Standard, prompt));
        step(&mut s);
        s.plan(NOW).expect("a step").victims[0].swap
    };
    assert!(swaps(PreemptionMode::Swap, 2));
    assert!(!swaps(PreemptionMode::Recompute, 30));
    // With mode `auto` the cheaper way is chosen: a swap of 7 blocks of 1000 bytes at 1 GB/s takes 14 us both ways, and
    // a recompute of 28 tokens 280 us.
    assert!(swaps(PreemptionMode::Auto, 30));
    assert!(!swaps(PreemptionMode::Auto, 2), "there is no full block to copy");
}
