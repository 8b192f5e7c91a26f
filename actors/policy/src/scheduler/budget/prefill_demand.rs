//! Prefill demand: the time that prompts need of the next step for their first tokens to meet their deadlines.

use crate::scheduler::cost::CostModel;
use crate::scheduler::sequence::Sequence;
use tiercel_device::Timestamp;

/// Margin before its TTFT target at which a first token is aimed, in multiples of the mean error of a predicted step.
const FIRST_TOKEN_MARGIN: f64 = 30.0;
/// Least error of a predicted step that the margin before a TTFT target assumes, as a share of the step: little is
/// known of the error at first.
const LEAST_ERROR: f64 = 0.03;

/// Prefill demand of the prompts of one tier.
#[derive(Debug, Default)]
pub(crate) struct PrefillDemand {
    /// Time that prompts need in the next step itself, us.
    now_us: f64,
    /// Prompts that need not be done in the next step: time until the deadline of each, us, and time that it needs
    /// before the deadline, us.
    due: Vec<(f64, f64)>,
}

impl PrefillDemand {
    /// Adds the demand of a prompt beside steps of `step_us`. A prompt that is late in any case is served as fast as if
    /// it had just come, or at once if the streams that limit the step can wait for it (`streams_wait`).
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
        // A first token comes at the end of a step, so the whole step counts as spent.
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

    /// Returns the time that a step of at least `step_us`, which without prompts takes `bare_us`, must give the
    /// prompts, us, if the steps after it give as much. Prompts go in the order of their deadlines, and the work that
    /// is due by each deadline must fit before it.
    pub(crate) fn in_step_us(mut self, step_us: f64, bare_us: f64) -> f64 {
        self.due.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum_us, mut share) = (0.0, 0.0_f64);
        for (within_us, left_us) in self.due {
            sum_us += left_us;
            share = share.max(sum_us / within_us);
        }
        // Length of a step in which prompts have that share of the time, and streams take `bare_us`.
        let longer_us = if share < 1.0 { bare_us / (1.0 - share) } else { f64::INFINITY };
        self.now_us + (share * step_us.max(longer_us)).min(sum_us)
    }
}
