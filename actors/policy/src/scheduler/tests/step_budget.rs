//! Tests of the step budget (the allowed length of the next step), and of streams that are paused for a step.

use crate::scheduler::budget::slack_reserve::SlackReserve;
use crate::scheduler::tests::{all_sample, grant_all, scheduler, sequence, submit};
use crate::scheduler::{NewSequence, State};
use tiercel_config::{Late, Policy, Target};
use tiercel_device::{SeqId, Tier, Timestamp};
use tiercel_device::{StepBatch, StepDone, StepTiming};

/// Creates a scheduler with a premium TPOT target of 500 us. Premium streams with a predicted length of 76 tokens aim
/// at 490 us per token, and premium streams of at most 16 predicted tokens at 450 us. A step takes 100 us, plus 1 us
/// for each stream and 10 us for each prompt token.
fn paced() -> State {
    let mut s = scheduler(|settings| {
        settings.scheduler.max_num_batched_tokens = 256;
        settings.slo.premium.ttft_ms = Target::Ms(10.0);
        settings.slo.premium.tpot_ms = Target::Ms(0.5);
    });
    predict_76_tokens(&mut s);
    s
}

/// Sets the predicted length of requests whose `max_tokens` is at least 76 to 76 tokens. Streams of these requests then
/// aim at 98 % of their TPOT targets, because 75 steps of 98 % end one and a half targets early.
fn predict_76_tokens(s: &mut State) {
    for tier in Tier::ALL {
        s.queue.predictor.observe(tier, 4, 76.0, 76);
    }
}

/// Returns the result of a step with a duration of 0, from which the cost model learns nothing.
fn sampled(batch: &StepBatch) -> StepDone {
    let mut done = all_sample(batch, 1);
    if let Ok(output) = &mut done.result {
        output.timing = StepTiming::default();
    }
    done
}

/// Starts sequence 1 as a stream that gets its first token at `first_at` us.
fn stream(s: &mut State, tier: Tier, max_tokens: u32, first_at: u64) {
    s.enqueue(NewSequence { max_tokens, ..sequence(1, tier, 4) });
    let batch = submit(s);
    s.step_done(sampled(&batch), Timestamp(first_at));
}

/// Plans a step at `now` us, runs it, and returns how many tokens of sequence `id` the step has.
fn tokens(s: &mut State, id: u64, now: u64) -> u32 {
    let request = s.plan(Timestamp(now)).expect("a step");
    let want = request.wants.iter().find(|want| want.ticket.seq == SeqId(id));
    let tokens = want.map_or(0, |want| want.new_tokens);
    let batch = s.granted(grant_all(&request)).0.expect("a batch");
    s.step_done(sampled(&batch), Timestamp(now));
    tokens
}

#[test]
fn a_stream_may_spend_its_target_and_what_it_has_saved() {
    // A step may take 490 us: 101 us for the stream, and 38 prompt tokens of 10 us each. Time that the stream has lost
    // already leaves fewer.
    for (now, expected) in [(1000, 38), (1000 + 100, 28), (1000 + 490, 1)] {
        let mut s = paced();
        stream(&mut s, Tier::Premium, 100, 1000);
        s.enqueue(sequence(2, Tier::Background, 200));
        // The stream is behind its TPOT target but can still meet it, so the step is short enough to catch up at once:
        // the prompt gets fewer tokens, down to the one that it gets in any case.
        assert_eq!(tokens(&mut s, 2, now), expected, "at {now}");
    }
    let mut s = paced();
    stream(&mut s, Tier::Premium, 100, 1000);
    let batch = submit(&mut s);
    s.step_done(sampled(&batch), Timestamp(1101));
    s.enqueue(sequence(2, Tier::Standard, 200));
    // The last step took only 101 us of the 490 us per token, so the stream has a slack of 389 us, which pays for 39
    // more prompt tokens.
    assert_eq!(tokens(&mut s, 2, 1101), 38 + 39);
}

