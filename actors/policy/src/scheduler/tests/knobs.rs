//! Tests of policy settings: the effect of each setting on the plan of a step.

use super::{MIRROR_PERCENT, NOW, all_sample, grant_all, scheduler, sequence, submit, ticket};
use crate::protocol::{
    Grant, GrantOutcome, PreemptOutcome, Preempted, StepGrant, StepRequest, Want, WantKind,
};
use crate::scheduler::*;
use tiercel_config::{
    AgeingCap, Allocation, AtLimit, Batching, EngineSettings, Order, Policy, PrefillOrder,
    ResumeOrder, StepMix, Target, VictimRule,
};
use tiercel_device::{SeqId, StepTiming, Tier, Timestamp};

/// Creates a scheduler under the policy `fcfs`, with `change` applied to its settings.
pub(super) fn plain(change: impl FnOnce(&mut EngineSettings)) -> State {
    scheduler(|e| {
        e.use_policy(Policy::Fcfs);
        e.preemption.mirror_percent = MIRROR_PERCENT;
        change(e);
    })
}

/// Creates a scheduler under the policy `priority+preempt`, with `change` applied to its settings.
pub(super) fn tiered(change: impl FnOnce(&mut EngineSettings)) -> State {
    scheduler(|e| {
        e.use_policy(Policy::PriorityPreempt);
        e.preemption.mirror_percent = MIRROR_PERCENT;
        change(e);
    })
}

/// Returns the sequences in a step request, with the number of tokens that the step may compute of each.
fn shares(request: &StepRequest) -> Vec<(u64, u32)> {
    request.wants.iter().map(|want| (want.ticket.seq.0, want.new_tokens)).collect()
}

/// Checks the scheduler's invariants, then plans a step.
pub(super) fn plan(s: &mut State) -> StepRequest {
    s.check().expect("invariants hold");
    s.plan(NOW).expect("a step")
}

/// Plans a step and completes it at `at` us, with one sampled token for each sequence.
pub(super) fn run(s: &mut State, at: u64) {
    let batch = submit(s);
    let mut done = all_sample(&batch, 1);
    if let Ok(output) = &mut done.result {
        // Report a duration of 0, so that the cost model learns nothing from the step.
        output.timing = StepTiming::default();
    }
    s.step_done(done, Timestamp(at));
}

pub(super) fn longer(id: u64, tier: Tier, prompt: u32, max_tokens: u32) -> NewSequence {
    NewSequence { max_tokens, ..sequence(id, tier, prompt) }
}

#[test]
fn whole_prompts_wait_for_a_step_that_has_room() {
    let mut s = plain(|e| e.scheduler.chunked_prefill = false);
    for (id, prompt) in [(1, 20), (2, 20), (3, 4)] {
        s.enqueue(sequence(id, Tier::Standard, prompt));
    }
    let request = plan(&mut s);
    assert_eq!(shares(&request), [(1, 20)], "the third would overtake the second");
    s.granted(grant_all(&request));
    let mut s = plain(|e| e.scheduler.chunked_prefill = false);
    s.enqueue(sequence(1, Tier::Standard, 70));
    s.enqueue(sequence(2, Tier::Standard, 4));
    assert_eq!(shares(&plan(&mut s)), [(1, 32)], "one longer than a step has steps to itself");
}

#[test]
fn chunks_are_aligned_except_where_a_prompt_ends_or_nothing_would_go_on() {
    let chunks = |unit, first, second| {
        let mut s = plain(|e| e.scheduler.chunk_alignment = unit);
        s.enqueue(sequence(1, Tier::Standard, first));
        s.enqueue(sequence(2, Tier::Standard, second));
        shares(&plan(&mut s))
    };
    assert_eq!(chunks(10, 50, 50), [(1, 30)]);
    assert_eq!(chunks(10, 7, 50), [(1, 7), (2, 20)], "the end of a prompt is what it is");
    assert_eq!(chunks(10, 7, 25), [(1, 7), (2, 25)]);
    assert_eq!(chunks(10, 7, 26), [(1, 7), (2, 20)]);
    assert_eq!(chunks(64, 50, 50), [(1, 32)], "no whole unit fits");
}

#[test]
fn a_step_leaves_only_so_many_prompts_partly_computed() {
    let chunks = |most| {
        let mut s = plain(|e| {
            e.scheduler.long_prefill_token_threshold = 8;
            e.scheduler.max_partial_prefills = most;
        });
        for (id, prompt) in [(1, 20), (2, 20), (3, 4), (4, 20)] {
            s.enqueue(sequence(id, Tier::Standard, prompt));
        }
        shares(&plan(&mut s))
    };
    assert_eq!(chunks(0), [(1, 8), (2, 8), (3, 4), (4, 8)]);
    assert_eq!(chunks(2), [(1, 8), (2, 8), (3, 4)]);
    assert_eq!(chunks(1), [(1, 8), (3, 4)]);
}

