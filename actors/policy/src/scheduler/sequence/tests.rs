//! Tests of one sequence's numbers, and of the check that these numbers agree.

use super::*;
use crate::scheduler::pipeline::progress::Part;
use crate::scheduler::tests::{BLOCK, NOW, sequence};
use tiercel_device::{BlockId, StepId};

/// Returns a sequence of five tokens in the phase `phase`, with `computed` valid tokens and a table of `blocks` blocks.
fn holding(phase: Phase, computed: u32, blocks: u32) -> Sequence {
    let mut sequence = Sequence::new(sequence(1, Tier::Standard, 5), BLOCK);
    sequence.phase = phase;
    sequence.kv.computed = computed;
    sequence.kv.block_table = (0..blocks).map(BlockId).collect();
    sequence
}

/// Checks that the sequence has a violation whose text contains `what`.
fn assert_violation(sequence: &Sequence, what: &str) {
    let violation = sequence.violation(BLOCK).expect(what);
    assert!(violation.contains(what), "{violation}");
}

#[test]
fn output_is_counted_from_the_prompt_and_from_the_last_start() {
    let mut sequence = holding(Phase::Waiting, 0, 0);
    (0..3).for_each(|token| sequence.push(token, NOW, BLOCK));
    assert_eq!((sequence.output_len(), sequence.tokens_since_open()), (3, 8));
    sequence.opened(4, BLOCK);
    assert_eq!(sequence.tokens_since_open(), 0);
    (0..2).for_each(|token| sequence.push(token, NOW, BLOCK));
    assert_eq!((sequence.output_len(), sequence.tokens_since_open()), (5, 2));
    sequence.closed(false, 0);
    let usage = Usage { prompt_tokens: 5, cached_tokens: 4, completion_tokens: 5, preemptions: 1 };
    assert_eq!(sequence.usage(), usage);
}

#[test]
fn a_sequence_is_in_target_if_it_met_each_of_its_targets() {
    let judged = |ttft_ms, tpot_ms, e2e_ms| {
        let mut sequence = Sequence::new(sequence(1, Tier::Premium, 5), BLOCK);
        sequence.service.targets = SloTargets { ttft_ms, tpot_ms, e2e_ms, ..Default::default() };
        assert_eq!(sequence.in_target(), None, "it has no token yet");
        // The first token comes after 4 ms, and two more 3 ms apart.
        for ms in [4, 7, 10] {
            sequence.push(1, sequence.arrival + ms * 1_000, BLOCK);
        }
        sequence.in_target()
    };
    assert_eq!(judged(None, None, None), None);
    assert_eq!(judged(Some(4.0), Some(3.0), Some(10.0)), Some(true));
    assert_eq!(judged(Some(3.9), Some(3.0), Some(10.0)), Some(false));
    assert_eq!(judged(Some(4.0), Some(2.9), None), Some(false));
    assert_eq!(judged(None, None, Some(9.9)), Some(false));
}

#[test]
fn full_blocks_are_named_looked_up_and_registered_once() {
    // Nine tokens: two full blocks of four, and one token.
    let mut sequence = Sequence::new(sequence(1, Tier::Standard, 9), BLOCK);
    let names = sequence.text.findable(BLOCK);
    assert_eq!(names.len(), 2);
    assert_ne!(names[0], names[1]);
    assert_eq!(sequence.text.register(3, BLOCK), []);
    assert_eq!(sequence.text.register(4, BLOCK), names[..1]);
    assert_eq!(sequence.text.register(9, BLOCK), names[1..]);
    (0..3).for_each(|token| sequence.push(token, NOW, BLOCK));
    assert_eq!(sequence.text.findable(BLOCK).len(), 2, "the last token's block is left out");
    assert_eq!(sequence.text.register(12, BLOCK).len(), 1);
    sequence.push(1, NOW, BLOCK);
    let longer = sequence.text.findable(BLOCK);
    assert_eq!((longer.len(), &longer[..2]), (3, &names[..]));
}

#[test]
fn each_block_table_has_an_epoch_of_its_own() {
    let mut sequence = holding(Phase::Running, 4, 1);
    let before = sequence.kv.epoch.0;
    (0..2).for_each(|_| sequence.kv.close(false, 0));
    assert_eq!(sequence.kv.epoch.0, before + 2);
}

#[test]
fn the_block_store_knows_the_names_of_the_prefix_that_it_found() {
    let mut sequence = holding(Phase::Waiting, 0, 0);
    (0..8).for_each(|token| sequence.push(token, NOW, BLOCK));
    sequence.opened(9, BLOCK);
    assert_eq!(sequence.text.registered, 2, "two blocks of four tokens are full");
}

#[test]
fn a_sequence_has_no_more_valid_tokens_than_tokens() {
    assert_eq!(holding(Phase::Running, 5, 2).violation(BLOCK), None);
    assert_violation(&holding(Phase::Running, 6, 2), "6 tokens computed of 5");
}

#[test]
fn steps_in_flight_compute_no_more_tokens_than_there_will_be() {
    let planned = |computed| {
        let mut sequence = holding(Phase::Running, 0, 2);
        let part = Part { step: StepId(1), computed: Some(computed), samples: true, void: false };
        sequence.kv.in_flight.submit(part);
        sequence
    };
    // The step samples the sixth token.
    assert_eq!(planned(6).violation(BLOCK), None);
    assert_violation(&planned(7), "more tokens are being computed than it has");
}

#[test]
fn named_blocks_hold_valid_tokens_only() {
    let named = |blocks| {
        let mut sequence = holding(Phase::Running, 4, 2);
        sequence.text.registered = blocks;
        sequence
    };
    assert_eq!(named(1).violation(BLOCK), None);
    assert_violation(&named(2), "blocks are named beyond the computed tokens");
}

#[test]
fn a_waiting_sequence_has_neither_valid_tokens_nor_a_table() {
    assert_eq!(holding(Phase::Waiting, 0, 0).violation(BLOCK), None);
    for (computed, blocks) in [(1, 0), (0, 1)] {
        assert_violation(&holding(Phase::Waiting, computed, blocks), "waiting, but holds blocks");
    }
}

#[test]
fn the_table_of_a_running_sequence_covers_its_valid_tokens() {
    for (phase, computed, blocks) in [
        (Phase::Running, 4, 1),
        (Phase::Running, 3, 1),
        (Phase::Running, 5, 0),
        (Phase::Preempting, 5, 1),
    ] {
        let violation = holding(phase, computed, blocks).violation(BLOCK);
        assert_eq!(violation, None, "{phase:?} {computed} {blocks}");
    }
    assert_violation(&holding(Phase::Running, 5, 1), "5 tokens computed, its blocks cover 4");
}
