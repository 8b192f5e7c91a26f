//! Plans when blocks are short, and when they are not.

use super::knob_tests::{longer, plain, plan, run, tiered};
use super::tests::{NOW, all_sample, grant_all, sequence, ticket};
use crate::protocol::{Grant, GrantOutcome, StepGrant};
use tiercel_config::{AtLimit, StepMix, VictimRule};
use tiercel_device::{SeqId, Tier};

#[test]
fn nobody_is_named_a_victim_while_free_blocks_are_enough_for_all() {
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
    // Its fifth token needs a second block.
    assert_eq!((named(0, None), named(1, None)), ((1, 1), (0, 0)));
    // Three blocks for the other one, and three in a hundred stay free.
    assert_eq!((named(6, Some(12)), named(7, Some(12))), ((1, 1), (0, 0)));
    assert_eq!(named(7, Some(13)), (1, 1), "as much as it could want");
}

#[test]
fn whom_others_gave_way_for_runs_before_they_may_take_their_blocks_back() {
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
    // The second reaches no further than itself.
    assert_eq!(may_take(AtLimit::Spare, 0), [2, 1]);
    assert_eq!(may_take(AtLimit::Promote, 0), [2, 1]);
}
