//! Tests of the blocks that victims retain on the device, and of the blocks that they find when they resume.

use crate::scene::{Scene, grow, names, only, open, preempted, ticket, victim};
use tiercel_device::SeqId;
use tiercel_policy::blocks::BlockHash;
use tiercel_policy::{
    GrantOutcome, PreemptOutcome, Release, ResumeCosts, StepGrant, StepRequest, Want, WantKind,
};

impl Scene {
    /// Grows sequence 1 to `tokens` tokens by preempting `victims` (sequence, swap or not), which give up the part of
    /// their tables that `gives` says.
    fn taken(&mut self, tokens: u32, victims: &[(u64, bool)], release: Release) -> StepGrant {
        let victims: Vec<_> = victims.iter().map(|(seq, swap)| victim(*seq, *swap)).collect();
        let wants = vec![grow(1, tokens, victims.len() as u32)];
        self.request(StepRequest { wants, victims, release, ..StepRequest::default() })
    }

    fn holds(&self, seq: u64) -> u32 {
        let tables = self.store.snapshot().tables;
        tables.iter().find(|(id, _)| *id == SeqId(seq)).map_or(0, |(_, blocks)| *blocks)
    }
}

const ONE: Release = Release::Needed { unit: 1 };

/// Returns a request to resume a sequence only from blocks that were retained or copied out for the sequence itself.
fn reopen_own(seq: u64, tokens: u32, hashes: &[BlockHash]) -> Want {
    let want = open(seq, tokens, hashes, 0);
    let kind = WantKind::Open { hashes: hashes.into(), keep_free: 0, must_fit: 0, own_only: true };
    Want { kind, ..want }
}

fn found(grant: &StepGrant) -> u32 {
    match only(grant) {
        GrantOutcome::Run { computed, .. } => computed,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn a_victim_gives_its_tail_and_resumes_with_the_rest() {
    let mut scene = Scene::new(8, 0);
    scene.running(1, 1, 2);
    scene.running(2, 2, 6);
    let grant = scene.taken(12, &[(2, false)], ONE);
    let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 5 };
    assert_eq!(grant.preempted[0].outcome, outcome);
    assert_eq!((scene.holds(1), scene.holds(2)), (3, 5));
    scene.store.release(SeqId(1));
    let grant = scene.ask(vec![open(2, 25, &names(2, 6), 0)], vec![]);
    assert_eq!(found(&grant), 20);
}

#[test]
fn it_gives_multiples_of_the_unit_and_more_when_asked_again() {
    let mut scene = Scene::new(10, 0);
    scene.running(1, 1, 2);
    scene.running(2, 2, 8);
    let unit = Release::Needed { unit: 3 };
    scene.taken(12, &[(2, false)], unit);
    assert_eq!((scene.holds(1), scene.holds(2), scene.store.snapshot().device.free), (3, 5, 2));
    // Sequence 1 needs four blocks and two are free. For the other two, the victim gives a whole unit of three.
    let grant = scene.taken(28, &[(2, false)], unit);
    let outcome = PreemptOutcome::Freed { blocks: 3, on_host: 0, retained: 2 };
    assert_eq!((grant.preempted[0].outcome, scene.holds(2)), (outcome, 2));
    // Sequence 1 needs four blocks, more than the free one and the two that the victim has left, so nothing is taken.
    let grant = scene.taken(44, &[(2, false)], unit);
    assert_eq!((preempted(&grant), scene.holds(2)), (vec![], 2));
    scene.store.release(SeqId(2));
    assert_eq!(scene.store.snapshot().device.free, 3);
}

#[test]
fn only_what_it_gives_is_copied_out_and_comes_back() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 2);
    scene.running(2, 2, 6);
    let grant = scene.taken(16, &[(2, true)], ONE);
    let outcome = PreemptOutcome::Copying { blocks: 2, retained: 4 };
    assert_eq!(grant.preempted[0].outcome, outcome);
    scene.finish_copies(true);
    assert!(scene.store.commit_preempt(ticket(2, 1)));
    scene.taken(16, &[], ONE);
    assert_eq!((scene.holds(1), scene.holds(2), scene.store.snapshot().pinned), (4, 4, 2));
    // The preempted victim gives up one more retained block, which comes free when the copy of that block has ended; no
    // decision of the scheduler is needed, because the victim does not run.
    let grant = scene.taken(20, &[(2, true)], ONE);
    let outcome = PreemptOutcome::Freed { blocks: 0, on_host: 3, retained: 3 };
    assert_eq!(grant.preempted[0].outcome, outcome);
    scene.finish_copies(true);
    scene.taken(20, &[], ONE);
    assert_eq!((scene.holds(1), scene.holds(2)), (5, 3));
    scene.store.release(SeqId(1));
    scene.flush_device();
    let grant = scene.ask(vec![open(2, 25, &names(2, 6), 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Copying { blocks: 3 }));
}

#[test]
fn a_preparation_taken_back_leaves_the_whole_table() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 2);
    scene.running(2, 2, 6);
    scene.taken(16, &[(2, true)], ONE);
    assert!(scene.store.abort_preempt(ticket(2, 1)));
    scene.store.check().unwrap();
    assert_eq!((scene.holds(2), scene.store.snapshot().pinned), (6, 0));
}

