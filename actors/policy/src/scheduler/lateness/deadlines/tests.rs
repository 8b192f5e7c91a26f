//! Tests of deadlines, and of which requests are late.

use super::*;
use crate::scheduler::NewSequence;
use crate::scheduler::budget::fixtures::{assert_near, cost, prompt as running, stream};
use crate::scheduler::sequence::Phase;
use crate::scheduler::state::State;
use crate::scheduler::tests::{NOW, grant_all, scheduler, sequence};
use proptest::prelude::*;
use tiercel_config::{EngineSettings, Policy};

fn waiting(id: u64, tenant: u8, until_deadline_us: f64, work_us: f64) -> Prompt {
    let (tenant, weight) = (Salt([tenant; 16]), Weight::default());
    Prompt { seq: SeqId(id), tenant, weight, until_deadline_us, work_us }
}

fn ids(late: &[SeqId]) -> Vec<u64> {
    late.iter().map(|seq| seq.0).collect()
}

#[test]
fn the_longest_prompt_is_given_up_for_the_others() {
    let prompts = [(1, 100.0, 50.0), (2, 200.0, 140.0), (3, 300.0, 90.0), (4, 400.0, 130.0)];
    let prompts = prompts.map(|(id, due, work)| waiting(id, 1, due, work));
    let (late_ones, work_us) = split_late(prompts.into_iter(), 0.0, 1.0);
    assert_eq!((ids(&late_ones), work_us), (vec![2], 270.0));
    // If prompts get only half of the device's time, only the two shortest prompts are in time.
    let (late_ones, _) = split_late(prompts.into_iter(), 0.0, 0.5);
    assert_eq!(ids(&late_ones), [2, 4]);
    let (late_ones, _) = split_late(prompts.into_iter(), 1_000.0, 1.0);
    assert_eq!(ids(&late_ones), [1, 2, 3, 4], "better tiers leave no time");
}

#[test]
fn the_tenant_that_asks_for_most_gives_up_first() {
    let modest = waiting(1, 1, 1000.0, 300.0);
    let greedy = (2..=9).map(|id| waiting(id, 2, 1000.0, 150.0));
    let (late_ones, _) = split_late(std::iter::once(modest).chain(greedy), 0.0, 1.0);
    assert_eq!(late_ones.len(), 4);
    assert!(!late_ones.contains(&SeqId(1)), "{late_ones:?}");
}

#[test]
fn background_alone_is_not_expected_to_sit_out_steps() {
    let time_for_output_us = |better_came| {
        let mut s = scheduler(|e| e.slo.background.e2e_ms = tiercel_config::Target::Ms(1_000.0));
        s.queue.arrivals.set(Tier::Premium, better_came);
        s.enqueue(sequence(1, Tier::Background, 20));
        let sequence = s.queue.table.get(SeqId(1)).expect("it waits");
        let deadline = sequence.service.deadline.expect("it has a target");
        1e6 - deadline.since_us(sequence.arrival) as f64
    };
    let [alone, beside_better] = [None, Some(Timestamp(0))].map(time_for_output_us);
    // Expected ratio: alone, a background stream gets a token in each step of 100 us; beside premium, in every
    // other step of about 420 us, full of prompts: 2 * 420 / 100.
    let ratio = beside_better / alone;
    assert!((8.0..8.5).contains(&ratio), "{ratio}");
}

