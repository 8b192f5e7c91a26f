//! Randomized test of the block store: accounting, ownership and content of blocks are checked after every event.
#![allow(clippy::unwrap_used, reason = "tests")]

mod ahead;
mod content;
mod giving_way;
mod keeping;
mod map;
mod planning;
mod progress;
mod resume_cost;
mod scene;
mod two_tiers;
mod world;

use content::Draws;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use tiercel_device::{CopyId, Epoch, SeqId, Ticket};
use tiercel_policy::blocks::StoreConfig;
use world::{Phase, World};

/// An event of the random traffic; numbers are seeds of its details.
#[derive(Debug, Clone, Copy)]
enum Event {
    Arrive(u64),
    Plan(u64),
    CompleteStep { ok: bool },
    TakeCopies,
    EndCopy { ok: bool, which: u64 },
    Commit(u64),
    Abort(u64),
    Cancel(u64),
    StaleTickets(u64),
    GrowHost(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let seed = any::<u64>;
    prop_oneof![
        6 => seed().prop_map(Event::Arrive),
        10 => seed().prop_map(Event::Plan),
        10 => (0..100u8).prop_map(|p| Event::CompleteStep { ok: p >= 8 }),
        3 => Just(Event::TakeCopies),
        8 => (0..100u8, seed()).prop_map(|(p, which)| Event::EndCopy { ok: p >= 20, which }),
        6 => seed().prop_map(Event::Commit),
        1 => seed().prop_map(Event::Abort),
        1 => seed().prop_map(Event::Cancel),
        1 => seed().prop_map(Event::StaleTickets),
        1 => (1..4u32).prop_map(Event::GrowHost),
    ]
}

fn config() -> impl Strategy<Value = StoreConfig> {
    (1..4u32, 3..16u32, 0..24u32, 1..12u32, 1..4u32).prop_map(
        |(block_size, device_blocks, host_blocks, in_transit, batch)| StoreConfig {
            block_size,
            device_blocks,
            host_blocks,
            max_copy_blocks_in_transit: in_transit,
            max_copy_blocks_per_batch: batch,
        },
    )
}

fn apply(world: &mut World, event: Event) {
    match event {
        Event::Arrive(seed) => world.arrive(&mut Draws(seed)),
        Event::Plan(seed) => world.plan(&mut Draws(seed)),
        Event::CompleteStep { ok } => world.complete_step(ok),
        Event::TakeCopies => world.take_copies(),
        Event::EndCopy { ok, which } => {
            let ids: Vec<CopyId> = world.copies.keys().copied().collect();
            if let Some(id) = Draws(which).pick(&ids) {
                world.end_copy(id, ok);
            }
            world.take_copies();
        }
        Event::Commit(seed) => commit(world, seed),
        Event::Abort(seed) => {
            let preempting = phases(world, |phase| matches!(phase, Phase::Preempting { .. }));
            if let Some(id) = Draws(seed).pick(&preempting) {
                let seq = world.seqs.get_mut(&id).unwrap();
                assert!(world.store.abort_preempt(seq.ticket()));
                assert!(!world.store.abort_preempt(seq.ticket()), "once is enough");
                seq.phase = Phase::Running;
                world.count("aborted");
            }
        }
        Event::Cancel(seed) => {
            let mut draws = Draws(seed);
            let all: Vec<SeqId> = world.seqs.keys().copied().collect();
            if let Some(id) = draws.pick(&all) {
                world.cancel(id, draws.percent(50));
            }
        }
        Event::StaleTickets(seed) => stale_tickets(world, seed),
        Event::GrowHost(blocks) => {
            world.store.add_host_blocks(blocks);
            world.host.grow(blocks);
            world.count("host pool grown");
        }
    }
}

fn phases(world: &World, wanted: impl Fn(Phase) -> bool) -> Vec<SeqId> {
    world.seqs.values().filter(|seq| wanted(seq.phase)).map(|seq| seq.id).collect()
}

/// Commits a random prepared preemption, mostly after its copies have ended, sometimes before.
fn commit(world: &mut World, seed: u64) {
    let mut draws = Draws(seed);
    let early = draws.percent(15);
    let ready = phases(world, |phase| match phase {
        Phase::Preempting { copied } => copied || early,
        _ => false,
    });
    if let Some(id) = draws.pick(&ready) {
        let ticket = world.seqs[&id].ticket();
        assert!(world.store.commit_preempt(ticket));
        assert!(!world.store.commit_preempt(ticket), "once is enough");
        let copied = world.seqs[&id].phase == Phase::Preempting { copied: true };
        let retained = world.seqs[&id].retained;
        world.park(id, retained);
        world.count(if copied { "committed" } else { "committed early" });
    }
}

/// Checks that tickets of other epochs of a sequence, or of sequences that ended, change nothing in the store.
fn stale_tickets(world: &mut World, seed: u64) {
    let before = world.store.snapshot();
    let seq = SeqId(Draws(seed).below(world.next_seq + 2));
    if world.released.contains(&seq) {
        return;
    }
    let current = world.seqs.get(&seq).map(|seq| seq.epoch);
    for epoch in (0..4).filter(|epoch| current != Some(*epoch)) {
        let ticket = Ticket { seq, epoch: Epoch(epoch) };
        assert!(!world.store.commit_preempt(ticket));
        assert!(!world.store.abort_preempt(ticket));
    }
    if current.is_none() {
        world.store.release(seq);
    }
    assert!(world.store.copy_done(CopyId(u64::MAX), true).is_empty());
    assert_eq!(before, world.store.snapshot());
}

/// Checks what must hold after every event: the store's invariants, block counts, and the content of every table.
fn judge(world: &World) {
    world.store.check().unwrap();
    let now = world.store.snapshot();
    for tier in [now.device, now.host] {
        assert_eq!(tier.free + tier.used + tier.in_transit, tier.total);
        assert!(tier.cached <= tier.free);
    }
    let copying: usize = world.copies.values().map(|(batch, _)| batch.pairs.len()).sum();
    assert_eq!(now.copying as usize, copying);
    for seq in world.seqs.values().filter(|seq| !seq.table.is_empty()) {
        let valid = match seq.phase {
            Phase::Waiting => seq.table.len() as u32 * world.config.block_size,
            _ => seq.computed,
        };
        world.assert_prefix(seq.id, valid, &seq.table, "the table's");
        let held = now.tables.iter().find(|(id, _)| *id == seq.id).unwrap();
        assert_eq!(held.1 as usize, seq.table.len());
    }
    for seq in world.seqs.values().filter(|seq| seq.phase == Phase::Waiting) {
        let held = now.tables.iter().find(|(id, _)| *id == seq.id).map_or(0, |(_, blocks)| *blocks);
        assert_eq!(held, seq.retained, "blocks that {} retained", seq.id);
    }
}

/// Ends every sequence, step and copy, and checks that no block of either pool stays in use.
fn wind_down(world: &mut World) {
    for id in world.seqs.keys().copied().collect::<Vec<_>>() {
        world.cancel(id, true);
    }
    for id in std::mem::take(&mut world.released) {
        world.store.release(id);
    }
    while !world.in_flight.is_empty() {
        world.complete_step(true);
    }
    world.plan(&mut Draws(0));
    world.take_copies();
    while !world.copies.is_empty() {
        for id in world.copies.keys().copied().collect::<Vec<_>>() {
            world.end_copy(id, true);
        }
        // Start copies made ahead of need (mirroring), which had no room in transit before.
        world.take_copies();
    }
    let end = world.store.snapshot();
    world.store.check().unwrap();
    assert_eq!((end.device.free, end.host.free), (end.device.total, end.host.total));
    assert_eq!((end.copying, end.queued, end.pinned), (0, 0, 0));
    assert!(end.tables.is_empty() && world.copies.is_empty());
}

#[test]
fn accounting_ownership_and_content_are_never_wrong() {
    let mut runner =
        TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    let seen = RefCell::new(BTreeMap::new());
    let traffic = (config(), prop::collection::vec(event(), 100..180));
    let outcome = runner.run(&traffic, |(config, events)| {
        let mut world = World::new(config);
        for event in events {
            apply(&mut world, event);
            judge(&world);
        }
        wind_down(&mut world);
        for (what, count) in world.seen {
            *seen.borrow_mut().entry(what).or_insert(0) += count;
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let seen = seen.into_inner();
    assert_eq!(seen.len(), 24, "the traffic misses something: {seen:#?}");
    println!("{seen:#?}");
}
