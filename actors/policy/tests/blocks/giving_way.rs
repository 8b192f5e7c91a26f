//! Tests of the choice of victims for a sequence that requests blocks, and of the blocks that are set aside for a
//! request that waits.

use crate::scene::{Scene, covers, grow, names, only, open, open_with, pending, preempted};
use crate::scene::{ticket, victim};
use tiercel_device::SeqId;
use tiercel_policy::{GrantOutcome, PreemptOutcome, Release, StepRequest};

#[test]
fn victims_go_in_order_and_only_as_many_as_needed() {
    let mut scene = Scene::new(8, 0);
    for seq in 1..=4 {
        scene.running(seq, seq as u8, 2);
    }
    let victims = vec![victim(4, false), victim(3, false), victim(2, false)];
    let grant = scene.ask(vec![grow(1, 20, 3)], victims);
    assert_eq!(preempted(&grant), [4, 3]);
    assert_eq!(covers(&grant), [Some(20)]);
    let freed = PreemptOutcome::Freed { blocks: 2, on_host: 0, retained: 0 };
    assert!(grant.preempted.iter().all(|taken| taken.outcome == freed));
    assert_eq!(grant.free_blocks, 1);
}

#[test]
fn no_victim_is_preempted_when_its_blocks_would_not_be_enough() {
    let mut scene = Scene::new(6, 0);
    for seq in 1..=3 {
        scene.running(seq, seq as u8, 2);
    }
    let victims = vec![victim(3, false), victim(2, false)];
    let grant = scene.ask(vec![open(9, 24, &[], 2)], victims.clone());
    assert_eq!((preempted(&grant), pending(&only(&grant))), (vec![], 0));
    // The list has enough victims, but `max_victims` of this request is 0, so it is denied without a preemption.
    let grant = scene.ask(vec![grow(1, 12, 0)], victims);
    assert_eq!((preempted(&grant), pending(&only(&grant))), (vec![], 0));
}

#[test]
fn a_victim_whose_blocks_are_all_shared_is_passed_over() {
    let mut scene = Scene::new(6, 0);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    // Sequence 2 shares the blocks of its prefix and owns one block, because the last token is always computed and
    // needs room.
    let grant = scene.ask(vec![open(2, 9, &text[..2], 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Run { computed: 8, .. }));
    scene.running(3, 3, 2);
    assert_eq!(scene.store.snapshot().device.free, 0);
    let victims = vec![victim(1, false), victim(2, false)];
    let grant = scene.ask(vec![grow(3, 12, 2)], victims);
    assert_eq!(preempted(&grant), [1], "its third block is its own");
    let freed = grant.preempted[0].outcome;
    assert_eq!(freed, PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 0 });
}

/// Creates a full pool of four blocks: sequences 1 and 2 share the same two blocks and hold no others; sequence 3 holds
/// two.
fn twins() -> Scene {
    let mut scene = Scene::new(4, 0);
    let text = names(1, 2);
    scene.running_on(1, &text, 0);
    // Open sequence 2 without new tokens: it shares two blocks, and its ninth token gets no block yet.
    let mut want = open(2, 9, &text, 0);
    want.new_tokens = 0;
    let grant = scene.ask(vec![want], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Run { computed: 8, cover: 8, .. }));
    scene.running(3, 3, 2);
    scene
}

#[test]
fn twins_that_share_everything_go_together_or_not_at_all() {
    let mut scene = twins();
    let grant = scene.ask(vec![grow(3, 12, 1)], vec![victim(2, false), victim(1, false)]);
    assert_eq!(preempted(&grant), [] as [u64; 0]);
    let grant = scene.ask(vec![grow(3, 12, 2)], vec![victim(2, false), victim(1, false)]);
    assert_eq!(preempted(&grant), [2, 1]);
    assert_eq!(covers(&grant), [Some(12)]);
}

#[test]
fn a_passed_over_victim_is_not_taken_along() {
    let mut scene = twins();
    scene.store.release(SeqId(3));
    scene.running(4, 4, 1);
    scene.running(5, 5, 1);
    // Preempting sequence 2 alone frees nothing, because sequence 1 shares its blocks. Sequence 4 alone is enough.
    let grant = scene.ask(vec![grow(5, 8, 2)], vec![victim(2, false), victim(4, false)]);
    assert_eq!(preempted(&grant), [4]);
}

