//! Tests of mirroring (copies to the host ahead of need), and of the reserved blocks that are lent because of it.

use crate::scene::{Scene, covers, names, open, victim};
use tiercel_device::SeqId;
use tiercel_policy::{StepRequest, Victim, Want};

impl Scene {
    /// Queues copies ahead of need of at most `most` blocks of the sequences `victims`. Returns how many copies are
    /// queued then.
    fn ahead(&mut self, victims: &[u64], most: u32) -> u32 {
        let victims = victims.iter().map(|seq| victim(*seq, true)).collect();
        self.request(StepRequest { victims, mirror: most, ..StepRequest::default() });
        self.store.snapshot().queued
    }
}

#[test]
fn nothing_is_copied_ahead_while_a_copy_is_queued() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 2);
    scene.running(2, 2, 2);
    scene.make_room(6, vec![victim(1, true)]);
    assert_eq!(scene.ahead(&[2], 9), 2, "the copies of sequence 1 alone");
    scene.finish_copies(true);
    assert_eq!(scene.ahead(&[2], 9), 2, "the copies of sequence 2");
}

#[test]
fn the_lag_is_what_is_left_to_copy_for_the_victims() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 1);
    scene.running(2, 2, 3);
    let mut lag = |mirrors, most| {
        let victims = vec![victim(1, true), victim(2, true)];
        scene.request(StepRequest { victims, mirror: most, mirrors, ..StepRequest::default() });
        let lag = scene.store.mirroring_lag();
        scene.finish_copies(true);
        lag
    };
    assert_eq!([(true, 0), (true, 2), (true, 1)].map(|(on, most)| lag(on, most)), [4, 2, 1]);
    assert_eq!(lag(false, 0), 0, "mirroring is off");
    assert_eq!(lag(true, 9), 0);
}

#[test]
fn the_next_victim_is_copied_ahead_after_all_blocks_of_the_one_before() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 1);
    scene.running(2, 2, 3);
    assert_eq!(scene.ahead(&[1, 2], 3), 3, "one block of sequence 1 and two of sequence 2");
}

#[test]
fn a_copy_that_was_given_up_is_made_for_another_sequence_with_the_content() {
    let mut scene = Scene::new(6, 8);
    scene.running(1, 1, 2);
    // Sequence 2 has the same text in blocks of its own.
    scene.running(2, 1, 2);
    assert_eq!(scene.ahead(&[1, 2], 9), 2);
    // Sequence 1 ends, and sequence 3 needs the blocks that only the two copies hold.
    scene.store.release(SeqId(1));
    assert_eq!(covers(&scene.ask(vec![open(3, 16, &[], 0)], vec![])), [Some(16)]);
    assert_eq!(scene.store.snapshot().queued, 0);
    assert_eq!(scene.ahead(&[2], 9), 2);
}

#[test]
fn reserved_blocks_are_lent_as_far_as_victims_have_blocks_on_the_host() {
    let opens = |kept_for_others, lends, spared| {
        let mut scene = Scene::new(8, 8);
        scene.running(1, 1, 2);
        assert_eq!(scene.ahead(&[1], 2), 2);
        scene.finish_copies(true);
        let want = Want { kept_for_others, ..open(9, 16, &names(9, 3), 0) };
        let grant = scene.request(StepRequest {
            wants: vec![want],
            victims: vec![Victim { spared, ..victim(1, true) }],
            lends,
            ..StepRequest::default()
        });
        covers(&grant)[0].is_some()
    };
    // Six blocks are free, and the sequence needs four. Two of the reserved blocks are free besides, and two are lent.
    assert!(opens(2, false, false) && opens(4, true, false));
    assert!(!opens(3, false, false) && !opens(5, true, false));
    assert!(opens(2, true, true) && !opens(3, true, true), "the blocks of a spared victim");
}