proptest! {
    /// Property: no other choice of the prompts in time leaves fewer prompts late.
    #[test]
    fn as_few_are_late_as_can_be(
        mut drawn in proptest::collection::vec((1u32..100, 1u32..300), 1..10),
    ) {
        drawn.sort_by_key(|(_, due)| *due);
        let prompts: Vec<Prompt> = (1..).zip(&drawn)
            .map(|(id, (work, due))| waiting(id, 1, f64::from(*due), f64::from(*work)))
            .collect();
        let (late_ones, _) = split_late(prompts.iter().copied(), 0.0, 1.0);
        let in_time = |chosen: u32| {
            let mut sum_us = 0.0;
            (0..).zip(&prompts).filter(|(at, _)| chosen & (1 << at) != 0).all(|(_, prompt)| {
                sum_us += prompt.work_us;
                sum_us <= prompt.until_deadline_us
            })
        };
        let best = (0..1u32 << prompts.len()).filter(|chosen| in_time(*chosen));
        let best = best.map(u32::count_ones).max().unwrap_or(0) as usize;
        prop_assert_eq!(prompts.len() - late_ones.len(), best);
    }
}

trait Judge {
    fn judge(&mut self, now: Timestamp);
}

impl Judge for State {
    fn judge(&mut self, now: Timestamp) {
        self.deadlines.judge(&mut self.queue, &self.basis, now);
    }
}

fn late_of(s: &State, id: u64) -> bool {
    s.queue.table.get(SeqId(id)).expect("it waits").service.late
}

#[test]
fn a_late_request_goes_behind_requests_in_time_and_before_lower_tiers() {
    let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
    s.basis.targets.standard.ttft_ms = Some(5.0);
    s.enqueue(sequence(1, Tier::Standard, 900));
    s.enqueue(sequence(2, Tier::Background, 20));
    s.enqueue(sequence(3, Tier::Standard, 20));
    let _ = s.plan(Timestamp(0)).map(|request| s.granted(grant_all(&request)));
    assert!(late_of(&s, 1) && !late_of(&s, 3));
    let order: Vec<u64> = s.queue.table.active().map(|(_, sequence)| sequence.id.0).collect();
    let waiting = s.queue.table.queue().map(|(_, sequence)| sequence.id.0);
    let order: Vec<u64> = order.into_iter().chain(waiting).collect();
    assert_eq!(order, [3, 1, 2]);
}

#[test]
fn a_late_request_with_slack_is_in_time_again() {
    let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
    s.basis.targets.standard.ttft_ms = Some(12.0);
    for id in 1..=2 {
        s.enqueue(sequence(id, Tier::Standard, 900));
    }
    s.judge(Timestamp(0));
    assert!(late_of(&s, 1) != late_of(&s, 2));
    let other = if late_of(&s, 1) { 2 } else { 1 };
    s.cancel(SeqId(other));
    s.judge(Timestamp(0));
    assert!(!late_of(&s, 3 - other));
    s.judge(Timestamp(20_000));
    assert!(late_of(&s, 3 - other) && s.deadlines.entries.is_empty());
}

#[test]
fn the_demand_of_arriving_prompts_fades_with_the_time_constant_of_the_tier_that_asks() {
    let mut deadlines = Deadlines::default();
    deadlines.arrives(Tier::Premium, 300_000.0, Timestamp(0));
    deadlines.arrives(Tier::Standard, 600_000.0, Timestamp(3_000_000));
    let taken = |tiers: &[Tier], tier| deadlines.taken_by(tiers, tier, Timestamp(6_000_000));
    // Standard averages over 3 s: premium's prompt was 0.1 of that time, 2 time constants ago, and standard's 0.2, 1
    // time constant ago. Background averages over 60 s: 0.005 of 0.1, and 0.01 of 0.05 time constants ago.
    let (premium, both) = ([Tier::Premium], [Tier::Premium, Tier::Standard]);
    assert_near(taken(&premium, Tier::Standard), 0.1 * (-2.0_f64).exp());
    assert_near(taken(&both, Tier::Standard), 0.1 * (-2.0_f64).exp() + 0.2 * (-1.0_f64).exp());
    let background = 0.005 * (-0.1_f64).exp() + 0.01 * (-0.05_f64).exp();
    assert_near(taken(&both, Tier::Background), background);
    assert_eq!(taken(&[Tier::System], Tier::Standard), 0.0);
}

