//! Tests of the default victim rule: of a group of victims, those that cost the least to resume go first.
//!
//! With the costs of these tests, computing the block at depth `d` of a sequence again takes 90 + 10 d us.

use crate::scene::{Scene, grow, names, preempted, room, victim};
use tiercel_policy::{Release, ResumeCosts, StepRequest, Victim};

/// Blocks that victims must give in each test.
const SHORTAGE: u32 = 2;

impl Scene {
    /// Asks for `SHORTAGE` blocks more than are free, and returns the sequences that are preempted for them. Copying
    /// one block in one direction takes `copy_us`.
    fn cheapest(&mut self, victims: &[Victim], release: Release, copy_us: f64) -> Vec<u64> {
        let wanted = self.store.snapshot().device.free + SHORTAGE;
        preempted(&self.request(StepRequest {
            wants: vec![room(wanted, victims.len() as u32)],
            victims: victims.to_vec(),
            victims_by_cost: true,
            costs: ResumeCosts { copy_us, first_block_us: 90.0, block_before_us: 10.0 },
            release,
            ..StepRequest::default()
        }))
    }
}

/// Returns the sequences that are preempted of a scene with the victims in the given order, and in the reverse order.
fn both_orders(
    scene: impl Fn() -> Scene,
    victims: [Victim; 2],
    release: Release,
    copy_us: f64,
) -> [Vec<u64>; 2] {
    let [a, b] = victims;
    [[a, b], [b, a]].map(|victims| scene().cheapest(&victims, release, copy_us))
}

/// Returns a scene in which sequences 2 and 3 hold so many full blocks, and share none.
fn apart(blocks: [u8; 2]) -> Scene {
    let mut scene = Scene::new(12, 12);
    scene.running(2, 2, blocks[0]);
    scene.running(3, 3, blocks[1]);
    scene
}

#[test]
fn the_victim_that_is_computed_again_the_soonest_goes_first() {
    // Six blocks take 690 us, and two blocks 190 us.
    let victims = [victim(2, false), victim(3, false)];
    let chosen = both_orders(|| apart([6, 2]), victims, Release::All, 0.0);
    assert_eq!(chosen, [[3], [3]]);
    let chosen = both_orders(|| apart([2, 6]), victims, Release::All, 0.0);
    assert_eq!(chosen, [[2], [2]]);
}

#[test]
fn a_swapped_victim_costs_a_copy_out_and_a_copy_in() {
    // Sequence 2 is swapped: each block costs one copy out and one copy in, of `copy_us` each. Recomputing sequence 3
    // costs 95 us per block.
    let victims = [victim(2, true), victim(3, false)];
    let chosen = |copy_us| both_orders(|| apart([2, 2]), victims, Release::All, copy_us);
    assert_eq!(chosen(47.0), [[2], [2]]);
    assert_eq!(chosen(48.0), [[3], [3]]);
    assert_eq!(chosen(47.5), [[2], [3]], "at equal cost the first in the list goes");
}

#[test]
fn blocks_that_the_host_pool_has_cost_only_the_copy_in() {
    let mirrored = || {
        let mut scene = apart([2, 2]);
        let ahead = StepRequest { victims: vec![victim(3, true)], mirror: 2, ..Default::default() };
        scene.request(ahead);
        scene.finish_copies(true);
        scene
    };
    let victims = [victim(2, true), victim(3, true)];
    assert_eq!(both_orders(mirrored, victims, Release::All, 40.0), [[3], [3]]);
    // Computing sequence 2 again takes 95 us for each block, and copying sequence 3 in takes 94 or 96 us.
    let victims = [victim(2, false), victim(3, true)];
    assert_eq!(both_orders(mirrored, victims, Release::All, 94.0), [[3], [3]]);
    assert_eq!(both_orders(mirrored, victims, Release::All, 96.0), [[2], [2]]);
}

#[test]
fn a_block_that_is_not_full_is_computed_again_even_after_a_swap() {
    // The second block of sequence 2 holds one token. It is not copied out, and computing it again takes 100 us.
    let partial = || {
        let mut scene = apart([1, 2]);
        scene.ask(vec![grow(2, 5, 0)], vec![]);
        scene
    };
    let victims = [victim(2, true), victim(3, true)];
    assert_eq!(both_orders(partial, victims, Release::All, 49.0), [[3], [3]]);
    assert_eq!(both_orders(partial, victims, Release::All, 51.0), [[2], [2]]);
}

/// Returns a scene in which sequence 3 shares its first four blocks with sequence 1 and holds `own` blocks besides.
/// Sequence 2 holds `blocks` blocks alone.
fn sharing(own: u8, blocks: u8) -> Scene {
    let mut scene = Scene::new(14, 0);
    let shared = names(1, 4);
    scene.running_on(1, &shared, 0);
    scene.running_on(3, &[&shared[..], &names(3, 4 + own)[4..]].concat(), 4);
    scene.running(2, 2, blocks);
    scene
}

#[test]
fn only_blocks_that_come_free_and_are_needed_count() {
    // Preempting sequence 3 frees two blocks that take 270 us to recompute. Sequence 2 would free three blocks for 300
    // us, but only two are needed, so sequence 3 costs less per needed block.
    let victims = [victim(2, false), victim(3, false)];
    assert_eq!(both_orders(|| sharing(2, 3), victims, Release::All, 0.0), [[3], [3]]);
    // One block for 90 us is cheaper than sequence 3, but not enough, so both go; the cheaper one first.
    assert_eq!(both_orders(|| sharing(2, 1), victims, Release::All, 0.0), [[2, 3], [2, 3]]);
}

#[test]
fn victims_are_compared_by_the_cost_of_each_block() {
    // Sequence 3 gives one block for 130 us, and sequence 2 two blocks for 95 us each.
    let victims = [victim(2, false), victim(3, false)];
    assert_eq!(both_orders(|| sharing(1, 2), victims, Release::All, 0.0), [[2], [2]]);
}

#[test]
fn blocks_that_a_victim_retains_cost_nothing() {
    // A swap takes 80 us for each block. Computing the two blocks of sequence 3 again takes 95 us for each.
    let victims = [victim(2, true), victim(3, false)];
    let chosen = |release| both_orders(|| apart([6, 2]), victims, release, 40.0);
    assert_eq!(chosen(Release::All), [[3], [3]], "480 us for the two blocks that are needed");
    assert_eq!(chosen(Release::Needed { unit: 1 }), [[2], [2]], "160 us for them");
    // A victim gives up the tail of its block table, and recomputing a block takes longer the deeper the block is. So
    // the shorter sequence 3 is the cheaper victim.
    let victims = [victim(2, false), victim(3, false)];
    let chosen = both_orders(|| apart([6, 2]), victims, Release::Needed { unit: 1 }, 40.0);
    assert_eq!(chosen, [[3], [3]]);
}

#[test]
fn a_cheap_victim_of_a_later_group_waits_for_its_turn() {
    let dear = victim(2, false);
    let cheap = Victim { group: 1, ..victim(3, false) };
    assert_eq!(apart([6, 2]).cheapest(&[dear, cheap], Release::All, 0.0), [2]);
    // The groups of victims need not come in ascending order of their group numbers.
    let dear = Victim { group: 2, ..dear };
    assert_eq!(apart([6, 2]).cheapest(&[dear, cheap], Release::All, 0.0), [2]);
}