#[test]
fn prompts_may_be_kept_to_so_many_tokens_beside_the_decodes() {
    let mut s = plain(|e| e.scheduler.max_prefill_tokens = 6);
    s.enqueue(sequence(1, Tier::Standard, 4));
    run(&mut s, 1);
    s.enqueue(sequence(2, Tier::Standard, 40));
    assert_eq!(shares(&plan(&mut s)), [(1, 1), (2, 6)]);
}

#[test]
fn a_long_prompt_may_take_a_share_of_the_context_in_one_step() {
    let mut s = plain(|e| e.scheduler.long_prefill_percent = 2.0);
    s.enqueue(sequence(1, Tier::Standard, 100));
    // The chunk is limited to 2 % of the context length of 1000 tokens: 20 tokens.
    assert_eq!(shares(&plan(&mut s)), [(1, 20)]);
}

#[test]
fn prompts_share_a_step_in_the_order_chosen() {
    let chunks = |order| {
        let mut s = tiered(|e| {
            e.scheduler.prefill_order = order;
            e.slo.standard.ttft_ms = Target::Ms(1.0);
        });
        s.enqueue(NewSequence { priority: 1, ..sequence(1, Tier::Standard, 16) });
        s.enqueue(sequence(2, Tier::Standard, 30));
        s.enqueue(sequence(3, Tier::Premium, 6));
        shares(&plan(&mut s))
    };
    assert_eq!(chunks(PrefillOrder::Rank), [(3, 6), (2, 26)]);
    assert_eq!(chunks(PrefillOrder::Shortest), [(3, 6), (2, 10), (1, 16)]);
    assert_eq!(chunks(PrefillOrder::Deadline), [(3, 6), (2, 10), (1, 16)]);
}

#[test]
fn prompts_alone_go_before_decodes_until_they_are_denied() {
    let mut s = plain(|e| e.scheduler.mix = StepMix::PromptsAlone);
    s.enqueue(sequence(1, Tier::Standard, 4));
    run(&mut s, 1);
    s.enqueue(sequence(2, Tier::Standard, 4));
    let request = plan(&mut s);
    assert_eq!(shares(&request), [(2, 4)]);
    let outcome = GrantOutcome::Denied { pending_blocks: 0 };
    let grants = vec![Grant { ticket: ticket(2), outcome }];
    s.granted(StepGrant { step: request.step, grants, ..StepGrant::default() });
    assert!(s.may_replan(), "decodes need not wait for what prompts wait for");
    let batch = submit(&mut s);
    assert_eq!(batch.slices[0].seq, SeqId(1));
    s.step_done(all_sample(&batch, 1), Timestamp(2));
    assert_eq!(shares(&plan(&mut s)), [(2, 4)], "then it is asked for again");
}

#[test]
fn a_static_batch_takes_no_request_once_its_first_one_has_ended() {
    let mut s = plain(|e| {
        e.scheduler.batching = Batching::Static;
        e.scheduler.max_num_seqs = 2;
    });
    s.enqueue(longer(1, Tier::Standard, 4, 1));
    s.enqueue(longer(2, Tier::Standard, 4, 3));
    run(&mut s, 1);
    s.enqueue(sequence(3, Tier::Standard, 4));
    for at in 2..=3 {
        let batch = submit(&mut s);
        assert_eq!(batch.slices.len(), 1, "the second runs on alone");
        s.step_done(all_sample(&batch, 1), Timestamp(at));
    }
    assert_eq!(shares(&plan(&mut s)), [(3, 4)], "the next batch");
}

#[test]
fn blocks_up_front_are_asked_for_the_longest_output() {
    let mut s = plain(|e| e.scheduler.allocation = Allocation::UpFront);
    s.enqueue(longer(1, Tier::Standard, 4, 50));
    s.enqueue(longer(2, Tier::Standard, 4, 5000));
    let request = plan(&mut s);
    let asked = |want: &Want| match want.kind {
        WantKind::Open { must_fit, .. } => (want.reserve, must_fit),
        WantKind::Grow => (want.reserve, 0),
    };
    // Blocks are requested for prompt and longest output (54 tokens), but for no more than the context length of 1000
    // tokens.
    let reserves: Vec<(u32, u32)> = request.wants.iter().map(asked).collect();
    assert_eq!(reserves, [(54, 54), (1000, 1000)]);
}

#[test]
fn the_full_sequence_check_can_be_turned_off() {
    let must_fit = |checked| {
        let mut s = plain(|e| e.scheduler.full_sequence_check = checked);
        s.enqueue(sequence(1, Tier::Standard, 90));
        match plan(&mut s).wants[0].kind {
            WantKind::Open { must_fit, .. } => must_fit,
            WantKind::Grow => panic!("it waits"),
        }
    };
    assert_eq!((must_fit(true), must_fit(false)), (90, 0));
}