#[test]
fn a_stream_limits_no_step_if_it_is_lost_or_has_no_target_or_under_a_fixed_budget() {
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = None;
    stream(&mut s, Tier::Premium, 5, 1000);
    s.enqueue(sequence(2, Tier::Standard, 200));
    // The stream is 2000 us behind, and the four tokens that it has left can gain at most 4 * 399 us on its target. The
    // target is lost, so the stream no longer limits the prompt.
    assert_eq!(tokens(&mut s, 2, 1000 + 2000), 200);
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = None;
    stream(&mut s, Tier::Background, 100, 1000);
    s.enqueue(sequence(2, Tier::Standard, 200));
    assert_eq!(tokens(&mut s, 2, 1000), 200);
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = None;
    s.set_policy(Policy::PriorityPreempt);
    stream(&mut s, Tier::Premium, 100, 1000);
    s.enqueue(sequence(2, Tier::Standard, 200));
    assert_eq!(tokens(&mut s, 2, 1000), 200);
}

#[test]
fn a_stream_alone_goes_on_however_short_the_targets_of_others_are() {
    let mut s = paced();
    s.basis.rules.scheduling.pause_background = true;
    s.basis.targets.premium.ttft_ms = Some(0.1);
    stream(&mut s, Tier::Background, 100, 1000);
    assert_eq!(tokens(&mut s, 1, 1000), 1);
}

#[test]
fn admission_is_told_of_steps_as_long_as_they_will_be() {
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = Some(5.0);
    // Check the expected duration of a full step: 256 prompt tokens of 10 us each, and a fixed cost of 100 us.
    assert_eq!(s.capacity(Timestamp(1000)).step_us.round(), 2_660.0);
    s.enqueue(sequence(1, Tier::Premium, 4));
    s.cancel(SeqId(1));
    let step_us = |s: &State| s.capacity(Timestamp(1000)).step_us.round();
    assert_eq!(step_us(&s), 2_660.0, "premium alone does not wait for worse tiers");
    s.enqueue(sequence(2, Tier::Background, 4));
    assert_eq!(step_us(&s), 1_500.0);
    s.cancel(SeqId(2));
    assert_eq!(step_us(&s), 1_500.0, "it came a moment ago");
    s.queue.arrivals.set(Tier::Background, None);
    assert_eq!(step_us(&s), 2_660.0);
}

#[test]
fn the_reserve_is_kept_from_lower_tiers_and_not_from_premium_itself() {
    let prompt = |worse_came| {
        let mut s = paced();
        s.reserve = SlackReserve::of_us(1_000.0);
        s.queue.arrivals.set(Tier::Background, worse_came);
        stream(&mut s, Tier::Premium, 2, 1000);
        s.enqueue(NewSequence { arrival: Timestamp(1000), ..sequence(2, Tier::Premium, 200) });
        tokens(&mut s, 2, 1000)
    };
    // A step may take 450 us, of which the decoding stream takes 101 us; the rest suffices for 34 prompt tokens. If
    // lower tiers have requests, each step also saves 1000 / 30 us to build up the slack reserve of 1000 us, and the
    // rest suffices for 31 prompt tokens. The stream ends with its second token, so it has no recoverable lag.
    assert_eq!((prompt(None), prompt(Some(Timestamp(1000)))), (34, 31));
}

#[test]
fn one_tier_alone_may_be_behind_its_pace_by_half_of_its_recoverable_lag() {
    let prompt = |others_came| {
        let mut s = paced();
        s.queue.arrivals.set(Tier::Background, others_came);
        stream(&mut s, Tier::Premium, 12, 1000);
        s.queue.table.update(SeqId(1), |stream| stream.service.predicted_tokens = 6.0);
        s.enqueue(NewSequence { arrival: Timestamp(1000), ..sequence(2, Tier::Premium, 250) });
        tokens(&mut s, 2, 1000)
    };
    // Of the 6 predicted tokens, 4 come after the next step. In steps of 101 us each of these tokens makes up 349 us on
    // the aimed pace of 450 us, together 1396 us. So the step may take 450 us + 1396 us / 2: 101 us, and 104 prompt
    // tokens.
    assert_eq!(prompt(None), 104);
    assert_eq!(prompt(Some(Timestamp(1000))), 34, "a background request came");
}

#[test]
fn a_stream_keeps_its_pace_beside_another_tier_although_no_request_of_its_tier_came_lately() {
    let mut s = paced();
    stream(&mut s, Tier::Premium, 900, 1000);
    s.queue.arrivals.set(Tier::Premium, None);
    s.enqueue(sequence(2, Tier::Background, 200));
    assert_eq!(tokens(&mut s, 2, 1000), 38);
}