#[test]
fn no_second_victim_is_preempted_for_one_need() {
    let mut scene = Scene::new(6, 6);
    for seq in 1..=3 {
        scene.running(seq, seq as u8, 2);
    }
    let victims = vec![victim(3, true), victim(2, true)];
    let grant = scene.ask(vec![open(9, 8, &[], 2)], victims.clone());
    assert_eq!(preempted(&grant), [3]);
    assert_eq!(grant.preempted[0].outcome, PreemptOutcome::Copying { blocks: 2, retained: 0 });
    assert_eq!(pending(&only(&grant)), 2);
    // Repeat the request while the victim is being copied, after its copies have ended, and after the commit: no
    // further victim is taken.
    let grant = scene.ask(vec![open(9, 8, &[], 2)], victims.clone());
    assert_eq!((preempted(&grant), pending(&only(&grant))), (vec![], 2));
    scene.finish_copies(true);
    let grant = scene.ask(vec![open(9, 8, &[], 2)], victims.clone());
    assert_eq!((preempted(&grant), pending(&only(&grant))), (vec![], 2));
    assert!(scene.store.commit_preempt(ticket(3, 1)));
    let grant = scene.ask(vec![open(9, 8, &[], 2)], victims);
    assert_eq!((preempted(&grant), covers(&grant)), (vec![], vec![Some(8)]));
}

#[test]
fn blocks_on_their_way_are_promised_in_order_of_rank() {
    let mut scene = Scene::new(6, 6);
    for seq in 1..=3 {
        scene.running(seq, seq as u8, 2);
    }
    let victims = vec![victim(3, true), victim(2, true)];
    // The first request takes victim 3. The blocks of victim 3 are then set aside, so the second request takes victim
    // 2.
    let wants = vec![open(8, 8, &[], 2), open(9, 8, &[], 2)];
    let grant = scene.ask(wants, victims);
    assert_eq!(preempted(&grant), [3, 2]);
    assert_eq!(covers(&grant), [None, None]);
}

#[test]
fn a_waiting_want_is_not_overtaken_by_a_lower_one() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 2);
    scene.running(2, 2, 1);
    scene.running(3, 3, 3);
    // Two blocks are free, and three come free when victim 3 is copied out. The first request waits for four of these
    // five, so later requests get at most one.
    let wants = vec![open(8, 16, &[], 1), open(9, 8, &[], 0), grow(2, 8, 0), grow(1, 12, 0)];
    let grant = scene.ask(wants, vec![victim(3, true)]);
    assert_eq!(preempted(&grant), [3]);
    assert_eq!(covers(&grant), [None, None, Some(8), None], "one block is left over to grow");
}

#[test]
fn a_want_beyond_hope_holds_back_openings_but_not_growth() {
    let mut scene = Scene::new(6, 0);
    scene.running(1, 1, 2);
    scene.running(2, 2, 2);
    // The first request needs seven blocks in a pool of six, so no victim helps. It must block the opening of sequence
    // 9, but not the growth of sequence 1.
    let wants = vec![open(8, 28, &[], 1), open(9, 4, &[], 0), grow(1, 12, 0)];
    let grant = scene.ask(wants, vec![victim(2, false)]);
    assert_eq!(covers(&grant), [None, None, Some(12)]);
    assert_eq!(preempted(&grant), [] as [u64; 0]);
    // The unmet request blocks openings even without victims, because the sequences that hold blocks will end.
    let wants = || vec![open(8, 28, &[], 0), open(9, 4, &[], 0)];
    assert_eq!(covers(&scene.ask(wants(), vec![])), [None, None]);
    // If no sequence holds blocks, none will come free for the unmet request, so it does not block the other request.
    let mut scene = Scene::new(6, 0);
    assert_eq!(covers(&scene.ask(wants(), vec![])), [None, Some(4)]);
}

#[test]
fn a_want_that_was_preempted_is_not_answered_and_none_goes_for_itself() {
    let mut scene = Scene::new(4, 0);
    scene.running(1, 1, 2);
    scene.running(2, 2, 2);
    let grant = scene.ask(vec![grow(1, 12, 1), grow(2, 12, 1)], vec![victim(2, false)]);
    assert_eq!((preempted(&grant), covers(&grant)), (vec![2], vec![Some(12)]));
    let grant = scene.ask(vec![grow(1, 20, 1)], vec![victim(1, false)]);
    assert_eq!((preempted(&grant), covers(&grant)), (vec![], vec![None]));
}

#[test]
fn who_was_granted_the_step_is_no_victim_of_it() {
    let mut scene = Scene::new(4, 0);
    scene.running(1, 1, 2);
    scene.running(2, 2, 2);
    let grant = scene.ask(vec![grow(2, 8, 0), grow(1, 12, 1)], vec![victim(2, false)]);
    assert_eq!((preempted(&grant), covers(&grant)), (vec![], vec![Some(8), None]));
}

#[test]
fn an_opening_keeps_the_watermark_and_the_full_sequence_check() {
    let mut scene = Scene::new(6, 0);
    let grant = scene.ask(vec![open_with(1, 16, &[], 0, (3, 0))], vec![]);
    assert_eq!(covers(&grant), [None]);
    let grant = scene.ask(vec![open_with(1, 16, &[], 0, (2, 0))], vec![]);
    assert_eq!(covers(&grant), [Some(16)]);
    let grant = scene.ask(vec![open_with(2, 4, &[], 0, (0, 12))], vec![]);
    assert_eq!(covers(&grant), [None]);
    let mut chunk = open_with(2, 8, &[], 0, (0, 8));
    chunk.new_tokens = 4;
    let grant = scene.ask(vec![chunk], vec![]);
    assert_eq!((covers(&grant), grant.free_blocks), (vec![Some(4)], 1), "only the step's part");
}

