//! Tests of the reports on the scheduler's state.

use super::*;
use crate::scheduler::tests::{NOW, grant_all, scheduler, sequence};
use tiercel_config::{Reservation, SheddingForm, SloSettings, Target};
use tiercel_device::Tier;

/// Adds a sequence in the phase `phase`; `has_started` says whether the sequence ever had KV blocks.
fn add(s: &mut State, id: u64, tier: Tier, (phase, has_started): (Phase, bool)) {
    s.enqueue(sequence(id, tier, 8));
    let changed = s.queue.table.change(SeqId(id), |sequence| {
        sequence.phase = phase;
        sequence.kv.cached_tokens = has_started.then_some(0);
    });
    assert_eq!(changed, Some(()));
}

#[test]
fn the_census_counts_sequences_that_never_had_blocks_as_waiting() {
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
fn the_load_is_the_greater_of_used_slots_and_used_blocks_while_sequences_run() {
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

#[test]
fn changed_targets_hold_for_later_arrivals_and_for_requests_that_enter_another_tier() {
    let mut settings = EngineSettings::default();
    let mut s = scheduler(|e| settings = e.clone());
    for id in [1, 2, 3] {
        s.enqueue(sequence(id, Tier::Standard, 8));
    }
    assert_eq!(s.adjust(&settings), None, "the same targets");
    let before = s.targets();
    settings.slo.standard.ttft_ms = Target::Ms(900.0);
    settings.slo.premium.e2e_ms = Target::None;
    let change = s.adjust(&settings).expect("other targets");
    assert_eq!((change.before, change.targets, change.by_operator), (before, s.targets(), true));
    assert_eq!(change.targets.standard.ttft_ms, Some(900.0));
    let ttft = |s: &State, id| s.promise(SeqId(id)).expect("it lives").targets.ttft_ms;
    s.enqueue(sequence(4, Tier::Standard, 8));
    assert!(s.reprioritize(SeqId(2), Tier::Standard, 1));
    assert_eq!([1, 2, 4].map(|id| ttft(&s, id)), [Some(500.0), Some(500.0), Some(900.0)]);
    assert!(s.reprioritize(SeqId(3), Tier::Premium, 0));
    let moved = s.promise(SeqId(3)).expect("it lives").targets;
    assert_eq!((moved.ttft_ms, moved.e2e_ms), (Some(200.0), None));
    assert!(s.reprioritize(SeqId(3), Tier::Standard, 0));
    assert_eq!(ttft(&s, 3), Some(900.0));
}

#[test]
fn a_changed_target_leaves_auto_at_the_speed_from_which_it_was_derived_last() {
    let mut s = scheduler(|_| ());
    let mut work = crate::scheduler::StepWork::default();
    work.add_decode(100);
    let mut settings = EngineSettings::default();
    let tpot = |change: Option<Retargeted>| {
        change.expect("other targets").targets.premium.tpot_ms.expect("auto is a target")
    };
    let at_first = tpot(s.adjust(&settings));
    let slower_us = 2.0 * s.basis.cost.step_us(&work);
    let slow_steps = |s: &mut State, number| {
        (0..number).for_each(|_| s.learn_step_time(&work, slower_us as u64));
    };
    slow_steps(&mut s, 200);
    settings.slo.background.ttft_ms = Target::Ms(700.0);
    assert_eq!(tpot(s.adjust(&settings)), at_first, "too few slow steps to derive it again");
    slow_steps(&mut s, (31e6 / slower_us) as u32);
    assert!(s.derive_targets_anew().is_some());
    s.enqueue(sequence(1, Tier::Standard, 8));
    settings.slo.standard.ttft_ms = Target::Ms(1.0e-3);
    let change = s.adjust(&settings).expect("other targets");
    let [unreachable] = &change.unreachable[..] else { panic!("{change:?}") };
    assert_eq!(unreachable.setting, "slo.standard.ttft_ms");
    let ratio = tpot(Some(change)) / at_first;
    assert!((1.9..2.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_request_that_may_tighten_states_its_own_targets_whatever_the_setting_says() {
    let promised = |setting, right| {
        let mut s = scheduler(|e| e.slo.requests_may_tighten = setting);
        let targets = tiercel_config::SloTargets { ttft_ms: Some(5.0), ..Default::default() };
        let asked = sequence(1, Tier::Standard, 8);
        s.enqueue(crate::scheduler::NewSequence { targets, may_tighten: right, ..asked });
        s.promise(SeqId(1)).expect("it lives").targets.ttft_ms
    };
    let (tight, of_tier) = (Some(5.0), Some(500.0));
    let rights = [None, Some(true), Some(false)];
    assert_eq!(rights.map(|right| promised(false, right)), [of_tier, tight, of_tier]);
    assert_eq!(rights.map(|right| promised(true, right)), [tight, tight, of_tier]);
}

#[test]
fn changed_reservations_and_assurance_hold_from_the_next_plan() {
    let mut s = scheduler(|_| ());
    let mut settings = EngineSettings { slo: SloSettings::default(), ..EngineSettings::default() };
    settings.reservation.kind = Reservation::Hard;
    settings.reservation.premium_blocks_percent = 50.0;
    settings.slo.premium.assurance = Some(0.9);
    let saving = s.reserve.saving_max();
    s.adjust(&settings);
    let blocks = s.basis.rules.limits.device_blocks;
    assert_eq!(s.memory.reservations.reserved_for_others(Tier::Standard), blocks / 2);
    assert!(!s.memory.reservations.lends());
    assert!(s.reserve.saving_max() < saving);
}
