//! Tests of the order in which prompts get tokens, and of how many they get.

use super::*;
use crate::blocks::Salt;
use crate::scheduler::budget::fixtures::{cost, prompt};
use crate::scheduler::plan::fixtures::candidates;
use crate::scheduler::queue::service_class::ServiceClass;
use crate::scheduler::state::State;
use crate::scheduler::tests::scheduler;

/// Creates a scheduler with the device of `cost`.
fn state() -> State {
    let mut s = scheduler(|_| ());
    s.basis.cost = cost();
    s
}

/// Creates a step that has room for 200 prompt tokens and time for 1,000 us of prompts, 400 us of which are used up.
fn room() -> PrefillRoom {
    PrefillRoom {
        time_us: 1_000.0,
        used_us: 400.0,
        tokens: 200,
        background_tokens: 200,
        least: 1,
        separate_bare_us: f64::INFINITY,
        shortage: false,
        finished: None,
        used_tokens: 0,
        partial: 0,
    }
}

/// Returns the number of tokens that a prompt gets; `None` if the prompt, or the whole step, gets no more.
fn tokens(room: &mut PrefillRoom, sequence: &Sequence, s: &State) -> Option<u32> {
    match room.chunk(sequence, false, &s.basis) {
        Chunk::Tokens(tokens) => Some(tokens),
        Chunk::Skip | Chunk::StepIsFull => None,
    }
}

#[test]
fn a_chunk_takes_the_time_that_is_left_and_counts_the_tokens_computed_before() {
    let (s, mut room) = (state(), room());
    // 34 tokens after 20 take 34 * 8 us, and 0.25 us for each of 34 * 20 + 561 pairs: 582.25 us. 35 tokens take 280 us
    // and 0.25 us for each of 700 + 595 pairs: 603.75 us, more than the 600 us that are left.
    let sequence = prompt(1, Tier::Standard, 100, 20);
    assert_eq!(tokens(&mut room, &sequence, &s), Some(34));
    assert_eq!((room.used_us, room.used_tokens, room.partial), (982.25, 34, 1));
}

#[test]
fn only_prompts_that_a_step_computes_in_part_count_as_partial() {
    let (s, mut step) = (state(), room());
    assert_eq!(tokens(&mut step, &prompt(1, Tier::Standard, 10, 0), &s), Some(10));
    assert_eq!(step.partial, 0, "the prompt is computed to its end");
    let mut full = PrefillRoom { used_tokens: 200, ..room() };
    assert_eq!(tokens(&mut full, &prompt(1, Tier::Standard, 10, 0), &s), Some(0));
    assert_eq!(full.partial, 0, "the prompt gets nothing");
}

#[test]
fn a_prompt_that_takes_long_beside_a_bare_step_waits_until_another_one_has_its_first_token() {
    let s = state();
    // The second prompt takes 80 us and 0.25 us for each of 45 pairs of tokens: 91.25 us.
    let second = |long_us, first: &Sequence| {
        let separate_bare_us = long_us * SEPARATE_SHARE;
        let mut step = PrefillRoom { separate_bare_us, time_us: 1_000.0, used_us: 0.0, ..room() };
        assert!(tokens(&mut step, first, &s).is_some_and(|tokens| tokens > 0));
        tokens(&mut step, &standard(2, 10, 5.0), &s)
    };
    let first = standard(1, 10, 5.0);
    assert_eq!(second(91.25, &first), None);
    assert_eq!(second(91.3, &first), Some(10), "the second prompt is short beside a bare step");
    let mut denied = standard(1, 10, 5.0);
    denied.kv.denied = true;
    assert_eq!(second(91.25, &denied), Some(10), "the first prompt may be denied blocks again");
    let mut saved = standard(1, 10, 5.0);
    (saved.phase, saved.kv.saved) = (Phase::Waiting, true);
    assert_eq!(second(91.25, &saved), Some(10), "the first prompt's blocks are on the host");
    let mut higher = standard(1, 10, 5.0);
    higher.service.key.class = ServiceClass::new(Tier::Premium, Tier::Premium, false);
    assert_eq!(second(91.25, &higher), Some(10), "the first prompt is of another tier");
    let mut partial =
        PrefillRoom { separate_bare_us: 0.1, time_us: 1_000.0, used_us: 0.0, tokens: 15, ..room() };
    assert_eq!(tokens(&mut partial, &standard(1, 20, 5.0), &s), Some(15));
    assert_eq!(partial.finished, None, "the step does not finish the first prompt");
}

