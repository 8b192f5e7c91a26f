//! Derived latency targets. The scheduler computes the targets from the speed of the device at the start of the server,
//! and again once the mean correction of step times has changed by a tenth. If an operator changes `slo.*`, the scheduler
//! computes the targets from the correction of the last time. A change of `scheduler.max_num_seqs` or
//! `scheduler.max_num_batched_tokens` alone does not change the targets.

use crate::scheduler::basis::Basis;
use crate::scheduler::cost::{CostModel, StepWork};
use crate::slo::{ServerTimes, Targets, Unreachable};
use tiercel_config::{SchedulerSettings, SloSettings};
use tiercel_device::DeviceInfo;

/// Relative change of the mean correction of step times after which latency targets are derived again.
const MOVED: f64 = 0.1;
/// Predicted time of the steps over which the mean correction of step times is taken, us. Corrections after single steps
/// scatter, so without a mean the scheduler would derive the targets again and again on a device whose speed does not
/// change.
const WINDOW_US: f64 = 30e6;

/// Settings and device sizes from which latency targets are derived, together with the cost model, and the correction of
/// step times for which they were derived.
#[derive(Debug, Clone)]
pub(crate) struct TargetSource {
    /// Latency targets in the settings: each is a number, or `auto` for a target derived from the device's speed.
    slo: SloSettings,
    /// Sizes of the device: KV blocks, context length and the like.
    info: DeviceInfo,
    /// Correction of step times (see [`CostModel::step_correction`]) for which the latency targets in effect were
    /// derived.
    correction: f64,
    /// Steps since the mean correction of step times was last taken.
    recent: RecentSteps,
}

/// Sums over steps, for the mean correction of step times.
#[derive(Debug, Clone, Copy, Default)]
struct RecentSteps {
    /// Predicted time of the steps, us.
    time_us: f64,
    /// Sum over the steps of the predicted time, us, times the correction of step times.
    weighted_us: f64,
}

impl TargetSource {
    pub(crate) fn new(slo: &SloSettings, info: &DeviceInfo) -> TargetSource {
        let (slo, info, recent) = (slo.clone(), info.clone(), RecentSteps::default());
        TargetSource { slo, info, correction: 1.0, recent }
    }

    /// Returns the latency targets on a device that reported the speeds in `cost` at its start, and whose step times have
    /// been corrected by the factor `self.correction` since. A stated target (a number) is in effect as it is if the
    /// device could meet it at its start for a request alone. A target that is `auto`, or that the device could not meet,
    /// is derived from the corrected speeds.
    pub(crate) fn targets(&self, cost: &CostModel, sizes: &SchedulerSettings) -> Targets {
        self.with_unreachable(cost, sizes).0
    }

    /// Returns the latency targets, and the stated targets that the device could not meet at its start even for a request
    /// alone, which derived targets replace. Step times under load do not count for that: a request alone has no other
    /// requests beside it.
    fn with_unreachable(
        &self,
        cost: &CostModel,
        sizes: &SchedulerSettings,
    ) -> (Targets, Vec<Unreachable>) {
        let (seqs, tokens) = (sizes.max_num_seqs, sizes.max_num_batched_tokens);
        let times =
            |correction| ServerTimes::new(&cost.speed_at(correction), &self.info, seqs, tokens);
        times(self.correction).with_idle_times(&times(1.0)).targets(&self.slo)
    }

    /// Takes over other settings of targets. Returns the targets that follow from these settings, and the stated targets
    /// that the device cannot meet; `None` if the new settings equal the old ones.
    pub(crate) fn follow(
        &mut self,
        slo: &SloSettings,
        basis: &Basis,
    ) -> Option<(Targets, Vec<Unreachable>)> {
        if *slo == self.slo {
            return None;
        }
        self.slo = slo.clone();
        Some(self.with_unreachable(&basis.cost, &basis.rules.scheduling))
    }

    /// Counts a step with the work `work` that has ended, for the mean correction of step times.
    pub(crate) fn observe_step(&mut self, work: &StepWork, cost: &CostModel) {
        let time_us = cost.step_us(work);
        self.recent.time_us += time_us;
        self.recent.weighted_us += time_us * cost.step_correction();
    }