#[test]
fn prompts_go_on_however_little_a_stream_has_to_spend() {
    let mut s = paced();
    stream(&mut s, Tier::Premium, 900, 1000);
    s.enqueue(sequence(2, Tier::Standard, 200));
    // Prompts always get at least 15 % of the 101 us that a step with the one stream takes: enough for one prompt
    // token.
    assert_eq!(tokens(&mut s, 2, 1000 + 4_000), 1);
}

#[test]
fn a_step_without_due_prompts_is_short_enough_for_requests_that_may_come() {
    for (tier, expected) in [(Tier::Background, 80), (Tier::Standard, 80), (Tier::Premium, 200)] {
        let mut s = paced();
        s.basis.targets.premium.ttft_ms = Some(3.0);
        s.basis.rules.scheduling.background_prefill_percent = 100;
        // Enqueue and cancel a premium request, so that premium counts as a tier with requests.
        s.enqueue(NewSequence { arrival: Timestamp(900), ..sequence(1, Tier::Premium, 4) });
        s.cancel(SeqId(1));
        let arrival = Timestamp(if tier == Tier::Premium { 1000 } else { 0 });
        s.enqueue(NewSequence { arrival, ..sequence(2, tier, 200) });
        // While no first token would miss its TTFT target, a step takes at most 900 us (30 % of the TTFT target of 3
        // ms): 80 prompt tokens. A premium prompt that is due in 1 ms gets all the time that it needs.
        assert_eq!(tokens(&mut s, 2, 3_000), expected, "{tier:?}");
    }
    // If premium requests never come, one step computes the background prompt. If they come, and the TTFT target is too
    // short for the device, each step is as long as two empty steps: 10 tokens.
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = Some(0.1);
    s.basis.rules.scheduling.background_prefill_percent = 100;
    s.enqueue(sequence(2, Tier::Background, 200));
    assert_eq!(tokens(&mut s, 2, 3_000), 200);
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = Some(0.1);
    s.basis.rules.scheduling.background_prefill_percent = 100;
    s.enqueue(NewSequence { arrival: Timestamp(900), ..sequence(1, Tier::Premium, 4) });
    s.cancel(SeqId(1));
    s.enqueue(sequence(2, Tier::Background, 200));
    assert_eq!(tokens(&mut s, 2, 3_000), 10);
}

#[test]
fn a_first_token_that_is_due_is_not_held_up_by_a_stream_of_its_tier() {
    let plan = |tier, arrival| {
        let mut s = paced();
        // A background request came lately, so two tiers have requests, and the stream keeps its pace.
        s.queue.arrivals.set(Tier::Background, Some(Timestamp(20_000)));
        stream(&mut s, Tier::Premium, 100, 20_000);
        s.enqueue(NewSequence { arrival: Timestamp(arrival), ..sequence(2, tier, 200) });
        tokens(&mut s, 2, 20_000)
    };
    // The first token is planned for 9706 us after arrival: 20 times the least error (3 %) of a step of 490 us before
    // the target of 10,000 us. A prompt that has just arrived needs 11 tokens per step for that, and the stream leaves
    // room for 38.
    assert_eq!(plan(Tier::Premium, 20_000), 38);
    // After this step the prompt has 2369 us left and needs 2000 us of them. So a step in which the stream takes 101 us
    // must be 648 us long: 54 tokens.
    assert_eq!(plan(Tier::Premium, 13_153), 54);
    assert_eq!(plan(Tier::Premium, 12_000), 200, "this step or not as aimed at");
    assert_eq!(plan(Tier::Premium, 10_500), 200, "this step or never");
    assert_eq!(plan(Tier::Premium, 5_000), 38, "late already: as if it had just come");
    assert_eq!(plan(Tier::Standard, 5_000), 38, "no business of a premium stream");
}

#[test]
fn a_prompt_goes_before_the_pace_of_a_lower_tiers_stream_even_when_it_is_late() {
    let mut s = paced();
    s.basis.targets.standard.tpot_ms = Some(0.5);
    stream(&mut s, Tier::Standard, 100, 20_000);
    s.enqueue(NewSequence { arrival: Timestamp(0), ..sequence(2, Tier::Premium, 200) });
    assert_eq!(tokens(&mut s, 2, 20_000), 200);
}

