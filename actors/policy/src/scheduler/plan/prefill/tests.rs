//! Tests of the order in which prompts get tokens, and of how many they get.

use super::*;
use crate::scheduler::budget::fixtures::{cost, prompt};
use crate::scheduler::queue::service_class::ServiceClass;
use crate::scheduler::state::State;
use crate::scheduler::tests::{NOW, scheduler};

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
        long_chunk_bare_us: f64::INFINITY,
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

/// Returns the tokens that a second prompt of 10 tokens gets in a step with room for 15 tokens, of which the prompt
/// `first` takes 6. The step surely finishes the first prompt unless that may lack blocks, so the second waits.
fn second_of_10(s: &State, shortage: bool, first: &Sequence) -> Option<u32> {
    let mut step =
        PrefillRoom { shortage, long_chunk_bare_us: 0.1, used_us: 0.0, tokens: 15, ..room() };
    assert_eq!(tokens(&mut step, first, s), Some(6));
    tokens(&mut step, &standard(2, 10, 5.0), s)
}

#[test]
fn a_prompt_waits_only_for_a_prompt_of_its_tier_that_has_its_blocks() {
    let s = state();
    let second = |first: &Sequence| second_of_10(&s, false, first);
    let first = || standard(1, 6, 5.0);
    assert_eq!(second(&first()), None);
    let mut denied = first();
    denied.kv.denied_at = Some(NOW);
    assert_eq!(second(&denied), Some(9), "the first prompt may be denied blocks again");
    let mut saved = first();
    (saved.phase, saved.kv.saved) = (Phase::Waiting, true);
    assert_eq!(second(&saved), Some(9), "the first prompt's blocks are on the host");
    let mut higher = first();
    higher.service.key.class = ServiceClass::new(Tier::Premium, Tier::Premium, false);
    assert_eq!(second(&higher), Some(9), "the first prompt is of another tier");
    let mut partial = PrefillRoom { used_us: 0.0, tokens: 15, ..room() };
    assert_eq!(tokens(&mut partial, &standard(1, 20, 5.0), &s), Some(15));
    assert_eq!(partial.finished, None, "the step does not finish the first prompt");
}

#[test]
fn no_prompt_waits_for_one_that_opens_while_blocks_are_short() {
    let s = state();
    let second = |shortage, phase| {
        let mut first = standard(1, 6, 5.0);
        first.phase = phase;
        second_of_10(&s, shortage, &first)
    };
    assert_eq!(second(true, Phase::Waiting), Some(9), "the first prompt may get no blocks");
    assert_eq!(second(true, Phase::Running), None, "the first prompt has blocks");
    assert_eq!(second(false, Phase::Waiting), None);
}

#[test]
fn a_prompt_that_only_the_next_step_can_finish_waits_for_it_beside_a_shorter_bare_step() {
    let mut s = state();
    // The step has room for 15 tokens, and the first prompt takes 6 tokens of this room. The part of the second prompt
    // that fits, 9 tokens, takes 72 us and 0.25 us for each of 36 pairs: 81 us.
    let two = |s: &State, long_us, time_us, second: &Sequence| {
        let long_chunk_bare_us = long_us * LONG_CHUNK_SHARE;
        let mut step =
            PrefillRoom { long_chunk_bare_us, time_us, used_us: 0.0, tokens: 15, ..room() };
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