#[test]
fn no_prompt_waits_for_one_that_opens_while_blocks_are_short() {
    let s = state();
    // Returns the tokens of a second prompt, which would wait for a first one that surely runs.
    let second = |shortage, phase| {
        let mut step = PrefillRoom { shortage, separate_bare_us: 0.1, used_us: 0.0, ..room() };
        let mut first = standard(1, 10, 5.0);
        first.phase = phase;
        assert_eq!(tokens(&mut step, &first, &s), Some(10));
        tokens(&mut step, &standard(2, 10, 5.0), &s)
    };
    assert_eq!(second(true, Phase::Waiting), Some(10), "the first prompt may get no blocks");
    assert_eq!(second(true, Phase::Running), None, "the first prompt has blocks");
    assert_eq!(second(false, Phase::Waiting), None);
}

#[test]
fn a_prompt_that_only_the_next_step_can_finish_waits_for_it_beside_a_shorter_bare_step() {
    let mut s = state();
    // The step has room for 15 tokens, and the first prompt takes 6 tokens of this room. The part of the second prompt
    // that fits, 9 tokens, takes 72 us and 0.25 us for each of 36 pairs: 81 us.
    let two = |s: &State, long_us, time_us, second: &Sequence| {
        let separate_bare_us = long_us * SEPARATE_PART_SHARE;
        let mut step =
            PrefillRoom { separate_bare_us, time_us, used_us: 0.0, tokens: 15, ..room() };
        assert_eq!(tokens(&mut step, &standard(1, 6, 5.0), s), Some(6));
        tokens(&mut step, second, s)
    };
    let second = |long_us, time_us, prompt: &Sequence| two(&s, long_us, time_us, prompt);
    assert_eq!(second(81.0, 1_000.0, &standard(2, 10, 5.0)), None);
    assert_eq!(second(81.1, 1_000.0, &standard(2, 10, 5.0)), Some(9), "the part is short");
    assert_eq!(second(81.0, 1_000.0, &standard(2, 9, 5.0)), Some(9), "the step finishes it");
    assert_eq!(second(81.0, 1_000.0, &standard(2, 16, 5.0)), Some(9), "too long for a step");
    assert_eq!(second(81.0, 1_000.0, &standard(2, 15, 5.0)), Some(9), "no room for its stream");
    // The second prompt of 14 tokens takes 112 us and 0.25 us for each of 91 pairs: 134.75 us.
    assert_eq!(second(81.0, 134.7, &standard(2, 14, 5.0)), Some(9), "too long for the time");
    assert_eq!(second(81.0, 134.75, &standard(2, 14, 5.0)), None);
    let mut late = standard(2, 14, 5.0);
    late.service.late = true;
    assert_eq!(second(81.0, 1_000.0, &late), None);
    s.basis.rules.scheduling.prefill_order = PrefillOrder::Shortest;
    let shortest_first = two(&s, 81.0, 1_000.0, &standard(2, 14, 5.0));
    assert_eq!(shortest_first, Some(9), "shorter prompts may go first later");
}

#[test]
fn a_whole_prompt_that_fits_beside_others_joins_the_step() {
    let mut s = state();
    s.basis.rules.scheduling.chunked_prefill = false;
    let used = |used_tokens| PrefillRoom { tokens: 15, used_tokens, ..room() };
    let sequence = prompt(1, Tier::Standard, 10, 0);
    assert_eq!(tokens(&mut used(5), &sequence, &s), Some(10));
    assert_eq!(tokens(&mut used(6), &sequence, &s), None);
    assert_eq!(tokens(&mut used(0), &prompt(1, Tier::Standard, 20, 0), &s), Some(15));
}

/// Creates a prompt with `tokens` tokens left to compute, of a service class of the standard tier, that arrived at `id`
/// us and has a TTFT target of `ttft_ms`.
fn standard(id: u64, tokens: u32, ttft_ms: f64) -> Sequence {
    let mut sequence = prompt(id, Tier::Standard, tokens, 0);
    sequence.service.key.class = ServiceClass::new(Tier::Standard, Tier::Standard, false);
    sequence.service.targets.ttft_ms = Some(ttft_ms);
    sequence
}