#[test]
fn without_room_on_the_host_what_lies_beyond_is_given_up_too() {
    let mut scene = Scene::new(8, 2);
    scene.running(1, 1, 2);
    scene.running(2, 2, 6);
    scene.taken(16, &[(2, true)], ONE);
    scene.finish_copies(true);
    assert!(scene.store.commit_preempt(ticket(2, 1)));
    scene.taken(16, &[], ONE);
    assert_eq!(scene.store.snapshot().pinned, 2);
    // The host has blocks 4 and 5 of the victim but no room for block 3. Without block 3 they are useless, so their
    // pins must go.
    let grant = scene.taken(20, &[(2, true)], ONE);
    let outcome = PreemptOutcome::Freed { blocks: 1, on_host: 0, retained: 3 };
    assert_eq!((grant.preempted[0].outcome, scene.store.snapshot().pinned), (outcome, 0));
}

#[test]
fn what_others_use_is_kept_and_not_copied() {
    let text = names(1, 4);
    let sharing = |release| {
        let mut scene = Scene::new(8, 8);
        scene.running_on(1, &text[..2], 0);
        scene.running_on(2, &[&text[..2], &names(2, 4)[2..]].concat(), 2);
        scene.running(3, 3, 4);
        scene.store.release(SeqId(3));
        scene.taken(12 + 16, &[(2, true)], release).preempted[0].outcome
    };
    assert_eq!(sharing(Release::All), PreemptOutcome::Copying { blocks: 4, retained: 0 });
    assert_eq!(sharing(Release::Unshared), PreemptOutcome::Copying { blocks: 2, retained: 2 });
}

#[test]
fn what_it_kept_it_finds_although_another_block_has_the_name() {
    let mut scene = Scene::new(8, 0);
    let text = names(2, 3);
    // Sequences 3 and 2 compute the same text; the blocks of sequence 3, the first, have the names.
    scene.running(3, 2, 3);
    scene.running_on(2, &text, 0);
    scene.running(1, 1, 2);
    scene.taken(12, &[(2, false)], ONE);
    assert_eq!(scene.holds(2), 2);
    scene.store.release(SeqId(3));
    scene.flush_device();
    let grant = scene.ask(vec![open(2, 13, &text, 0)], vec![]);
    assert_eq!(found(&grant), 8);
}

#[test]
fn from_its_own_copies_alone_it_finds_nothing_of_others() {
    let text = names(2, 3);
    let resumed = |own: bool| {
        let mut scene = Scene::new(12, 0);
        scene.running(1, 1, 2);
        scene.running_on(2, &text, 0);
        scene.make_room(10, vec![victim(2, false)]);
        let want = if own { reopen_own(2, 13, &text) } else { open(2, 13, &text, 0) };
        found(&scene.ask(vec![want], vec![]))
    };
    assert_eq!((resumed(false), resumed(true)), (12, 0));

    let mut scene = Scene::new(12, 12);
    scene.running_on(2, &text, 0);
    scene.swap_out(2);
    let grant = scene.ask(vec![reopen_own(2, 13, &text)], vec![]);
    let copying = GrantOutcome::Copying { blocks: 3 };
    assert_eq!(format!("{:?}", only(&grant)), format!("{copying:?}"), "although the device has it");
}

#[test]
fn what_the_host_has_is_computed_instead_if_the_link_is_busy_for_longer() {
    let text = names(2, 3);
    let resumed = |copy_us, resumes_by_cost| {
        let mut scene = Scene::new(16, 16);
        scene.running(1, 1, 4);
        scene.running_on(2, &text, 0);
        scene.swap_out(2);
        scene.flush_device();
        // Swap out sequence 1 and resume it first, so that its four copies are queued before those of sequence 2.
        scene.swap_out(1);
        scene.flush_device();
        scene.ask(vec![open(1, 17, &names(1, 4), 0)], vec![]);
        let costs = ResumeCosts { copy_us, first_block_us: 90.0, block_before_us: 10.0 };
        let wants = vec![open(2, 13, &text, 0)];
        let request = StepRequest { wants, costs, resumes_by_cost, ..StepRequest::default() };
        only(&scene.request(request))
    };
    // Sequence 2 would wait for seven copies (four of sequence 1, three of its own). At 42 us each that is faster than
    // recomputing its three blocks in 300 us, at 43 us it is not.
    assert!(matches!(resumed(42.0, true), GrantOutcome::Copying { blocks: 3 }));
    assert!(matches!(resumed(43.0, true), GrantOutcome::Run { computed: 0, .. }));
    assert!(matches!(resumed(43.0, false), GrantOutcome::Copying { blocks: 3 }));
}

#[test]
fn blocks_are_copied_in_if_that_takes_as_long_as_to_compute_them() {
    let text = names(2, 3);
    let resumed = |copy_us| {
        let mut scene = Scene::new(8, 8);
        scene.running_on(2, &text, 0);
        scene.swap_out(2);
        scene.flush_device();
        let costs = ResumeCosts { copy_us, first_block_us: 90.0, block_before_us: 10.0 };
        let wants = vec![open(2, 13, &text, 0)];
        only(&scene.request(StepRequest {
            wants,
            costs,
            resumes_by_cost: true,
            ..StepRequest::default()
        }))
    };
    // Computing the three blocks again takes 90, 100 and 110 us.
    assert!(matches!(resumed(100.0), GrantOutcome::Copying { blocks: 3 }));
    assert!(matches!(resumed(101.0), GrantOutcome::Run { computed: 0, .. }));
}