#[test]
fn a_late_prompt_keeps_its_pace_to_the_end() {
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = Some(4.0);
    // A background request came lately, so two tiers have requests, and the stream keeps its pace.
    s.queue.arrivals.set(Tier::Background, Some(Timestamp(20_000)));
    stream(&mut s, Tier::Premium, 1000, 20_000);
    s.enqueue(NewSequence { arrival: Timestamp(0), ..sequence(2, Tier::Premium, 700) });
    // Although the prompt is past its deadline, each step computes as many of its tokens as if it had just arrived: 700
    // tokens in 3706 us are 92 tokens in a step of 490 us.
    for (steps, expected) in [92, 92, 92, 92, 92, 92, 92, 56].into_iter().enumerate() {
        assert_eq!(tokens(&mut s, 2, 20_000 + 490 * steps as u64), expected);
    }
}

#[test]
fn a_due_prompt_does_not_break_the_pace_of_a_higher_tiers_stream() {
    let mut s = paced();
    s.basis.rules.shedding.late = Late::Wait;
    (s.basis.targets.standard.tpot_ms, s.basis.targets.standard.ttft_ms) = (Some(0.3), Some(10.0));
    stream(&mut s, Tier::Premium, 100, 20_000);
    s.enqueue(NewSequence { max_tokens: 100, ..sequence(3, Tier::Standard, 4) });
    let batch = submit(&mut s);
    s.step_done(sampled(&batch), Timestamp(20_490));
    // The standard stream allows a step of 294 us and the premium stream one of 490 us; both streams together take 102
    // us. The due standard prompt may exceed the standard stream's limit (19 tokens), but not the premium stream's (38
    // tokens).
    s.enqueue(NewSequence { arrival: Timestamp(12_000), ..sequence(2, Tier::Standard, 200) });
    assert_eq!(tokens(&mut s, 2, 20_490), 38);
}

#[test]
fn a_stream_that_was_held_for_long_sets_no_pace() {
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = None;
    stream(&mut s, Tier::Premium, 900, 1000);
    s.enqueue(sequence(2, Tier::Standard, 200));
    assert_eq!(tokens(&mut s, 2, 1000 + 32_000), 1);
    let mut s = paced();
    s.basis.targets.premium.ttft_ms = None;
    stream(&mut s, Tier::Premium, 900, 1000);
    s.enqueue(sequence(2, Tier::Standard, 200));
    assert_eq!(tokens(&mut s, 2, 1000 + 32_001), 200);
}
/// Creates a scheduler with a premium stream, whose first token came at 20,000 us, and four standard streams.
fn mixed() -> State {
    let mut s = paced();
    s.basis.rules.scheduling.pause_background = true;
    (s.basis.targets.standard.tpot_ms, s.basis.targets.standard.e2e_ms) = (Some(5.0), None);
    stream(&mut s, Tier::Premium, 100, 20_000);
    for id in 2..=5 {
        s.enqueue(NewSequence { max_tokens: 100, ..sequence(id, Tier::Standard, 4) });
    }
    let batch = submit(&mut s);
    s.step_done(sampled(&batch), Timestamp(20_490));
    s
}

/// Plans a step at `now` us, runs it, and returns its numbers of premium, standard and background decodes.
fn decodes(s: &mut State, now: u64) -> [usize; 3] {
    let request = s.plan(Timestamp(now)).expect("a step");
    let batch = s.granted(grant_all(&request)).0.expect("a batch");
    let tiers = [Tier::Premium, Tier::Standard, Tier::Background];
    let count = |tier| {
        let of_tier = |seq| s.queue.table.get(seq).is_some_and(|q| q.tier == tier);
        let decodes = batch.slices.iter().filter(|slice| slice.sample > Some(0));
        decodes.filter(|slice| of_tier(slice.seq)).count()
    };
    let found = tiers.map(count);
    s.step_done(sampled(&batch), Timestamp(now));
    found
}