#[test]
fn the_tenant_that_has_most_after_each_prompt_given_up_gives_up_the_next() {
    let mut in_time = InTime::default();
    for (id, tenant, work_us) in [(1, 1, 100.0), (2, 1, 60.0), (3, 2, 120.0)] {
        in_time.take(waiting(id, tenant, 0.0, work_us));
    }
    // Tenant 1 has 160 us of work, gives up 100 us, and has less than tenant 2.
    let given_up: Vec<_> = std::iter::from_fn(|| in_time.give_up()).collect();
    assert_eq!(given_up, [(100, SeqId(1)), (120, SeqId(3)), (60, SeqId(2))]);
}

#[test]
fn a_tenant_of_twice_the_weight_may_have_twice_the_work_in_time() {
    let mut in_time = InTime::default();
    for (id, tenant, work_us) in [(1, 1, 100.0), (2, 1, 60.0), (3, 2, 120.0)] {
        let weight = Weight::new(if tenant == 1 { 2.0 } else { 1.0 });
        in_time.take(Prompt { weight, ..waiting(id, tenant, 0.0, work_us) });
    }
    // Half of the 160 us of tenant 1 count.
    let given_up: Vec<_> = std::iter::from_fn(|| in_time.give_up()).collect();
    assert_eq!(given_up, [(120, SeqId(3)), (100, SeqId(1)), (60, SeqId(2))]);
}

/// Returns a request with an E2E target of 100 ms that arrived at 5 us, and is expected to have 7 output tokens.
fn with_e2e_target(tpot_ms: Option<f64>) -> Sequence {
    let mut sequence = running(5, Tier::Background, 9, 0);
    sequence.phase = Phase::Waiting;
    sequence.service.targets.e2e_ms = Some(100.0);
    sequence.service.targets.tpot_ms = tpot_ms;
    sequence.service.predicted_tokens = 7.0;
    sequence
}

#[test]
fn a_first_token_is_due_early_enough_for_the_output_at_its_target_pace() {
    let s = scheduler(|_| ());
    let due = |sequence: &Sequence| {
        s.deadlines.deadline(sequence, (&s.queue, &s.basis), sequence.arrival)
    };
    // 100,000 us less 7 tokens of 2,000 us each, after the arrival at 5 us.
    assert_eq!(due(&with_e2e_target(Some(2.0))), Some(Timestamp(86_005)));
    assert_eq!(due(&with_e2e_target(Some(20.0))), Some(Timestamp(5)), "no time is left");
    let mut sequence = with_e2e_target(Some(2.0));
    sequence.service.targets.ttft_ms = Some(3.0);
    assert_eq!(due(&sequence), Some(Timestamp(3_005)));
    sequence.service.targets = tiercel_config::SloTargets::default();
    assert_eq!(due(&sequence), None);
}

#[test]
fn a_stream_without_a_target_pace_shares_steps_with_the_prompts_that_come() {
    let pace_us = |work_us| {
        let mut s = scheduler(|_| ());
        s.queue.table.insert(stream(1, Tier::Background, (9, 3), 0));
        s.deadlines.arrives(Tier::Background, work_us, Timestamp(9));
        s.deadlines.untargeted_pace_us(Tier::Background, (&s.queue, &s.basis), Timestamp(9))
    };
    // A step of one stream takes 101 us. Prompts take 18 s of a minute: 0.3 of the time; or, at most, 0.7.
    assert_near(pace_us(0.0), 101.0);
    assert_near(pace_us(18e6), 101.0 / 0.7);
    assert_near(pace_us(120e6), 101.0 / 0.3);
}

