//! Tests of the reports on the scheduler's state.

use super::*;
use crate::scheduler::tests::{NOW, grant_all, scheduler, sequence};
use tiercel_config::SheddingForm;
use tiercel_device::Tier;

/// Adds a sequence in the phase `phase`; `was_open` says whether the sequence ever had KV blocks.
fn add(s: &mut State, id: u64, tier: Tier, (phase, was_open): (Phase, bool)) {
    s.enqueue(sequence(id, tier, 8));
    let changed = s.queue.table.change(SeqId(id), |sequence| {
        sequence.phase = phase;
        sequence.kv.cached_tokens = was_open.then_some(0);
    });
    assert_eq!(changed, Some(()));
}

#[test]
fn the_census_counts_as_waiting_whoever_never_had_blocks() {
    let mut s = scheduler(|_| ());
    let phases = [
        (Tier::Premium, (Phase::Waiting, false), 3),
        (Tier::Standard, (Phase::Waiting, false), 1),
        (Tier::Background, (Phase::Waiting, true), 4),
        (Tier::Premium, (Phase::Running, true), 2),
        (Tier::Standard, (Phase::Opening, false), 2),
        (Tier::Standard, (Phase::Opening, true), 1),
        (Tier::Standard, (Phase::Preempting, true), 2),
    ];
    let mut id = 0;
    for (tier, phase, count) in phases {
        for _ in 0..count {
            id += 1;
            add(&mut s, id, tier, phase);
        }
    }
    // Standard: one waits, and two get their first blocks. Preempted: four wait, one gets its blocks back, and the
    // blocks of two are being copied out.
    let expected = Census { waiting: [0, 3, 1 + 2, 0], running: 2, preempted: 4 + 1 + 2 };
    assert_eq!(s.census(), expected);
}

#[test]
fn the_load_is_the_greater_of_used_slots_and_used_blocks_while_anybody_runs() {
    let mut s = scheduler(|e| e.shedding.form = SheddingForm::Share);
    s.memory.free_blocks = 25;
    assert_eq!(s.share_report().load, 0.0, "nobody runs");
    add(&mut s, 1, Tier::Premium, (Phase::Running, true));
    add(&mut s, 2, Tier::Standard, (Phase::Running, true));
    // 75 of 100 blocks and two of eight slots are in use.
    assert_eq!(s.share_report().load, 0.75);
    s.memory.free_blocks = 90;
    assert_eq!(s.share_report().load, 0.25);
    s.usage.add([0.0, 30.0, 10.0, 0.0], NOW);
    let report = s.share_report();
    assert_eq!(report.had, [0.0, 0.75, 0.25, 0.0]);
    assert_eq!(report.due, [0.0, 0.5, 0.35, 0.15]);
}

#[test]
fn the_scheduler_is_drained_when_the_last_end_was_reported() {
    let mut s = scheduler(|_| ());
    assert!(s.is_drained());
    s.enqueue(sequence(1, Tier::Standard, 8));
    assert!(!s.is_drained(), "a sequence is live");
    s.cancel(SeqId(1)).expect("it lives");
    assert!(!s.is_drained(), "the block store must hear of its end");
    let request = s.plan(NOW).expect("a release");
    assert!(!s.is_drained(), "the block store has yet to answer");
    s.granted(grant_all(&request));
    assert!(s.is_drained());
}

#[test]
fn the_largest_number_of_sequences_in_a_step_is_the_setting() {
    assert_eq!(scheduler(|e| e.scheduler.max_num_seqs = 5).max_num_seqs(), 5);
}