#[test]
fn the_watermark_does_not_bind_growth_and_calls_for_victims() {
    let mut scene = Scene::new(4, 0);
    scene.running(1, 1, 1);
    scene.running(2, 2, 1);
    let grant = scene.ask(vec![open_with(9, 4, &[], 1, (2, 0))], vec![victim(2, false)]);
    assert_eq!((preempted(&grant), covers(&grant)), (vec![2], vec![Some(4)]));
    let grant = scene.ask(vec![grow(1, 12, 0)], vec![]);
    assert_eq!((covers(&grant), grant.free_blocks), (vec![Some(12)], 0));
}

#[test]
fn released_blocks_serve_the_same_request() {
    let mut scene = Scene::new(2, 0);
    scene.running(1, 1, 2);
    let wants = vec![open(2, 8, &[], 0)];
    let released = vec![SeqId(1), SeqId(1), SeqId(77)];
    let grant = scene.request(StepRequest { released, wants, ..StepRequest::default() });
    assert_eq!(covers(&grant), [Some(8)]);
}

#[test]
fn blocks_that_copies_alone_hold_are_a_reason_to_hold_back_openings() {
    let mut scene = Scene::new(6, 6);
    scene.running(1, 1, 2);
    scene.make_room(6, vec![victim(1, true)]);
    assert_eq!(scene.take().len(), 1);
    scene.store.release(SeqId(1));
    // No sequence is left, but two blocks come free when the copies end. The first request needs seven blocks.
    let wants = vec![open(8, 28, &[], 0), open(9, 4, &[], 0)];
    assert_eq!(covers(&scene.ask(wants, vec![])), [None, None]);
}

#[test]
fn a_sequence_without_device_blocks_is_no_reason_to_hold_back_openings() {
    let mut scene = Scene::new(6, 6);
    scene.running(1, 1, 2);
    scene.swap_out(1);
    let wants = vec![open(8, 28, &[], 0), open(9, 4, &[], 0)];
    assert_eq!(covers(&scene.ask(wants, vec![])), [None, Some(4)]);
}

#[test]
fn blocks_that_were_pending_before_are_set_aside_once() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 2);
    scene.running(2, 2, 1);
    scene.running(3, 3, 3);
    scene.make_room(5, vec![victim(3, true)]);
    // Two blocks are free, and three are being copied. The first request waits for four of these five.
    let grant = scene.ask(vec![open(8, 16, &[], 0), grow(2, 8, 0)], vec![]);
    assert_eq!(covers(&grant), [None, Some(8)]);
}

#[test]
fn a_denied_request_is_not_answered_if_its_sequence_is_preempted_for_a_later_one() {
    let mut scene = Scene::new(4, 0);
    scene.running(1, 1, 2);
    scene.running(2, 2, 2);
    let grant = scene.ask(vec![grow(2, 12, 0), grow(1, 12, 1)], vec![victim(2, false)]);
    assert_eq!((preempted(&grant), covers(&grant)), (vec![2], vec![Some(12)]));
}

#[test]
fn a_victim_that_is_being_copied_out_is_not_taken_again() {
    let mut scene = Scene::new(6, 6);
    for seq in 1..=3 {
        scene.running(seq, seq as u8, 2);
    }
    let victims = vec![victim(3, true), victim(2, true)];
    assert_eq!(preempted(&scene.ask(vec![open(9, 8, &[], 2)], victims.clone())), [3]);
    // The request now needs two blocks more than are being copied out.
    let grant = scene.ask(vec![open(9, 16, &[], 2)], victims);
    assert_eq!((preempted(&grant), pending(&only(&grant))), (vec![2], 4));
}

#[test]
fn what_a_preempted_sequence_retains_is_spared_if_others_give_enough() {
    let mut scene = Scene::new(6, 0);
    for seq in 1..=3 {
        scene.running(seq, seq as u8, 2);
    }
    let release = Release::Needed { unit: 1 };
    let request = |tokens, victims| {
        let wants = vec![grow(1, tokens, 2)];
        StepRequest { wants, victims, release, ..StepRequest::default() }
    };
    let grant = scene.request(request(12, vec![victim(2, false)]));
    let freed = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 1 };
    assert_eq!((preempted(&grant), grant.preempted[0].outcome), (vec![2], freed));
    // Sequence 1 needs two blocks. Sequence 2 is first in the list and has one left, but sequence 3 gives two.
    let grant = scene.request(request(20, vec![victim(2, false), victim(3, false)]));
    assert_eq!((preempted(&grant), covers(&grant)), (vec![3], vec![Some(20)]));
    let tables = scene.store.snapshot().tables;
    assert_eq!(tables, [(SeqId(1), 5), (SeqId(2), 1)]);
}
