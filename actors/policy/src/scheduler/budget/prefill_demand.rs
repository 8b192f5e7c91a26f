//! Prefill demand: the time of the next step that prompts need for their first tokens to meet their TTFT targets.

use crate::scheduler::cost::CostModel;
use crate::scheduler::sequence::Sequence;
use tiercel_device::Timestamp;

/// Safety margin of TTFT: a first token is planned to come this long before its TTFT target, in multiples of the mean
/// error of predicted step times.
const FIRST_TOKEN_MARGIN: f64 = 20.0;
/// Smallest relative error of predicted step times with which the safety margin of TTFT is computed, because a smaller
/// measured error means little until many steps have been measured.
const LEAST_ERROR: f64 = 0.03;

/// Prefill demand of the prompts of one tier: the time that they need so that their first tokens meet their TTFT
/// targets.
#[derive(Debug, Default)]
pub(crate) struct PrefillDemand {
    /// Time that prompts need in the next step itself, us: prompts that a later step would finish after their TTFT
    /// target less the safety margin, and a part of each prompt whose TTFT target cannot be met any more.
    in_next_step_us: f64,
    /// Prompts that may be finished in a later step: for each the time until it is due (its TTFT target less the safety
    /// margin and one step), us, and the time that computing its rest takes, us.
    later: Vec<(f64, f64)>,
}

impl PrefillDemand {
    /// Adds the demand of one prompt, where steps take `step_us`. A prompt whose TTFT target cannot be met is served at
    /// the rate of a prompt that has just arrived, or at once if the streams that limit the step are of a lower tier
    /// (`streams_wait`).
    pub(crate) fn add(
        &mut self,
        prompt: &Sequence,
        cost: &CostModel,
        (step_us, streams_wait): (f64, bool),
        begins: Timestamp,
    ) {
        let starts = prompt.planned_output() == 0;
        let Some(target_ms) = prompt.service.targets.ttft_ms.filter(|_| starts) else {
            return;
        };
        let target_us = target_ms * 1000.0;
        let error = cost.error().step.max(LEAST_ERROR);
        let planned_ttft_us = target_us - FIRST_TOKEN_MARGIN * error * step_us;
        let left = prompt.left_to_compute();
        let work_us = cost.prefill_us(left, prompt.planned_len() - left);
        // Count the whole step as spent, because a first token comes at the end of a step.
        let spent_us = begins.since_us(prompt.arrival) as f64 + step_us;
        if spent_us + step_us < planned_ttft_us {
            self.later.push((planned_ttft_us - spent_us, work_us));
        } else if spent_us <= target_us || streams_wait {
            self.in_next_step_us += work_us;
        } else {
            let whole_us = cost.prefill_us(prompt.planned_len(), 0);
            self.in_next_step_us +=
                (whole_us * step_us / planned_ttft_us.max(step_us)).min(work_us);
        }
    }

    /// Returns the time that the next step must give to prompts, us, so that every TTFT target is met if later steps
    /// give as much (earliest target first). The step takes at least `step_us`, and `bare_us` without prompts.
    pub(crate) fn in_step_us(mut self, step_us: f64, bare_us: f64) -> f64 {
        self.later.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum_us, mut share) = (0.0, 0.0_f64);
        for (within_us, work_us) in self.later {
            sum_us += work_us;
            share = share.max(sum_us / within_us);
        }
        // Length of a step in which streams take `bare_us` and prompts take the share `share` of the step, us.
        let longer_us = if share < 1.0 { bare_us / (1.0 - share) } else { f64::INFINITY };
        self.in_next_step_us + (share * step_us.max(longer_us)).min(sum_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::{assert_near, cost, prompt};
    use tiercel_device::Tier;

    /// Time that the rest of the first prompt of `demand_us` takes, us: 12 tokens of 8 us, and 0.25 us for each of 162
    /// pairs of tokens (12 * 8 with the computed ones, 66 among themselves).
    const FIRST_US: f64 = 136.5;
    /// Part of one step that the second prompt of `demand_us` needs, us. The prompt takes 91.25 us: 10 tokens of 8 us,
    /// and 0.25 us for each of 45 pairs of tokens. Its first token is planned 20 * 3 % of a step, 600 us, before its
    /// target: 19,400 us after the arrival, of which 10,000 us and this step of 1,000 us are spent.
    const SECOND_US: f64 = 91.25 / 8_400.0 * 1_000.0;

    /// Returns the time that the next step must give to two prompts with a TTFT target of 20 ms, where steps take 1,000
    /// us. The first prompt arrived `age_us` ago and has 12 of its 20 tokens left, the second arrived 10,000 us ago and
    /// has all of its 10 tokens left.
    fn demand_us(age_us: u64, streams_wait: bool) -> f64 {
        let begins = Timestamp(100_000);
        let mut demand = PrefillDemand::default();
        for (age_us, tokens, computed) in [(age_us, 20, 8), (10_000, 10, 0)] {
            let mut prompt = prompt(100_000 - age_us, Tier::Premium, tokens, computed);
            prompt.service.targets.ttft_ms = Some(20.0);
            demand.add(&prompt, &cost(), (1_000.0, streams_wait), begins);
        }
        demand.in_step_us(1_000.0, 100.0)
    }

    #[test]
    fn a_prompt_is_due_when_the_next_step_would_not_end_before_the_planned_time() {
        // The first token of the first prompt is planned 19,400 us after the arrival. With an age of 17,399 us, this
        // step and a next one end 1 us before. So the prompt needs its 136.5 us within the 1,001 us that follow this
        // step. Both prompts need 227.75 us within 8,400 us, a smaller share.
        assert_near(demand_us(17_399, false), FIRST_US / 1_001.0 * 1_000.0);
        // With an age of 17,400 us, a next step ends at the planned time itself, so the prompt needs all of its time in
        // this step.
        assert_near(demand_us(17_400, false), FIRST_US + SECOND_US);
        // The TTFT target itself is met by a step that ends exactly 20,000 us after the arrival.
        assert_near(demand_us(19_000, false), FIRST_US + SECOND_US);
    }

    #[test]
    fn a_late_prompt_is_served_as_if_it_had_just_arrived_or_at_once_if_streams_wait() {
        // The whole first prompt takes 20 * 8 us and 0.25 us for each of 190 pairs of tokens, 207.5 us, in 19,400 us.
        assert_near(demand_us(19_001, false), 207.5 / 19_400.0 * 1_000.0 + SECOND_US);
        assert_near(demand_us(19_001, true), FIRST_US + SECOND_US);
    }
}
