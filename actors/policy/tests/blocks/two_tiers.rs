//! Tests of prefix-cache hits, copies between device and host, pinned host blocks, and fences (copies wait for steps
//! that use their blocks).

use crate::scene::{Scene, covers, grow, names, only, open, room, ticket, victim};
use tiercel_device::{CopyBatch, CopyDirection, SeqId, StepId};
use tiercel_policy::{GrantOutcome, PreemptOutcome, StepRequest, StoreEvent, Want};

#[test]
fn a_prefix_is_shared_but_the_last_token_is_always_computed() {
    let mut scene = Scene::new(8, 0);
    let text = names(1, 2);
    let first = scene.running_on(1, &text, 0);
    let grant = scene.ask(vec![open(2, 8, &text, 0), open(3, 9, &text, 0)], vec![]);
    let shared: Vec<_> = grant
        .grants
        .iter()
        .map(|grant| match &grant.outcome {
            GrantOutcome::Run { computed, table: Some(table), .. } => {
                (*computed, table.iter().zip(first.iter()).filter(|(a, b)| a == b).count())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shared, [(4, 1), (8, 2)]);
}

#[test]
fn content_outlives_its_sequence_until_its_space_is_needed() {
    let mut scene = Scene::new(4, 0);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    scene.store.release(SeqId(1));
    assert_eq!(scene.store.snapshot().device.cached, 3);
    // Two blocks are needed: the one without content is taken, and the last block of the cached text is evicted; its
    // first blocks stay cached.
    scene.ask(vec![open(2, 8, &[], 0)], vec![]);
    let grant = scene.ask(vec![open(3, 12, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Denied { .. }));
    let grant = scene.ask(vec![open(3, 9, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Denied { .. }), "hits use free blocks up");
    scene.store.release(SeqId(2));
    let grant = scene.ask(vec![open(3, 12, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Run { computed: 8, .. }));
}

#[test]
fn duplicates_stay_private_and_the_first_keeps_the_name() {
    let mut scene = Scene::new(6, 0);
    let text = names(1, 1);
    let first = scene.running_on(1, &text, 0);
    let second = scene.running_on(2, &text, 0);
    assert_ne!(first, second);
    let grant = scene.ask(vec![open(3, 5, &text, 0)], vec![]);
    let GrantOutcome::Run { table: Some(third), .. } = only(&grant) else { panic!("{grant:?}") };
    assert_eq!(third[0], first[0]);
    scene.store.release(SeqId(2));
    let cached = scene.store.snapshot().device.cached;
    assert_eq!(cached, 0, "a nameless block is not cached");
}

#[test]
fn the_table_is_told_when_it_changes() {
    let mut scene = Scene::new(4, 0);
    scene.running(1, 1, 1);
    let told = |scene: &mut Scene, tokens| match only(&scene.ask(vec![grow(1, tokens, 0)], vec![]))
    {
        GrantOutcome::Run { table, .. } => table.map(|table| table.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&mut scene, 5), Some(2));
    assert_eq!(told(&mut scene, 8), None);
    assert_eq!(told(&mut scene, 9), Some(3));
}

#[test]
fn a_copy_out_waits_for_the_last_step_that_names_its_source() {
    let mut scene = Scene::new(4, 4);
    scene.running(1, 1, 2);
    scene.ask(vec![grow(1, 9, 0)], vec![]);
    let last = StepId(scene.step);
    scene.store.reserve(&StepRequest {
        step: StepId(last.0 + 1),
        completed_step: StepId(last.0 - 1),
        wants: vec![room(4, 1)],
        victims: vec![victim(1, true)],
        ..StepRequest::default()
    });
    assert!(scene.store.take_copies().is_empty());
    scene.store.completed(last);
    let batches = scene.store.take_copies();
    assert_eq!((batches.len(), batches[0].direction), (1, CopyDirection::Out));
    assert_eq!(batches[0].pairs.len(), 2, "the partial tail is not copied");
}

#[test]
fn a_copy_in_waits_for_the_last_step_that_named_its_destination() {
    let mut scene = Scene::new(4, 4);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    scene.swap_out(1);
    scene.flush_device();
    scene.running(2, 2, 3);
    scene.ask(vec![grow(2, 16, 0)], vec![]);
    let last = StepId(scene.step);
    scene.store.release(SeqId(2));
    let wants = vec![open(1, 13, &text, 0)];
    let (step, completed_step) = (StepId(last.0 + 1), StepId(last.0 - 1));
    let request = StepRequest { step, completed_step, wants, ..StepRequest::default() };
    let grant = scene.store.reserve(&request);
    assert!(matches!(only(&grant), GrantOutcome::Copying { blocks: 3 }), "{grant:?}");
    assert!(scene.store.take_copies().is_empty());
    scene.step = last.0 + 1;
    assert_eq!(scene.take().len(), 1);
}

#[test]
fn swapped_out_and_in_again() {
    let mut scene = Scene::new(4, 4);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    assert_eq!(scene.swap_out(1), PreemptOutcome::Copying { blocks: 3, retained: 0 });
    assert_eq!(scene.store.snapshot().pinned, 3);
    scene.flush_device();
    let grant = scene.ask(vec![open(1, 13, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Copying { blocks: 3 }));
    let events = scene.finish_copies(true);
    let resumed = StoreEvent::Resumed { ticket: ticket(1, 0), computed: 12, copied: 3, failed: 0 };
    assert_eq!(events, [resumed]);
    assert_eq!(scene.store.snapshot().pinned, 0);
    assert_eq!(scene.store.snapshot().host.cached, 3);
    let grant = scene.ask(vec![grow(1, 13, 0)], vec![]);
    let GrantOutcome::Run { computed: 12, table: Some(table), .. } = only(&grant) else {
        panic!("{grant:?}");
    };
    assert_eq!(table.len(), 4);
    // All full blocks are still on the host, so the next preemption frees the whole table at once, without copies.
    assert_eq!(scene.swap_out(1), PreemptOutcome::Freed { blocks: 4, on_host: 3, retained: 0 });
}

#[test]
fn pins_of_others_leave_less_room_and_the_rest_is_recomputed() {
    let mut scene = Scene::new(8, 3);
    let text = names(2, 3);
    scene.running(1, 1, 2);
    scene.running_on(2, &text, 0);
    scene.swap_out(1);
    assert_eq!(scene.swap_out(2), PreemptOutcome::Copying { blocks: 1, retained: 0 });
    scene.flush_device();
    let grant = scene.ask(vec![open(2, 13, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Copying { blocks: 1 }));
    // With no room left in the host pool, a swap copies nothing and is a recompute.
    scene.running(3, 3, 2);
    scene.running(4, 4, 2);
    assert_eq!(scene.swap_out(3), PreemptOutcome::Freed { blocks: 2, on_host: 0, retained: 0 });
}

#[test]
fn a_failed_copy_out_keeps_what_is_before_it() {
    let mut scene = Scene::bounded(4, 4, 64, 1);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    scene.make_room(4, vec![victim(1, true)]);
    let batches = scene.take();
    assert_eq!(batches.len(), 3);
    let events: Vec<_> = [true, false, true]
        .iter()
        .zip(&batches)
        .flat_map(|(ok, batch)| scene.store.copy_done(batch.id, *ok))
        .collect();
    let copied =
        StoreEvent::PreemptCopied { ticket: ticket(1, 1), copied: 2, failed: 1, on_host: 1 };
    assert_eq!(events, [copied]);
    assert!(scene.store.commit_preempt(ticket(1, 1)));
    assert_eq!(scene.store.snapshot().pinned, 1);
    scene.flush_device();
    let grant = scene.ask(vec![open(1, 13, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Copying { blocks: 1 }));
}

#[test]
fn a_failed_copy_in_shortens_the_prefix() {
    let mut scene = Scene::bounded(4, 4, 64, 1);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    scene.swap_out(1);
    scene.flush_device();
    scene.ask(vec![open(1, 13, &text, 0)], vec![]);
    let batches = scene.take();
    let events: Vec<_> = [true, false, true]
        .iter()
        .zip(&batches)
        .flat_map(|(ok, batch)| scene.store.copy_done(batch.id, *ok))
        .collect();
    let resumed = StoreEvent::Resumed { ticket: ticket(1, 0), computed: 4, copied: 2, failed: 1 };
    assert_eq!(events, [resumed]);
    scene.store.check().unwrap();
    assert_eq!(scene.store.snapshot().tables, [(SeqId(1), 1)]);
    // Recompute the block whose copy failed and the one after it: they get their names again, and another sequence can
    // find them.
    scene.ask(vec![grow(1, 13, 0)], vec![]);
    let progress = vec![scene.progress(1, 12, &text[1..])];
    scene.request(StepRequest { progress, ..StepRequest::default() });
    let grant = scene.ask(vec![open(2, 13, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Denied { .. }), "full, but not lost: {grant:?}");
    scene.store.release(SeqId(1));
    let grant = scene.ask(vec![open(2, 13, &text, 0)], vec![]);
    assert!(matches!(only(&grant), GrantOutcome::Run { computed: 12, .. }), "{grant:?}");
}

#[test]
fn an_abort_restores_the_sequence_and_cancels_what_had_not_started() {
    let mut scene = Scene::bounded(4, 4, 1, 1);
    let table = scene.running(1, 1, 3);
    scene.make_room(4, vec![victim(1, true)]);
    let batches = scene.take();
    assert!(scene.store.abort_preempt(ticket(1, 1)));
    assert!(!scene.store.abort_preempt(ticket(1, 1)) && !scene.store.commit_preempt(ticket(1, 1)));
    let now = scene.store.snapshot();
    assert_eq!((now.copying, now.queued, now.pinned), (1, 0, 0));
    // The sequence runs on while the copy that had started ends; the copied block stays cached on the host.
    assert_eq!(covers(&scene.ask(vec![grow(1, 13, 0)], vec![])), [Some(13)]);
    assert!(scene.store.copy_done(batches[0].id, true).is_empty());
    let now = scene.store.snapshot();
    assert_eq!((now.host.cached, now.host.free), (1, 4));
    assert_eq!(now.tables, [(SeqId(1), table.len() as u32 + 1)]);
}

#[test]
fn cancelling_during_copies_frees_blocks_as_they_end() {
    let mut scene = Scene::bounded(4, 4, 2, 1);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    scene.make_room(4, vec![victim(1, true)]);
    let batches = scene.take();
    scene.store.release(SeqId(1));
    let now = scene.store.snapshot().device;
    assert_eq!((now.free, now.in_transit), (2, 2));
    for batch in batches {
        assert!(scene.store.copy_done(batch.id, true).is_empty());
    }
    let now = scene.store.snapshot();
    assert_eq!((now.device.free, now.host.free, now.host.cached), (4, 4, 2));
}

#[test]
fn one_copy_serves_all_who_want_the_content() {
    let mut scene = Scene::new(8, 8);
    let text = names(1, 3);
    scene.running_on(1, &text, 0);
    scene.ask(vec![open(2, 13, &text, 0)], vec![]);
    let copying = PreemptOutcome::Copying { blocks: 3, retained: 0 };
    assert_eq!(scene.make_room(8, vec![victim(1, true), victim(2, true)]), [copying; 2]);
    let copied: usize = scene.take().iter().map(|batch| batch.pairs.len()).sum();
    assert_eq!(copied, 3);
    for seq in [1, 2] {
        assert!(scene.store.commit_preempt(ticket(seq, 1)));
    }
    scene.store.copy_done(tiercel_device::CopyId(1), true);
    scene.flush_device();
    // Open both sequences: one copy of each block to the device must serve both.
    let grant = scene.ask(vec![open(1, 13, &text, 0), open(2, 13, &text, 0)], vec![]);
    assert_eq!(grant.free_blocks, 5);
    let events = scene.finish_copies(true);
    assert_eq!(events.len(), 2);
    assert_eq!(scene.store.snapshot().device.used, 3);
}

#[test]
fn copies_are_bounded_and_the_directions_take_turns() {
    let mut scene = Scene::bounded(16, 16, 4, 2);
    let text = names(1, 4);
    scene.running_on(1, &text, 0);
    scene.swap_out(1);
    scene.flush_device();
    scene.running(2, 2, 4);
    scene.ask(vec![open(1, 17, &text, 0)], vec![]);
    scene.make_room(12, vec![victim(2, true)]);
    let batches = scene.take();
    let ways: Vec<_> = batches.iter().map(|batch| (batch.direction, batch.pairs.len())).collect();
    assert!(ways.contains(&(CopyDirection::In, 2)) && ways.contains(&(CopyDirection::Out, 2)));
    assert_eq!((ways.len(), scene.store.snapshot().queued), (2, 4));
    assert!(scene.take().is_empty(), "no room in transit");
}

#[test]
fn blocks_copied_ahead_of_need_are_dropped_at_once() {
    let mut scene = Scene::new(4, 8);
    scene.running(1, 1, 3);
    let ahead = |scene: &mut Scene, most| {
        scene.request(StepRequest {
            victims: vec![victim(1, true)],
            mirror: most,
            ..Default::default()
        })
    };
    assert!(ahead(&mut scene, 2).preempted.is_empty());
    let copies = scene.store.take_copies();
    let copied: usize = copies.iter().map(|batch| batch.pairs.len()).sum();
    assert_eq!(copied, 2, "no more than allowed");
    for batch in &copies {
        assert_eq!(batch.direction, CopyDirection::Out);
        scene.store.copy_done(batch.id, true);
    }
    ahead(&mut scene, 9);
    let copies = scene.store.take_copies();
    assert_eq!(copies.iter().map(|batch| batch.pairs.len()).sum::<usize>(), 1, "none twice");
    let outcomes = scene.make_room(4, vec![victim(1, true)]);
    let copying = PreemptOutcome::Copying { blocks: 1, retained: 0 };
    assert_eq!(outcomes, [copying], "for the copy under way");
    let events = scene.store.copy_done(copies[0].id, true);
    assert!(matches!(events[..], [StoreEvent::PreemptCopied { failed: 0, .. }]), "{events:?}");
    scene.store.check().unwrap();
}

#[test]
fn copies_ahead_of_need_go_one_batch_at_a_time_and_yield_to_those_that_somebody_waits_for() {
    let mut scene = Scene::bounded(12, 12, 4, 2);
    scene.running(1, 1, 6);
    scene.running(2, 2, 2);
    let ahead = StepRequest { victims: vec![victim(1, true)], mirror: 6, ..Default::default() };
    scene.request(ahead);
    let first = scene.store.take_copies();
    let blocks = |batches: &[CopyBatch]| batches.iter().map(|b| b.pairs.len()).collect::<Vec<_>>();
    assert_eq!(blocks(&first), [2], "although four have room in transit");
    scene.make_room(6, vec![victim(2, true)]);
    let needed = scene.store.take_copies();
    assert_eq!(blocks(&needed), [2]);
    scene.store.copy_done(first[0].id, true);
    assert!(scene.store.take_copies().is_empty(), "somebody waits");
    scene.store.copy_done(needed[0].id, true);
    let second = scene.store.take_copies();
    assert_eq!(blocks(&second), [2]);
    // Preempt sequence 1 while two of its mirroring copies (made ahead of need) are left: they must start at once,
    // because the sequence now waits for them.
    scene.make_room(12, vec![victim(1, true)]);
    assert_eq!(blocks(&scene.store.take_copies()), [2]);
    scene.store.check().unwrap();
}

#[test]
fn blocks_that_wait_for_a_copy_ahead_of_need_are_there_for_whoever_lacks_some() {
    let mut scene = Scene::bounded(8, 8, 4, 2);
    scene.running(1, 1, 4);
    scene.running(2, 2, 3);
    let ahead = StepRequest { victims: vec![victim(1, true)], mirror: 4, ..Default::default() };
    scene.request(ahead);
    // Sequence 2 waits for copies, so the mirroring copies of sequence 1 (made ahead of need) do not start. When
    // sequence 1 ends, its blocks must be available to others.
    scene.make_room(4, vec![victim(2, true)]);
    let needed = scene.store.take_copies();
    assert_eq!(needed.iter().map(|batch| batch.pairs.len()).sum::<usize>(), 3);
    scene.store.release(SeqId(1));
    let text = names(3, 4);
    let grant = scene.ask(vec![open(3, 17, &text, 0)], vec![]);
    assert!(matches!(grant.grants[0].outcome, GrantOutcome::Run { .. }), "{grant:?}");
    scene.store.check().unwrap();
}

#[test]
fn a_sequence_that_lacks_blocks_does_not_keep_others_from_being_copied_ahead() {
    let mut scene = Scene::bounded(6, 8, 4, 2);
    scene.running(1, 1, 4);
    let text = names(3, 4);
    let ahead = || StepRequest {
        victims: vec![victim(1, true)],
        // The request for blocks may not preempt any victim.
        wants: vec![Want { max_victims: 0, ..open(3, 17, &text, 0) }],
        mirror: 4,
        ..Default::default()
    };
    scene.request(ahead());
    let grant = scene.request(ahead());
    assert!(matches!(grant.grants[0].outcome, GrantOutcome::Denied { .. }), "{grant:?}");
    assert_eq!(scene.store.snapshot().queued, 4, "they free nothing");
    assert_eq!(scene.store.take_copies()[0].pairs.len(), 2);
    scene.store.check().unwrap();
}

#[test]
fn nothing_is_copied_ahead_while_somebody_waits_for_copies_or_without_a_host_tier() {
    let mut scene = Scene::new(8, 8);
    scene.running(1, 1, 2);
    scene.running(2, 2, 2);
    scene.make_room(6, vec![victim(1, true)]);
    let ahead = StepRequest { victims: vec![victim(2, true)], mirror: 9, ..Default::default() };
    scene.request(ahead.clone());
    let copies = scene.store.take_copies();
    assert_eq!(copies.iter().map(|batch| batch.pairs.len()).sum::<usize>(), 2);
    let mut scene = Scene::new(8, 0);
    scene.running(2, 2, 2);
    scene.request(ahead);
    assert!(scene.store.take_copies().is_empty());
}