#[test]
fn background_may_be_kept_further_from_the_last_block_than_others() {
    let mut s = tiered(|e| e.scheduler.background_watermark_percent = 10.0);
    s.enqueue(sequence(1, Tier::Premium, 4));
    s.enqueue(sequence(2, Tier::Standard, 4));
    s.enqueue(sequence(3, Tier::Background, 4));
    let kept = |want: &Want| match want.kind {
        WantKind::Open { keep_free, .. } => keep_free,
        WantKind::Grow => 0,
    };
    // Expected watermarks: 10 % of 100 blocks for background. The first candidate has none, because it may use the last
    // block; nor has a candidate above background that may preempt others, because it should take free blocks first.
    assert_eq!(plan(&mut s).wants.iter().map(kept).collect::<Vec<_>>(), [0, 0, 10]);
}

/// Returns the victims under the victim rule `rule`, first to be preempted first. There are three standard sequences
/// with 1 or 2 output tokens; the third has the largest `max_tokens`.
fn victims(rule: VictimRule) -> Vec<u64> {
    let mut s = tiered(|e| e.preemption.victim = rule);
    s.basis.targets.standard.tpot_ms = Some(0.01);
    for (id, at) in [(2, 1_000), (1, 2_000), (3, 2_100)] {
        // Hold sequence 2, which started first, during the last step, so that its last token is the oldest.
        s.set_hold(SeqId(2), Hold::Stream, id == 3);
        s.enqueue(longer(id, Tier::Standard, 4, 10 + 10 * id as u32));
        run(&mut s, at);
    }
    s.set_hold(SeqId(2), Hold::Stream, false);
    s.enqueue(sequence(9, Tier::Background, 4));
    let request = s.plan(Timestamp(3_000)).expect("a step");
    request.victims.iter().map(|victim| victim.ticket.seq.0).collect()
}

#[test]
fn victims_go_by_the_rule() {
    assert_eq!(victims(VictimRule::Rank), [3, 2, 1], "arrival is the id");
    assert_eq!(victims(VictimRule::LeastProgress), [3, 2, 1], "1, 2 and 2 tokens");
    assert_eq!(victims(VictimRule::LatestArrival), [3, 2, 1]);
    assert_eq!(victims(VictimRule::ReverseFifo), [3, 1, 2], "the last to start");
    assert_eq!(victims(VictimRule::LongestRemaining), [3, 2, 1]);
    assert_eq!(victims(VictimRule::LeastRecent), [2, 3, 1]);
    // Victims by slack: sequences 3, 1 and 2 are 900, 990 and 1990 us behind a TPOT target of 10 us per token; the one
    // least behind is preempted first.
    assert_eq!(victims(VictimRule::Slack), [3, 1, 2]);
    assert_eq!(victims(VictimRule::ResumeCost), [3, 2, 1], "the store chooses");
}

#[test]
fn rules_without_tiers_treat_all_victims_alike_and_the_others_take_the_lowest_tier_first() {
    let victims = |rule| {
        let mut s = tiered(|e| e.preemption.victim = rule);
        s.enqueue(longer(1, Tier::Background, 4, 9));
        run(&mut s, 1);
        s.enqueue(longer(2, Tier::Standard, 4, 9));
        run(&mut s, 2);
        let request = plan(&mut s);
        let grows = request.wants.iter().find(|want| want.ticket.seq == SeqId(1));
        let may = grows.map(|want| want.max_victims);
        (request.victims.iter().map(|v| v.ticket.seq.0).collect::<Vec<_>>(), may)
    };
    assert_eq!(victims(VictimRule::LeastProgress), (vec![1, 2], Some(1)), "only its own tier");
    assert_eq!(victims(VictimRule::ReverseFifo), (vec![2, 1], Some(2)), "background takes all");
}

/// Preempts sequence `id`, which must be among the victims of the plan, and returns what is reported to clients.
fn preempt(s: &mut State, id: u64) -> Vec<Effect> {
    let request = plan(s);
    let victim = request.victims.iter().find(|victim| victim.ticket.seq == SeqId(id));
    let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 0 };
    let preempted = vec![Preempted { ticket: victim.expect("it runs").ticket, outcome }];
    s.granted(StepGrant { step: request.step, preempted, ..StepGrant::default() }).1
}

