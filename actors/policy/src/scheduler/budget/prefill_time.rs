//! Device time that steps have for prompts beside the running streams, and the backlog of prompts that wait for it.

use crate::admission::{Capacity, ShareReport};
use crate::scheduler::basis::Basis;
use crate::scheduler::budget::slack::aimed_pace_us;
use crate::scheduler::budget::step_budget::blocking_typical_us;
use crate::scheduler::cost::StepWork;
use crate::scheduler::queue::Queue;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();

/// Length of the next steps, and the part of each step that is left for prompts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefillTime {
    /// Length of a step, us: as long as the TPOT targets of the streams and the limits on a step allow.
    pub(crate) step_us: f64,
    /// Part of `step_us` that is left for prompts, us.
    pub(crate) prompts_us: f64,
}

impl PrefillTime {
    /// Returns the length of a step with the running streams `streams`, and its part that is left for prompts.
    /// `pace_us` is the shortest aimed pace of the streams that limit the step; infinite if no stream limits the step.
    fn of(streams: &StepWork, pace_us: f64, basis: &Basis, traffic: Traffic) -> PrefillTime {
        let bare_us = basis.cost.step_us(streams);
        let room = basis.rules.prefill_room(streams.decode_tokens);
        let longest_us = bare_us + basis.cost.prefill_us(room, 0);
        let longest_us = longest_us.min(blocking_typical_us(basis, traffic)).max(bare_us);
        let step_us = pace_us.clamp(bare_us, longest_us);
        PrefillTime { step_us, prompts_us: step_us - bare_us }
    }

    /// Returns the length of a step with the streams of tiers above background that hold blocks and are not on hold,
    /// and its part that is left for prompts. A stream whose TPOT target is not longer than a step without prompts does
    /// not limit the step's length.
    pub(crate) fn now(queue: &Queue, basis: &Basis, traffic: Traffic) -> PrefillTime {
        let streams = || queue.table.active().map(|(_, sequence)| sequence).filter(decodes);
        let mut work = StepWork::default();
        streams().for_each(|stream| work.add_decode(stream.planned_len()));
        let bare_us = basis.cost.step_us(&work);
        let limits = |stream: &&Sequence| {
            stream.service.targets.tpot_ms.is_some_and(|target_ms| target_ms * 1000.0 > bare_us)
        };
        let paces_us = streams().filter(limits).filter_map(aimed_pace_us);
        PrefillTime::of(&work, paces_us.fold(f64::INFINITY, f64::min), basis, traffic)
    }

    /// Returns the part of a step that its streams leave for prompts, as a share of the step's length, 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.prompts_us / self.step_us.max(1.0)
    }
}

/// Returns whether a sequence is a stream of a tier above background that is not on hold, also while it is being
/// preempted.
fn decodes(sequence: &&Sequence) -> bool {
    let streams = sequence.planned_output() > 0 && sequence.one_token_left();
    sequence.tier < Tier::Background && streams && !sequence.held()
}