    /// Takes the mean correction of step times once the predicted times of the steps since the last mean add up to 30 s.
    /// If the mean differs by a tenth or more from the correction for which the targets in effect were derived, derives
    /// the targets again and returns them.
    pub(crate) fn derive_again(&mut self, basis: &Basis) -> Option<Targets> {
        if self.recent.time_us < WINDOW_US {
            return None;
        }
        let steps = std::mem::take(&mut self.recent);
        let correction = steps.weighted_us / steps.time_us;
        if (correction / self.correction - 1.0).abs() < MOVED {
            return None;
        }
        self.correction = correction;
        Some(self.targets(&basis.cost, &basis.rules.scheduling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::State;
    use crate::scheduler::tests::{scheduler, sequence};
    use crate::slo::Retargeted;
    use tiercel_config::{Target, TierSlo};
    use tiercel_device::{SeqId, Tier};

    /// Makes the scheduler learn from steps whose predicted times add up to `time_s`. Each step takes `times` as long as
    /// the device's speeds at its start predict.
    fn run_steps(s: &mut State, time_s: f64, times: f64) {
        let work = StepWork { decode_tokens: 1, kv_tokens: 100, ..StepWork::default() };
        let observed_us = times * s.basis.cost.step_us(&work) / s.basis.cost.step_correction();
        let mut left_us = time_s * 1e6;
        while left_us > 0.0 {
            s.learn_step_time(&work, observed_us as u64);
            left_us -= s.basis.cost.step_us(&work);
        }
    }

    #[test]
    fn a_device_that_slows_down_has_longer_targets_also_while_it_serves() {
        let mut s = scheduler(|settings| {
            settings.slo = SloSettings::default();
            settings.slo.standard = TierSlo { ttft_ms: Target::Ms(700.0), ..TierSlo::default() };
        });
        s.enqueue(sequence(1, Tier::Premium, 10));
        let before = s.targets();
        run_steps(&mut s, 31.0, 1.0);
        assert_eq!(s.derive_targets_anew(), None, "nothing moved");
        run_steps(&mut s, 29.0, 2.0);
        assert_eq!(s.derive_targets_anew(), None, "too few steps for a mean");
        run_steps(&mut s, 2.0, 2.0);
        let Retargeted { before: told, targets: after, by_operator, unreachable } =
            s.derive_targets_anew().expect("twice as slow");
        assert_eq!((told, by_operator, unreachable), (before, false, Vec::new()));
        let ttft_ms = |targets: Targets| targets.premium.ttft_ms.expect("premium has a target");
        let ratio = ttft_ms(after) / ttft_ms(before);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert_eq!(after.standard, before.standard, "a stated target stays");
        assert_eq!((s.targets(), s.derive_targets_anew()), (after, None));
        let promised = s.promise(SeqId(1)).expect("it lives").targets;
        assert_eq!(promised.tpot_ms, before.premium.tpot_ms, "a live request keeps its targets");
    }

    #[test]
    fn a_stated_target_stays_however_long_steps_become_under_load() {
        let mut s = scheduler(|settings| settings.slo = SloSettings::default());
        let empty_step_ms = s.basis.cost.speed_at(1.0).step_base_us / 1000.0;
        let stated_ms = 1.5 * empty_step_ms;
        s.target_source.slo.standard =
            TierSlo { tpot_ms: Target::Ms(stated_ms), ..TierSlo::default() };
        s.basis.targets = s.target_source.targets(&s.basis.cost, &s.basis.rules.scheduling);
        run_steps(&mut s, 31.0, 3.0);
        let change = s.derive_targets_anew().expect("three times as slow");
        assert_eq!(change.targets.standard.tpot_ms, Some(stated_ms));
    }

    #[test]
    fn targets_are_derived_again_after_a_tenth_of_change_since_they_were_derived_last() {
        let mut s = scheduler(|settings| settings.slo = SloSettings::default());
        let mut derived_again = |times| {
            run_steps(&mut s, 31.0, times);
            s.derive_targets_anew().is_some()
        };
        assert_eq!([1.06, 1.12, 1.18, 1.24].map(&mut derived_again), [false, true, false, true]);
        assert!(!derived_again(1.24), "nothing has changed since");
        assert!(derived_again(1.0), "the device is faster again");
    }

    #[test]
    fn the_mean_correction_counts_and_not_that_of_the_last_steps() {
        let mut s = scheduler(|settings| settings.slo = SloSettings::default());
        run_steps(&mut s, 28.0, 1.0);
        run_steps(&mut s, 3.0, 1.5);
        assert!(s.basis.cost.step_correction() > 1.4);
        assert_eq!(s.derive_targets_anew(), None, "on average a twentieth");
    }
}