#[test]
fn the_work_of_a_prompt_is_that_of_the_tokens_that_are_expected_to_be_computed() {
    let mut s = scheduler(|_| ());
    s.basis.cost = cost();
    let work_us =
        |sequence: &Sequence| prompt(sequence, 1.0, (&s.basis, 0.5)).map(|found| found.work_us);
    // 12 tokens after 8 take 12 * 8 us, and 0.25 us for each of 12 * 8 + 66 pairs of tokens.
    let mut sequence = running(1, Tier::Standard, 20, 8);
    sequence.kv.cached_tokens = Some(8);
    assert_eq!(work_us(&sequence), Some(136.5));
    // 20 tokens take 20 * 8 us, and 0.25 us for each of 190 pairs. The cache is expected to hold half of the tokens.
    assert_eq!(work_us(&running(1, Tier::Standard, 20, 0)), Some(0.5 * 207.5));
    sequence.held_by_operator = true;
    assert_eq!(work_us(&sequence), None);
    assert_eq!(work_us(&stream(1, Tier::Standard, (9, 3), 0)), None);
}

#[test]
fn the_demand_of_arriving_prompts_leaves_out_what_the_prefix_cache_is_expected_to_hold() {
    let taken = |hit_share| {
        let mut s = scheduler(|_| ());
        s.queue.hit_share.observe_as(1.0, hit_share);
        s.enqueue(NewSequence { arrival: NOW, ..sequence(1, Tier::Premium, 900) });
        s.deadlines.taken_by(&[Tier::Premium], Tier::Standard, NOW)
    };
    assert_near(taken(0.9), 0.1 * taken(0.0));
}

/// Whether a standard prompt of 100 tokens (1,000 us of work) with a TTFT target of `ttft_ms` is late on arrival, if
/// premium prompts took `taken_us` of device time lately, and one of `before` tokens waits (0 for none).
fn is_late(ttft_ms: f64, taken_us: f64, before: u32) -> bool {
    is_late_with(|_| (), ttft_ms, taken_us, before)
}

/// As [`is_late`], with changed settings.
fn is_late_with(
    change: impl FnOnce(&mut EngineSettings),
    ttft_ms: f64,
    taken_us: f64,
    before: u32,
) -> bool {
    let mut s = scheduler(change);
    s.basis.targets.premium.ttft_ms = Some(200.0);
    s.basis.targets.standard.ttft_ms = Some(ttft_ms);
    s.deadlines.arrives(Tier::Premium, taken_us, Timestamp(1));
    if before > 0 {
        s.enqueue(NewSequence { arrival: Timestamp(1), ..sequence(2, Tier::Premium, before) });
    }
    s.enqueue(sequence(1, Tier::Standard, 100));
    s.judge(Timestamp(1));
    late_of(&s, 1)
}

#[test]
fn the_recent_demand_of_higher_tiers_is_taken_off_the_time_of_a_prompt() {
    // A step of 420 us has 320 us for prompts. Standard expects 1.25 of this share, 0.952, less the share of the last
    // three seconds that premium took, 0.3: a share of 0.652. So 1,000 us of work take 1,533 us.
    assert!(is_late(1.53, 900_000.0, 0) && !is_late(1.54, 900_000.0, 0));
    // Without premium's work the prompt takes 1,050 us.
    assert!(is_late(1.04, 0.0, 0) && !is_late(1.06, 0.0, 0));
}

#[test]
fn prompts_are_expected_to_have_at_most_all_of_the_time() {
    // A step of 100 prompt tokens takes 1,100 us, and 1.25 of the share of its prompts is 1.14.
    let is_late = |ttft_ms, taken_us| {
        is_late_with(|e| e.scheduler.max_num_batched_tokens = 100, ttft_ms, taken_us, 0)
    };
    assert!(is_late(0.99, 0.0) && !is_late(1.01, 0.0));
    // Premium took 0.3 of the last 3 s: 1,000 us of work take 1,429 us of the rest.
    assert!(is_late(1.42, 900_000.0) && !is_late(1.44, 900_000.0));
}