/// Returns the report for admission: device time that is available to prompts, and the backlog of prompts. The report
/// has no `shedding` if steps have a fixed size and usage is not counted, because the available time is unknown in that
/// case.
pub(crate) fn capacity(
    queue: &Queue,
    basis: &Basis,
    shares: ShareReport,
    now: Timestamp,
) -> Capacity {
    let mut backlog_us = [0.0; TIERS];
    let active = queue.table.active().map(|(_, sequence)| sequence);
    for prompt in active.filter(|sequence| sequence.planned_output() == 0 && !sequence.held()) {
        let left = prompt.left_to_compute();
        backlog_us[prompt.tier_before_ageing().index()] +=
            basis.cost.prefill_us(left, prompt.planned_len() - left);
    }
    let token_us = basis.cost.prefill_us(1, 0) * queue.uncached_share();
    for (us, tokens) in backlog_us.iter_mut().zip(queue.table.backlog_tokens()) {
        *us += token_us * tokens as f64;
    }
    let rules = &basis.rules;
    let time = PrefillTime::now(queue, basis, queue.traffic(now));
    let known = rules.budget_by_slack() || rules.counts_usage();
    Capacity {
        step_us: time.step_us,
        idle_us: basis.cost.step_us(&StepWork::default()),
        prompts_us: time.prompts_us,
        backlog_us,
        queue_us: Tier::ALL.map(|tier| queue.drain[tier.index()].wait_us(now)),
        fair_tenants: rules.tenants_are_fair(),
        fair_tiers: rules.tiers_are_fair(),
        token_us,
        shares,
        shedding: known.then_some(rules.shedding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::State;
    use crate::scheduler::budget::fixtures::{assert_near, cost, prompt, stream};
    use crate::scheduler::tests::{NOW, scheduler, sequence};
    use tiercel_config::{Budget, SheddingForm};

    /// Creates a scheduler whose steps hold 32 tokens, on the device of `cost`.
    fn state() -> State {
        let mut s = scheduler(|_| ());
        s.basis.cost = cost();
        s
    }

    /// Gives a stream a TPOT target and a predicted length of 76 tokens, so that it aims at 98 % of the target: 75
    /// steps of 98 % end 1.5 targets early.
    fn with_tpot_ms(mut stream: Sequence, tpot_ms: f64) -> Sequence {
        stream.service.targets.tpot_ms = Some(tpot_ms);
        stream.service.predicted_tokens = 76.0;
        stream
    }

    #[test]
    fn a_step_is_as_long_as_its_streams_and_its_tokens_allow() {
        let s = state();
        let streams = StepWork { decode_tokens: 3, kv_tokens: 40, ..StepWork::default() };
        // Without prompts a step takes 100 + 3 * 7 + 40 * 0.5 = 141 us. It has room for 29 prompt tokens: 29 * 8 us,
        // and 0.25 us for each of 406 pairs of tokens, 333.5 us.
        let cases = [(300.0, 159.0), (120.0, 0.0), (1_000.0, 333.5), (f64::INFINITY, 333.5)];
        for (pace_us, prompts_us) in cases {
            let time = PrefillTime::of(&streams, pace_us, &s.basis, s.queue.traffic(NOW));
            assert_eq!((time.step_us, time.prompts_us), (141.0 + prompts_us, prompts_us));
            assert_near(time.share(), prompts_us / (141.0 + prompts_us));
        }
    }

    #[test]
    fn only_running_streams_above_background_set_the_length_of_the_steps_now() {
        // All sequences but the first two have a TPOT target of 0.2 ms, which would make steps shorter.
        let mut held = with_tpot_ms(stream(3, Tier::Premium, (9, 3), 50), 0.2);
        held.held_by_operator = true;
        let background = with_tpot_ms(stream(3, Tier::Background, (9, 3), 50), 0.2);
        let last_token_left = with_tpot_ms(prompt(3, Tier::Premium, 10, 9), 0.2);
        let mut resumed = with_tpot_ms(stream(3, Tier::Premium, (9, 3), 50), 0.2);
        resumed.kv.computed = 4;
        for other in [None, Some(held), Some(background), Some(last_token_left), Some(resumed)] {
            let mut s = state();
            s.queue.table.insert(with_tpot_ms(stream(1, Tier::Premium, (9, 3), 50), 0.4));
            s.queue.table.insert(with_tpot_ms(stream(2, Tier::Standard, (14, 2), 50), 0.5));
            let shown = format!("{other:?}");
            other.into_iter().for_each(|other| s.queue.table.insert(other));
            let time = PrefillTime::now(&s.queue, &s.basis, s.queue.traffic(NOW));
            // The first stream aims at 98 % of 400 us. A step without prompts takes 100 us, 2 * 7 us for the decodes,
            // and 0.5 us for each of the 12 + 16 tokens that they read.
            assert!((time.step_us - 392.0).abs() < 1e-6, "{} with {shown}", time.step_us);
            assert_near(time.prompts_us, 392.0 - 128.0);
        }
    }

    #[test]
    fn a_stream_that_cannot_meet_its_target_at_all_leaves_the_length_of_steps_to_the_others() {
        let step_us = |first_tpot_ms| {
            let mut s = state();
            s.queue.table.insert(with_tpot_ms(stream(1, Tier::Premium, (9, 3), 50), first_tpot_ms));
            s.queue.table.insert(with_tpot_ms(stream(2, Tier::Standard, (14, 2), 50), 0.4));
            PrefillTime::now(&s.queue, &s.basis, s.queue.traffic(NOW)).step_us
        };
        // A step without prompts takes 128 us. The streams aim at 98 % of their targets; the second stream aims at 392
        // us.
        assert_near(step_us(0.132), 129.36);
        assert_near(step_us(0.129), 128.0);
        assert_near(step_us(0.128), 392.0);
    }

    #[test]
    fn the_backlog_is_the_time_of_all_prompts_that_are_not_on_hold() {
        let mut s = state();
        s.queue.table.insert(prompt(1, Tier::Premium, 20, 8));
        s.queue.table.insert(prompt(2, Tier::Premium, 10, 3));
        s.queue.table.insert(prompt(3, Tier::Standard, 5, 2));
        let mut held = prompt(4, Tier::Premium, 18, 5);
        held.held_by_stream = true;
        s.queue.table.insert(held);
        s.enqueue(sequence(5, Tier::Premium, 40));
        s.queue.hit_share.observe_as(1.0, 0.25);
        let report = capacity(&s.queue, &s.basis, ShareReport::default(), NOW);
        // Of a waiting prompt, three quarters of the tokens are expected to be computed, at 8 us each.
        assert_eq!(report.token_us, 6.0);
        // The rests of the running prompts: 12 tokens after 8 take 12 * 8 + 162 * 0.25 = 136.5 us, 7 after 3 take 7 * 8
        // + 42 * 0.25 = 66.5 us, and 3 after 2 take 3 * 8 + 9 * 0.25 = 26.25 us. The waiting prompt takes 40 * 6 us.
        assert_eq!(report.backlog_us[Tier::Premium.index()], 136.5 + 66.5 + 240.0);
        assert_eq!(report.backlog_us[Tier::Standard.index()], 26.25);
    }

    #[test]
    fn admission_may_shed_if_steps_follow_the_slack_or_usage_is_counted() {
        for (budget, form, known) in [
            (Budget::Slack, SheddingForm::Forecast, true),
            (Budget::Fixed, SheddingForm::Share, true),
            (Budget::Slack, SheddingForm::Share, true),
            (Budget::Fixed, SheddingForm::Forecast, false),
        ] {
            let mut s = state();
            s.basis.rules.scheduling.budget = budget;
            s.basis.rules.shedding.form = form;
            let shedding = s.capacity(NOW).shedding;
            assert_eq!(shedding, known.then_some(s.basis.rules.shedding), "{budget:?} {form:?}");
        }
    }
}