#[test]
fn streams_of_lower_tiers_are_left_out_of_steps_that_premium_cannot_afford() {
    let mut s = mixed();
    assert_eq!(decodes(&mut s, 20_490), [1, 4, 0], "nothing presses");
    let mut s = mixed();
    // The premium prompt meets its TTFT target only if this step computes all of it, for longer than the 490 us that
    // the premium stream allows: all standard streams must be paused.
    let due = sequence(6, Tier::Premium, 60);
    s.enqueue(NewSequence { arrival: Timestamp(20_490 - 9_000), ..due });
    assert_eq!(decodes(&mut s, 20_490), [1, 0, 0], "standard is ahead by nearly 5 ms each");
    let mut s = mixed();
    for seq in s.live().collect::<Vec<_>>() {
        s.queue.table.change(seq, |sequence| {
            if sequence.tier == Tier::Standard {
                sequence.service.targets.tpot_ms = Some(0.2);
            }
        });
    }
    s.enqueue(NewSequence { arrival: Timestamp(20_490 - 9_000), ..sequence(6, Tier::Premium, 60) });
    assert_eq!(decodes(&mut s, 20_490), [1, 4, 0], "standard is not ahead by two steps");
}

#[test]
fn lower_tiers_leave_premium_streams_the_slack_saved_for_the_reserve() {
    let budget = |reserve_us: f64, prompt: NewSequence| {
        let mut s = paced();
        s.basis.rules.shedding.late = Late::Wait;
        s.basis.targets.standard.ttft_ms = Some(10.0);
        s.reserve = SlackReserve::of_us(reserve_us);
        stream(&mut s, Tier::Premium, 100, 20_000);
        s.enqueue(prompt);
        tokens(&mut s, 2, 20_000)
    };
    // Two prompts that the slack reserve must limit: a background prompt that could fill the step, and a standard
    // prompt that is due but may not delay a premium stream.
    let due = NewSequence { arrival: Timestamp(11_000), ..sequence(2, Tier::Standard, 200) };
    for prompt in [sequence(2, Tier::Background, 200), due] {
        assert_eq!(budget(0.0, prompt.clone()), 38);
        assert_eq!(budget(1_410.0, prompt.clone()), 34, "a thirtieth less");
        assert_eq!(budget(1e6, prompt), 31, "no more than a part of each step");
    }
}

#[test]
fn a_premium_stream_saves_slack_before_lower_tiers_may_spend_it() {
    let mut s = paced();
    // The slack reserve is 1410 us. Each step leaves a thirtieth of it (47 us) unspent until the stream has saved it
    // up.
    s.reserve = SlackReserve::of_us(1_410.0);
    s.enqueue(NewSequence {
        arrival: Timestamp(20_000),
        max_tokens: 900,
        ..sequence(2, Tier::Premium, 4)
    });
    let batch = submit(&mut s);
    s.step_done(sampled(&batch), Timestamp(21_000));
    s.enqueue(sequence(3, Tier::Background, 200));
    // A step may take 490 us; less 47 us for the slack reserve and 101 us for the stream, it has time for 34 prompt
    // tokens.
    assert_eq!(tokens(&mut s, 3, 21_000), 34);
    // Each step of 101 us saves 389 us of slack more, but lower tiers get nothing of it before 1410 us are saved.
    for now in [21_101, 21_202, 21_303] {
        assert_eq!(tokens(&mut s, 3, now), 34, "at {now}");
    }
    assert_eq!(tokens(&mut s, 3, 21_404), 53, "490 and 4 times 389 us, less 1410 and 101");
    // A premium prompt that is due may use up all slack of the premium stream at once, the slack reserve included.
    s.enqueue(NewSequence { arrival: Timestamp(13_000), ..sequence(4, Tier::Premium, 60) });
    assert_eq!(tokens(&mut s, 4, 21_505), 60);
}

#[test]
fn no_stream_sits_out_the_step_after_an_empty_plan() {
    let running = |empty_plans| {
        let mut s = paced();
        s.basis.rules.scheduling.pause_background = true;
        s.basis.targets.premium.tpot_ms = Some(0.104);
        for id in 2..=3 {
            s.enqueue(NewSequence { max_tokens: 900, ..sequence(id, Tier::Background, 4) });
        }
        stream(&mut s, Tier::Premium, 900, 1000);
        s.retry.empty_plans = empty_plans;
        decodes(&mut s, 1000)
    };
    // The premium stream aims at 98 % of 104 us per token. A step of it alone takes 101 us, and each further stream 1
    // us.
    assert_eq!((running(0), running(1)), ([1, 0, 0], [1, 0, 2]));
}