#[test]
fn the_work_of_higher_tiers_prompts_in_time_comes_before_that_of_a_prompt() {
    // The premium prompt takes 500 us. A full step takes 420 us, 320 us of them for its 32 prompt tokens; the blocking
    // limit (30 % of the TTFT target) is longer. 1.25 of this share is 0.952, so 1,500 us of work take 1,575 us.
    assert!(is_late(1.56, 0.0, 50) && !is_late(1.58, 0.0, 50));
    assert!(!is_late(1.56, 0.0, 0), "alone it is in time");
}

/// Judges standard requests and returns the ids of the late ones. Each request is given by the tokens of its prompt (10
/// us of work for a token), its TTFT target, and whether it was late before. The ids count from 1.
fn judged_late(prompts: &[(u32, f64, bool)]) -> Vec<u64> {
    let mut s = scheduler(|_| ());
    s.basis.targets.premium.ttft_ms = Some(200.0);
    for (id, &(tokens, ttft_ms, was_late)) in (1..).zip(prompts) {
        s.basis.targets.standard.ttft_ms = Some(ttft_ms);
        s.enqueue(sequence(id, Tier::Standard, tokens));
        s.queue.set_late(SeqId(id), was_late, &s.basis);
    }
    s.judge(Timestamp(1));
    (1..).take(prompts.len()).filter(|id| late_of(&s, *id)).collect()
}

#[test]
fn a_late_request_is_in_time_again_only_with_two_steps_of_slack() {
    // The prompt has 1,000 us of work, and prompts get 0.952 of the time, so the prompt takes 1,050 us. Two steps take
    // 840 us.
    assert_eq!(judged_late(&[(100, 1.06, false)]), []);
    assert_eq!(judged_late(&[(100, 1.88, true)]), [1]);
    assert_eq!(judged_late(&[(100, 1.90, true)]), []);
}

#[test]
fn a_late_request_that_needs_slack_may_come_before_one_with_an_earlier_deadline() {
    // The late request's prompt must be done two steps before its deadline, at 2,160 us, and the other prompt at 2,500
    // us. Each prompt takes 1,155 us. If the late request's prompt goes first, both are in time. In the order of
    // deadlines it would go second and be done at 2,310 us, too late.
    assert_eq!(judged_late(&[(110, 3.0, true), (110, 2.5, false)]), []);
}

#[test]
fn a_request_is_judged_by_its_new_tier_and_no_more_when_it_has_left() {
    let mut s = scheduler(|settings| settings.use_policy(Policy::Tiercel));
    s.basis.targets.standard.ttft_ms = Some(12.0);
    s.basis.targets.premium.ttft_ms = Some(7.0);
    s.enqueue(sequence(1, Tier::Standard, 20));
    let entry = |tier, due| Vec::from([(tier, Timestamp(due), SeqId(1))]);
    let judged = |s: &State| s.deadlines.entries.iter().copied().collect::<Vec<Entry>>();
    assert_eq!(judged(&s), entry(Tier::Standard, 12_001));
    assert!(s.reprioritize(SeqId(1), Tier::Premium, 0));
    assert_eq!(judged(&s), entry(Tier::Premium, 7_001));
    s.cancel(SeqId(1)).expect("it waits");
    assert_eq!(judged(&s), []);
}

#[test]
fn a_request_paused_over_its_deadline_is_late_when_it_resumes() {
    let mut s = scheduler(|e| e.use_policy(Policy::Tiercel));
    s.enqueue(sequence(1, Tier::Standard, 20));
    let deadline = s.queue.table.get(SeqId(1)).expect("it waits").service.deadline;
    let deadline = deadline.expect("it has a target");
    s.set_hold(SeqId(1), crate::scheduler::Hold::Operator, true);
    s.judge(Timestamp(deadline.0 - 1));
    assert!(!late_of(&s, 1));
    s.judge(deadline);
    assert!(late_of(&s, 1));
    s.set_hold(SeqId(1), crate::scheduler::Hold::Operator, false);
    s.judge(deadline);
    assert!(late_of(&s, 1));
}