#[test]
fn prompts_in_time_go_by_deadline_late_ones_by_length_and_denied_ones_first() {
    let key = |sequence: &Sequence| prefill_key(sequence, [false; TIERS], PrefillOrder::Deadline);
    let mut sequence = standard(3, 40, 5.0);
    assert_eq!(key(&sequence), (Tier::Standard, true, false, 5_003));
    sequence.service.late = true;
    sequence.service.key.late = true;
    assert_eq!(key(&sequence), (Tier::Standard, true, true, 40));
    sequence.kv.denied = true;
    assert_eq!(key(&sequence), (Tier::Standard, false, true, 40));
    sequence.service.tenant_tag.start = 77.5;
    let several = [false, false, true, false];
    let by_tenant = prefill_key(&sequence, several, PrefillOrder::Deadline);
    assert_eq!(by_tenant, (Tier::Standard, false, true, 77));
}

#[test]
fn best_effort_prompts_go_by_when_they_got_their_blocks_denied_ones_first_and_waiting_ones_last() {
    let mut sequence = standard(3, 40, 5.0);
    sequence.kv.opened_number = 7;
    sequence.service.key.late = true;
    assert_eq!(opening_key(&sequence), (Tier::Standard, true, false, 7));
    sequence.kv.denied = true;
    assert_eq!(opening_key(&sequence), (Tier::Standard, false, false, 7));
    sequence.phase = Phase::Waiting;
    assert_eq!(opening_key(&sequence), (Tier::Standard, false, false, u64::MAX));
}

#[test]
fn a_tier_has_several_tenants_only_if_two_of_its_prompts_differ() {
    let of = |tier, tenant| {
        let mut sequence = prompt(1, tier, 10, 0);
        sequence.service.key.class = ServiceClass::new(tier, tier, false);
        sequence.service.tenant = Salt([tenant; 16]);
        sequence
    };
    let prompts = [
        of(Tier::Standard, 1),
        of(Tier::Premium, 1),
        of(Tier::Standard, 1),
        of(Tier::Premium, 2),
        of(Tier::Background, 3),
    ];
    let s = state();
    let several = tiers_with_several_tenants(prompts.iter(), &s.basis.rules);
    assert_eq!(several, [false, true, false, false]);
}

#[test]
fn rank_alone_counts_if_the_plan_goes_by_rank_or_the_setting_says_so() {
    let mut s = state();
    let mut prompts = [standard(1, 10, 9.0), standard(2, 10, 5.0)];
    let order = |s: &State, prompts: &[Sequence], by_rank| {
        in_order(&candidates(prompts), (&s.basis.rules, by_rank), false)
    };
    assert_eq!(order(&s, &prompts, false), [1, 0], "the earlier deadline");
    assert_eq!(order(&s, &prompts, true), [0, 1]);
    s.basis.rules.scheduling.prefill_order = PrefillOrder::Rank;
    prompts[1].kv.denied = true;
    assert_eq!(order(&s, &prompts, false), [0, 1], "even if the second was denied blocks");
}

#[test]
fn best_effort_prompts_go_by_their_opening_only_while_several_tiers_share_the_time() {
    let mut s = state();
    s.basis.rules.scheduling.prefill_order = PrefillOrder::Shortest;
    let of = |left, opened_number, shared| {
        let mut sequence = prompt(1, Tier::Standard, left, 0);
        sequence.service.key.class = ServiceClass::new(Tier::Standard, Tier::Background, shared);
        sequence.kv.opened_number = opened_number;
        sequence
    };
    let order = |shared, tiers_share| {
        let prompts = [of(10, 2, shared), of(20, 1, shared)];
        in_order(&candidates(&prompts), (&s.basis.rules, false), tiers_share)
    };
    assert_eq!(order(true, true), [1, 0], "the first that got its blocks");
    assert_eq!(order(true, false), [0, 1], "the shortest");
    assert_eq!(order(false, true), [0, 1], "prompts that no share pays for");
}
