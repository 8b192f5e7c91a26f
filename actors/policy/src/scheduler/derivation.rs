//! Targets derived from the device, and derived anew once its steps take other times than it measured at start.

use crate::scheduler::cost::CostModel;
use crate::scheduler::state::Scheduler;
use crate::slo::{ServerTimes, Targets};
use tiercel_config::{SchedulerSettings, SloSettings};
use tiercel_device::DeviceInfo;

/// Targets are derived anew when step times moved by this share since they were derived.
const MOVED: f64 = 0.1;

/// What targets are derived from beside the cost model.
#[derive(Debug, Clone)]
pub(crate) struct Derivation {
    slo: SloSettings,
    info: DeviceInfo,
    /// Correction of step times that the targets in effect were derived with.
    correction: f64,
}

impl Derivation {
    pub(crate) fn new(slo: &SloSettings, info: &DeviceInfo) -> Derivation {
        Derivation { slo: slo.clone(), info: info.clone(), correction: 1.0 }
    }

    /// The targets in effect on a device of this cost.
    pub(crate) fn targets(&self, cost: &CostModel, sizes: &SchedulerSettings) -> Targets {
        let (seqs, tokens) = (sizes.max_num_seqs, sizes.max_num_batched_tokens);
        ServerTimes::new(&cost.speed(), &self.info, seqs, tokens).targets(&self.slo).0
    }
}

impl Scheduler {
    /// The targets in effect.
    pub fn targets(&self) -> Targets {
        self.slo
    }

    /// Derives the targets anew if nobody is being served and step times moved; says those that changed. What a request
    /// was promised when it came is thus what it is served by.
    pub fn derive_targets_anew(&mut self) -> Option<Targets> {
        let correction = self.cost.step_correction();
        let moved = (correction / self.derivation.correction - 1.0).abs();
        if moved < MOVED || !self.sequences.is_empty() {
            return None;
        }
        self.derivation.correction = correction;
        let targets = self.derivation.targets(&self.cost, &self.settings);
        let before = std::mem::replace(&mut self.slo, targets);
        (before != targets).then_some(targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::StepWork;
    use crate::scheduler::tests::{scheduler, sequence};
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
            let slower_us = 2.0 * CostModel::new(s.cost.speed(), &s.derivation.info).step_us(&work)
                / s.cost.step_correction();
            s.cost.observe_step(&work, slower_us as u64);
        }
        s.enqueue(sequence(1, Tier::Premium, 10));
        assert_eq!(s.derive_targets_anew(), None, "somebody is served");
        s.cancel(tiercel_device::SeqId(1));
        let after = s.derive_targets_anew().expect("twice as slow");
        let ttft_ms = |targets: Targets| targets.premium.ttft_ms.expect("premium has a target");
        let ratio = ttft_ms(after) / ttft_ms(before);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert_eq!(after.standard, before.standard, "a stated target stays");
        assert_eq!((s.targets(), s.derive_targets_anew()), (after, None));
    }
}
