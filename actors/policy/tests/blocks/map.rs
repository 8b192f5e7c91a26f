//! Tests of the map of the pools: each block counts once, under the highest tier of its owners.

use crate::scene::{Scene, names, victim};
use tiercel_device::{SeqId, Tier};
use tiercel_policy::StepRequest;
use tiercel_policy::blocks::{BlockMap, OwnedBlocks};

/// Returns the tier of the test sequences: 1 and 2 are premium, 3 and 4 background; others are unknown.
fn tier_of(seq: SeqId) -> Option<Tier> {
    match seq.0 {
        1 | 2 => Some(Tier::Premium),
        3 | 4 => Some(Tier::Background),
        _ => None,
    }
}

/// Returns the map of a store; checks that every block counts once.
fn map(scene: &Scene) -> BlockMap {
    let map = scene.store.map(tier_of);
    for pool in [&map.device, &map.host] {
        let owned = Tier::ALL.into_iter().map(|tier| pool.of(tier)).chain([pool.of_others()]);
        let owned: u32 = owned.map(|blocks| blocks.held + blocks.in_transit).sum();
        assert_eq!(owned + pool.free + pool.cached, pool.total, "{pool:?}");
    }
    map
}

fn held(blocks: u32) -> OwnedBlocks {
    OwnedBlocks { held: blocks, ..OwnedBlocks::default() }
}

#[test]
fn blocks_count_under_the_highest_tier_that_holds_them() {
    let mut scene = Scene::new(12, 0);
    scene.running(3, 1, 2);
    // Premium sequence 1 shares both blocks of background sequence 3 and has one more.
    scene.running_on(1, &names(1, 3), 2);
    scene.running(4, 4, 3);
    scene.running(7, 7, 2);
    let device = map(&scene).device;
    assert_eq!(device.of(Tier::Premium), held(3));
    assert_eq!(device.of(Tier::Background), held(3));
    assert_eq!(device.of_others(), held(2));
    assert_eq!((device.free, device.cached, device.total), (4, 0, 12));
    scene.store.release(SeqId(1));
    scene.store.release(SeqId(4));
    let device = map(&scene).device;
    assert_eq!(device.of(Tier::Background), held(2), "the shared blocks are its own again");
    assert_eq!((device.free, device.cached), (4, 4), "content of ended sequences stays");
}

#[test]
fn copies_are_in_transit_and_pins_are_held_on_the_host() {
    let mut scene = Scene::new(8, 8);
    scene.running(3, 1, 3);
    scene.make_room(8, vec![victim(3, true)]);
    let BlockMap { device, host } = map(&scene);
    let in_transit = OwnedBlocks { in_transit: 3, ..OwnedBlocks::default() };
    assert_eq!((device.of(Tier::Background), host.of(Tier::Background)), (in_transit, in_transit));
    scene.finish_copies(true);
    assert!(scene.store.commit_preempt(crate::scene::ticket(3, 1)));
    let BlockMap { device, host } = map(&scene);
    assert_eq!((device.of(Tier::Background), host.of(Tier::Background)), (held(0), held(3)));
    assert_eq!((device.free, device.cached, host.free), (5, 3, 5));
    scene.store.release(SeqId(3));
    assert_eq!((map(&scene).host.cached, map(&scene).host.free), (3, 5));
}

#[test]
fn mirrored_blocks_are_those_of_running_sequences_that_the_host_pool_has() {
    let mut scene = Scene::new(8, 2);
    scene.running(3, 1, 3);
    let mirror =
        StepRequest { victims: vec![victim(3, true)], mirror: 9, ..StepRequest::default() };
    scene.request(mirror);
    let BlockMap { device, host } = map(&scene);
    let copied = OwnedBlocks { held: 1, mirrored: 0, in_transit: 2 };
    assert_eq!(device.of(Tier::Background), copied);
    assert_eq!(host.of_others().in_transit, 2, "nobody owns the copies yet");
    scene.finish_copies(true);
    let BlockMap { device, host } = map(&scene);
    let mirrored = OwnedBlocks { held: 3, mirrored: 2, in_transit: 0 };
    assert_eq!(device.of(Tier::Background), mirrored);
    assert_eq!((host.total, host.free, host.cached), (2, 0, 2));
}
