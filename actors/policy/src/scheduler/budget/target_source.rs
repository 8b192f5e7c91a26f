//! Derived latency targets. They are computed from the speed of the device at the start of the server; while no
//! sequence is live, once step times have changed by a tenth; and when an operator changes `slo.*`. A change of
//! `scheduler.max_num_seqs` or `scheduler.max_num_batched_tokens` alone does not change them.

use crate::scheduler::basis::Basis;
use crate::scheduler::cost::CostModel;
use crate::slo::{ServerTimes, Targets, Unreachable};
use tiercel_config::{SchedulerSettings, SloSettings};
use tiercel_device::DeviceInfo;

/// Change of step times, as a share, after which latency targets are derived again.
const MOVED: f64 = 0.1;

/// Settings and device sizes from which latency targets are derived, together with the cost model.
#[derive(Debug, Clone)]
pub(crate) struct TargetSource {
    /// Latency targets in the settings: each is a number, or `auto` for a target derived from the device's speed.
    slo: SloSettings,
    /// Sizes of the device: KV blocks, context length and the like.
    info: DeviceInfo,
    /// Ratio of observed to predicted step times (see [`CostModel::step_correction`]) when the latency targets in
    /// effect were derived.
    correction: f64,
}

impl TargetSource {
    pub(crate) fn new(slo: &SloSettings, info: &DeviceInfo) -> TargetSource {
        TargetSource { slo: slo.clone(), info: info.clone(), correction: 1.0 }
    }

    /// Returns the latency targets on a device with this cost model. A stated target (a number) is in effect as it is
    /// if the device can meet it for a request alone. A target that is `auto`, or that the device cannot meet, is
    /// derived from the device's speed.
    pub(crate) fn targets(&self, cost: &CostModel, sizes: &SchedulerSettings) -> Targets {
        self.with_unreachable(cost, sizes).0
    }

    /// Returns the latency targets, and the stated targets that the device cannot meet, which derived targets replace.
    fn with_unreachable(
        &self,
        cost: &CostModel,
        sizes: &SchedulerSettings,
    ) -> (Targets, Vec<Unreachable>) {
        let (seqs, tokens) = (sizes.max_num_seqs, sizes.max_num_batched_tokens);
        ServerTimes::new(&cost.speed(), &self.info, seqs, tokens).targets(&self.slo)
    }

    /// Takes over other settings of targets. Returns the targets that follow from these settings and from the present
    /// speed of the device, and the stated targets that the device cannot meet; `None` if the settings are as before.
    pub(crate) fn follow(
        &mut self,
        slo: &SloSettings,
        basis: &Basis,
    ) -> Option<(Targets, Vec<Unreachable>)> {
        if *slo == self.slo {
            return None;
        }
        self.slo = slo.clone();
        self.correction = basis.cost.step_correction();
        Some(self.with_unreachable(&basis.cost, &basis.rules.scheduling))
    }
}

impl TargetSource {
    /// Derives the latency targets again. Returns the targets, and the stated targets that the device cannot meet;
    /// `None` if step times have changed by less than a tenth since the targets were last derived.
    pub(crate) fn derive_again(&mut self, basis: &Basis) -> Option<(Targets, Vec<Unreachable>)> {
        let correction = basis.cost.step_correction();
        if (correction / self.correction - 1.0).abs() < MOVED {
            return None;
        }
        self.correction = correction;
        Some(self.with_unreachable(&basis.cost, &basis.rules.scheduling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::StepWork;
    use crate::scheduler::tests::{scheduler, sequence};
    use crate::slo::Retargeted;
    use tiercel_config::{Target, TierSlo};
    use tiercel_device::Tier;

    #[test]
    fn a_device_that_slows_down_has_longer_targets_once_it_is_idle() {
        let mut s = scheduler(|settings| {
            settings.slo = SloSettings::default();
            settings.slo.standard = TierSlo { ttft_ms: Target::Ms(700.0), ..TierSlo::default() };
        });
        let before = s.targets();
        assert_eq!(s.derive_targets_anew(), None, "nothing moved");
        let mut work = StepWork::default();
        work.add_decode(100);
        for _ in 0..200 {
            let slower_us = 2.0
                * CostModel::new(s.basis.cost.speed(), &s.target_source.info).step_us(&work)
                / s.basis.cost.step_correction();
            s.basis.cost.observe_step(&work, slower_us as u64);
        }
        s.enqueue(sequence(1, Tier::Premium, 10));
        assert_eq!(s.derive_targets_anew(), None, "somebody is served");
        s.cancel(tiercel_device::SeqId(1));
        let Retargeted { before: told, targets: after, by_operator, unreachable } =
            s.derive_targets_anew().expect("twice as slow");
        assert_eq!((told, by_operator, unreachable), (before, false, Vec::new()));
        let ttft_ms = |targets: Targets| targets.premium.ttft_ms.expect("premium has a target");
        let ratio = ttft_ms(after) / ttft_ms(before);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert_eq!(after.standard, before.standard, "a stated target stays");
        assert_eq!((s.targets(), s.derive_targets_anew()), (after, None));
    }

    #[test]
    fn a_stated_target_that_a_slower_device_cannot_meet_is_named() {
        let mut s = scheduler(|settings| settings.slo = SloSettings::default());
        let alone_ms = |s: &crate::scheduler::State| s.basis.cost.speed().step_base_us / 1000.0;
        let stated_ms = 1.5 * alone_ms(&s);
        s.target_source.slo.standard =
            TierSlo { tpot_ms: Target::Ms(stated_ms), ..TierSlo::default() };
        s.basis.targets = s.target_source.targets(&s.basis.cost, &s.basis.rules.scheduling);
        let empty = StepWork::default();
        for _ in 0..200 {
            let slower_us = 3.0 * 1000.0 * alone_ms(&s) / s.basis.cost.step_correction();
            s.basis.cost.observe_step(&empty, slower_us as u64);
        }
        let change = s.derive_targets_anew().expect("three times as slow");
        let named: Vec<_> = change.unreachable.iter().map(|target| target.setting).collect();
        assert_eq!(named, ["slo.standard.tpot_ms"]);
    }

    #[test]
    fn targets_are_derived_again_after_a_tenth_of_change_since_they_were_derived_last() {
        let mut s = scheduler(|settings| settings.slo = SloSettings::default());
        // Returns whether the targets are derived again after a step that takes twice as long as predicted. Such a step
        // raises the correction of step times by 5 %.
        let mut derived_again = || {
            let empty = StepWork::default();
            let twice_us = 2.0 * s.basis.cost.step_us(&empty);
            s.basis.cost.observe_step(&empty, twice_us as u64);
            s.target_source.derive_again(&s.basis).is_some()
        };
        // Changes since the last derivation: 5 %, then 10.2 %.
        assert_eq!([derived_again(), derived_again()], [false, true]);
        assert_eq!([derived_again(), derived_again()], [false, true], "from then on");
        assert!(s.target_source.derive_again(&s.basis).is_none(), "nothing has changed since");
    }
}
