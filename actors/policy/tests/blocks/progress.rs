//! Tests of progress reports, and of the number of free blocks.

use crate::scene::{Scene, grow, names, only, open};
use tiercel_device::SeqId;
use tiercel_policy::blocks::BlockHash;
use tiercel_policy::{GrantOutcome, StepRequest};

impl Scene {
    /// Reports that sequence 1 has `computed` valid tokens, and that its last full blocks have the names `hashes`.
    fn report(&mut self, computed: u32, hashes: &[BlockHash]) {
        let progress = vec![self.progress(1, computed, hashes)];
        self.request(StepRequest { progress, ..StepRequest::default() });
    }

    /// Returns how many valid tokens of sequence 1 the store knows of.
    fn valid(&mut self) -> u32 {
        match only(&self.ask(vec![grow(1, 12, 0)], vec![])) {
            GrantOutcome::Run { computed, .. } => computed,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn free_blocks_of_both_pools_are_told_apart() {
    let mut scene = Scene::new(6, 3);
    scene.running(1, 1, 2);
    assert_eq!(scene.store.free_blocks(), (4, 3));
}

#[test]
fn a_report_beyond_the_table_is_ignored() {
    let mut scene = Scene::new(6, 0);
    scene.running(1, 1, 2);
    scene.report(12, &names(1, 3)[2..]);
    assert_eq!(scene.valid(), 8);
}

#[test]
fn a_report_may_repeat_names_that_the_store_knows() {
    let mut scene = Scene::new(6, 0);
    let text = names(1, 3);
    scene.ask(vec![open(1, 12, &[], 0)], vec![]);
    scene.report(4, &text[..1]);
    scene.report(12, &text);
    // A report that was overtaken by a later one changes nothing.
    scene.report(4, &text[..1]);
    assert_eq!(scene.valid(), 12);
    scene.store.release(SeqId(1));
    assert_eq!(scene.store.snapshot().device.cached, 3, "all three blocks have their names");
}
