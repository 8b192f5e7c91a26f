//! Prefill demand: the time of the next step that prompts need for their first tokens to meet their deadlines.

use crate::scheduler::cost::CostModel;
use crate::scheduler::sequence::Sequence;
use tiercel_device::Timestamp;

/// Safety margin of TTFT: a first token is planned to come this long before its TTFT target, in multiples of the mean
/// error of predicted step times.
const FIRST_TOKEN_MARGIN: f64 = 30.0;
/// Smallest relative error of predicted step times with which the safety margin of TTFT is computed, because a smaller
/// measured error means little until many steps have been measured.
const LEAST_ERROR: f64 = 0.03;

/// Prefill demand of the prompts of one tier: the time that they need so that their first tokens meet their deadlines.
#[derive(Debug, Default)]
pub(crate) struct PrefillDemand {
    /// Time that prompts need in the next step itself, us, because they are due or late.
    now_us: f64,
    /// Prompts that may be finished in a later step: for each the time until its deadline, us, and the time that
    /// computing its rest takes, us.
    due: Vec<(f64, f64)>,
}

impl PrefillDemand {
    /// Adds the demand of one prompt, where steps take `step_us`. A prompt whose deadline cannot be met is served at
    /// the rate of a prompt that has just arrived, or at once if the streams that limit the step are of a lower tier
    /// (`streams_wait`).
    pub(crate) fn add(
        &mut self,
        prompt: &Sequence,
        cost: &CostModel,
        (step_us, streams_wait): (f64, bool),
        now: Timestamp,
    ) {
        let starts = prompt.planned_output() == 0;
        let Some(target_ms) = prompt.service.targets.ttft_ms.filter(|_| starts) else {
            return;
        };
        let target_us = target_ms * 1000.0;
        let error = cost.error().step.max(LEAST_ERROR);
        let aim_us = target_us - FIRST_TOKEN_MARGIN * error * step_us;
        let left = prompt.left_to_compute();
        let left_us = cost.prefill_us(left, prompt.planned_len() - left);
        // Count the whole step as spent, because a first token comes at the end of a step.
        let spent_us = now.since_us(prompt.arrival) as f64 + step_us;
        if spent_us + step_us < aim_us {
            self.due.push((aim_us - spent_us, left_us));
        } else if spent_us <= target_us || streams_wait {
            self.now_us += left_us;
        } else {
            let whole_us = cost.prefill_us(prompt.planned_len(), 0);
            self.now_us += (whole_us * step_us / aim_us.max(step_us)).min(left_us);
        }
    }

    /// Returns the time that the next step must give to prompts, us, so that every deadline is met if later steps give
    /// as much (earliest deadline first). The step takes at least `step_us`, and `bare_us` without prompts.
    pub(crate) fn in_step_us(mut self, step_us: f64, bare_us: f64) -> f64 {
        self.due.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum_us, mut share) = (0.0, 0.0_f64);
        for (within_us, left_us) in self.due {
            sum_us += left_us;
            share = share.max(sum_us / within_us);
        }
        // Length of a step in which streams take `bare_us` and prompts take the share `share` of the step, us.
        let longer_us = if share < 1.0 { bare_us / (1.0 - share) } else { f64::INFINITY };
        self.now_us + (share * step_us.max(longer_us)).min(sum_us)
    }
}