#[test]
fn one_preempted_as_often_as_allowed_is_promoted_or_dropped() {
    let mut s = tiered(|e| {
        e.preemption.max_per_request = 1;
        e.preemption.at_limit = AtLimit::Promote;
    });
    for id in 1..=2 {
        s.enqueue(longer(id, Tier::Background, 4, 9));
    }
    run(&mut s, 1);
    assert!(preempt(&mut s, 2).is_empty());
    run(&mut s, 2);
    let request = plan(&mut s);
    assert_eq!(request.victims[0].ticket.seq, SeqId(1), "the second counts as better now");

    let mut s = tiered(|e| {
        e.preemption.max_per_request = 1;
        e.preemption.at_limit = AtLimit::Drop;
    });
    s.enqueue(longer(1, Tier::Background, 4, 9));
    run(&mut s, 1);
    assert!(preempt(&mut s, 1).is_empty(), "once is allowed");
    run(&mut s, 2);
    let effects = preempt(&mut s, 1);
    let dropped = |effect: &Effect| matches!(effect, Effect::Ended(end) if end.outcome == Some(Err(RequestFault::Dropped)));
    assert!(effects.iter().any(dropped), "{effects:?}");
}

#[test]
fn a_preempted_sequence_waits_where_the_policy_says() {
    let order = |resume| {
        let mut s = plain(|e| {
            e.preemption.resume = resume;
            e.scheduler.order = Order::Tier;
        });
        s.enqueue(longer(5, Tier::Standard, 4, 9));
        run(&mut s, 1);
        preempt(&mut s, 5);
        s.enqueue(sequence(3, Tier::Standard, 4));
        s.enqueue(sequence(7, Tier::Standard, 4));
        s.enqueue(sequence(9, Tier::Premium, 4));
        shares(&plan(&mut s)).into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(order(ResumeOrder::Rank), [9, 3, 5, 7]);
    assert_eq!(order(ResumeOrder::First), [9, 5, 3, 7]);
    assert_eq!(order(ResumeOrder::Last), [9, 3, 7, 5]);
}

#[test]
fn waiting_raises_background_to_standard_and_no_higher_than_the_cap() {
    let first = |cap, at_ms: u64| {
        let mut s = tiered(|e| {
            e.scheduler.ageing_s = 1.0;
            e.scheduler.ageing_cap = cap;
        });
        s.enqueue(sequence(1, Tier::Background, 4));
        s.enqueue(sequence(2, Tier::Standard, 4));
        s.enqueue(sequence(3, Tier::Premium, 4));
        let request = s.plan(Timestamp(at_ms * 1000)).expect("a step");
        s.check().expect("invariants hold");
        shares(&request).into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(first(AgeingCap::Standard, 999), [3, 2, 1]);
    assert_eq!(first(AgeingCap::Standard, 1001), [3, 1, 2]);
    assert_eq!(first(AgeingCap::Standard, 1_000_000), [3, 1, 2]);
    assert_eq!(first(AgeingCap::Premium, 2001), [1, 2, 3]);
    assert_eq!(first(AgeingCap::Premium, u64::MAX / 1000), [1, 2, 3], "for ever");
}

#[test]
fn the_shortest_predicted_output_goes_first() {
    let mut s = plain(|e| e.scheduler.order = Order::Shortest);
    s.enqueue(longer(1, Tier::Standard, 4, 400));
    s.enqueue(longer(2, Tier::Standard, 4, 10));
    assert_eq!(shares(&plan(&mut s)), [(2, 4), (1, 4)], "nothing is known but what is allowed");
}

#[test]
fn tenants_take_turns_whatever_their_tiers() {
    let mut s = plain(|e| e.scheduler.order = Order::Fair);
    for id in 1..=3 {
        s.enqueue(sequence(id, Tier::Premium, 4));
    }
    let other = crate::blocks::Salt([7; 16]);
    s.enqueue(NewSequence { salt: other, ..sequence(4, Tier::Background, 4) });
    assert_eq!(shares(&plan(&mut s)), [(1, 4), (4, 4), (2, 4), (3, 4)]);
}

#[test]
fn background_streams_are_left_out_of_steps_that_higher_tiers_cannot_afford() {
    let running = |pause, target_ms| {
        let mut s = scheduler(|e| {
            e.scheduler.pause_background = pause;
            e.scheduler.background_prefill_percent = 100;
            e.slo.premium.tpot_ms = Target::Ms(target_ms);
        });
        for id in 1..=3 {
            s.enqueue(longer(id, Tier::Background, 4, 900));
        }
        s.enqueue(longer(4, Tier::Premium, 4, 900));
        run(&mut s, 500);
        shares(&plan(&mut s)).into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    // A step of one stream takes 101 us, and each further stream adds 1 us; background streams are paused if the step
    // would exceed premium's target.
    assert_eq!(running(true, 0.2), [4, 1, 2, 3]);
    assert_eq!(running(true, 0.1024), [4, 1], "102.1 us are aimed at");
    assert_eq!(running(false, 0.1024), [4, 1, 2, 3]);
    assert_eq!(running(true, 0.05), [4, 1, 2, 3], "nobody waits for one that is lost");
}
