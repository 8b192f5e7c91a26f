//! Rules of the scheduler: the settings of the policy and the sizes of the device. Every decision reads them; only an
//! operator's change of policy or settings writes them.

use crate::protocol::Release;
use crate::scheduler::queue::arrivals::Traffic;
use tiercel_config::{
    Allocation, AtLimit, Batching, Budget, EngineSettings, Late, Order, PatienceSettings, Policy,
    PreemptionMode, PreemptionSettings, SchedulerSettings, SharesSettings, SheddingForm,
    SheddingSettings, VictimRelease,
};
use tiercel_device::{DeviceInfo, Tier};

/// Rules of the scheduler: settings of the policy and sizes of the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Settings (`scheduler.*`) of the order of service, the length of steps and the limits of a step.
    pub(crate) scheduling: SchedulerSettings,
    /// Settings (`preemption.*`) of the choice of victims, and of what happens to their blocks.
    pub(crate) preemption: PreemptionSettings,
    /// Settings (`shedding.*`) of the treatment of requests that cannot meet their targets.
    pub(crate) shedding: SheddingSettings,
    /// Settings (`shares.*`) of the share of the device's time that each tier is due.
    pub(crate) shares: SharesSettings,
    /// Settings (`patience.*`) of the longest wait for a first token, for requests that move to another tier.
    pub(crate) patience: PatienceSettings,
    /// Whether the prefix cache is on: sequences of one tenant share KV blocks of equal prefixes.
    pub(crate) share_prefixes: bool,
    /// Sizes of the device, and `max_num_batched_tokens` as it was at the start, which bound every plan.
    pub(crate) limits: Limits,
}

/// Sizes that never change: of the device, and of the largest step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Number of tokens in a KV block.
    pub(crate) block_size: u32,
    /// Number of KV blocks in the device pool.
    pub(crate) device_blocks: u32,
    /// Longest sequence (prompt and output) that the model allows, tokens.
    pub(crate) max_model_len: u32,
    /// `max_num_batched_tokens` at the start. Operators may lower that setting while a larger step is in flight.
    pub(crate) step_tokens: u32,
}

impl Rules {
    pub(crate) fn new(settings: &EngineSettings, info: &DeviceInfo) -> Rules {
        Rules {
            scheduling: settings.scheduler,
            preemption: settings.preemption,
            shedding: settings.shedding,
            shares: settings.shares,
            patience: settings.patience,
            share_prefixes: settings.prefix_cache.enabled,
            limits: Limits {
                block_size: info.block_size,
                device_blocks: info.device_blocks,
                max_model_len: info.max_model_len,
                step_tokens: settings.scheduler.max_num_batched_tokens,
            },
        }
    }

    /// Switches to the settings of a named policy. These settings stay as they are: the largest numbers of sequences
    /// and of tokens in a step, the number of steps in flight, the limit on copies in transit, the tiers' shares and
    /// patience, and the prefix cache.
    pub(crate) fn follow(&mut self, policy: Policy) {
        let preset = policy.preset();
        let SchedulerSettings { max_num_seqs, max_num_batched_tokens, steps_in_flight, .. } =
            self.scheduling;
        self.scheduling = SchedulerSettings {
            max_num_seqs,
            max_num_batched_tokens,
            steps_in_flight,
            ..preset.scheduler
        };
        let max_in_transit_mib = self.preemption.max_in_transit_mib;
        self.preemption = PreemptionSettings { max_in_transit_mib, ..preset.preemption };
        self.shedding = preset.shedding;
    }

    /// Switches to other settings of scheduling, preemption, shedding, shares and patience. These settings stay as they
    /// are: the number of steps in flight, the limit on copies in transit, and the prefix cache.
    pub(crate) fn adjust(&mut self, settings: &EngineSettings) {
        let steps_in_flight = self.scheduling.steps_in_flight;
        let max_in_transit_mib = self.preemption.max_in_transit_mib;
        self.scheduling = SchedulerSettings { steps_in_flight, ..settings.scheduler };
        self.preemption = PreemptionSettings { max_in_transit_mib, ..settings.preemption };
        (self.shedding, self.shares) = (settings.shedding, settings.shares);
        self.patience = settings.patience;
    }

    /// Whether the order of service serves higher tiers first (`scheduler.order = tier`).
    pub(crate) fn by_tier(&self) -> bool {
        self.scheduling.order == Order::Tier
    }

    /// Whether the tiers share, by fair queueing, the device time that is left to best-effort requests.
    pub(crate) fn tiers_are_fair(&self) -> bool {
        self.scheduling.fair_tiers && self.by_tier()
    }

    /// Whether the tenants of one tier share the tier's time by fair queueing.
    pub(crate) fn tenants_are_fair(&self) -> bool {
        self.scheduling.fair_tenants && self.by_tier()
    }

    /// Whether steps are as long as the slack of the streams allows, instead of having a fixed size.
    pub(crate) fn budget_by_slack(&self) -> bool {
        self.scheduling.budget == Budget::Slack
    }

    /// Whether requests that are expected to miss their deadline wait behind those that can meet it.
    pub(crate) fn judges_deadlines(&self) -> bool {
        self.by_tier() && self.budget_by_slack() && self.shedding.late != Late::Wait
    }

    /// Whether the scheduler measures how much of the device's time each tier uses, which admission needs for shedding
    /// by shares.
    pub(crate) fn counts_usage(&self) -> bool {
        self.shedding.form == SheddingForm::Share
    }

    /// Whether sequences that never ran may start now. With static batching, none start from when the first sequence of
    /// the batch has ended until all have.
    pub(crate) fn may_start(&self, batch_closed: bool) -> bool {
        self.scheduling.batching == Batching::Continuous || !batch_closed
    }

    /// Returns the number of prompt tokens that fit into a step with `decodes` decodes.
    pub(crate) fn prefill_room(&self, decodes: u32) -> u32 {
        let SchedulerSettings { max_num_batched_tokens, max_prefill_tokens, .. } = self.scheduling;
        let most = if max_prefill_tokens == 0 { u32::MAX } else { max_prefill_tokens };
        max_num_batched_tokens.saturating_sub(decodes).min(most)
    }

    /// Returns the largest chunk of one prompt in a step, tokens.
    pub(crate) fn longest_chunk(&self) -> u32 {
        let share = self.scheduling.long_prefill_percent / 100.0;
        let by_share = (f64::from(self.limits.max_model_len) * share) as u32;
        let set = |tokens: u32| if tokens == 0 { u32::MAX } else { tokens };
        set(self.scheduling.long_prefill_token_threshold).min(set(by_share))
    }

    /// Returns the number of tokens for which a sequence gets blocks at its start, even if a step needs fewer; 0 if
    /// blocks are allocated on demand. The sequence can become `longest` tokens long.
    pub(crate) fn allocated_up_front(&self, longest: u32) -> u32 {
        match self.scheduling.allocation {
            Allocation::OnDemand => 0,
            Allocation::UpFront => longest.min(self.limits.max_model_len),
        }
    }

    /// Returns the watermark of a tier: the number of KV blocks that must stay free after a waiting sequence of the
    /// tier got its blocks. Background has a watermark of its own if a request of a higher tier came lately.
    pub(crate) fn watermark_blocks(&self, tier: Tier, traffic: Traffic) -> u32 {
        let SchedulerSettings { watermark_percent, background_watermark_percent, .. } =
            self.scheduling;
        let percent = match tier {
            Tier::Background if traffic.higher_came(tier) => {
                watermark_percent.max(background_watermark_percent)
            }
            _ => watermark_percent,
        };
        (f64::from(self.limits.device_blocks) * percent / 100.0) as u32
    }

    /// Returns which part of its block table a preempted victim gives up.
    pub(crate) fn release(&self) -> Release {
        match self.preemption.victim_release {
            VictimRelease::All => Release::All,
            VictimRelease::Unshared => Release::Unshared,
            VictimRelease::Needed => {
                Release::Needed { unit: self.preemption.victim_release_blocks }
            }
        }
    }

    /// Whether a sequence with `preemptions` preemptions has reached the limit `preemption.max_per_request`.
    pub(crate) fn at_preemption_limit(&self, preemptions: u32) -> bool {
        preemptions >= self.preemption.max_per_request
    }

    /// Whether the next preemption of a sequence with `preemptions` preemptions ends its request.
    pub(crate) fn drops(&self, preemptions: u32) -> bool {
        self.preemption.mode == PreemptionMode::Drop
            || self.preemption.at_limit == AtLimit::Drop && self.at_preemption_limit(preemptions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::scheduler;

    #[test]
    fn a_new_policy_leaves_the_sizes_as_they_are() {
        let mut rules = scheduler(|e| {
            (e.scheduler.max_num_seqs, e.scheduler.max_num_batched_tokens) = (7, 77);
            (e.scheduler.steps_in_flight, e.preemption.max_in_transit_mib) = (1, 777);
        })
        .basis
        .rules;
        for policy in [Policy::Static, Policy::Throughput, Policy::Tiercel] {
            rules.follow(policy);
            let SchedulerSettings { max_num_seqs, max_num_batched_tokens, steps_in_flight, .. } =
                rules.scheduling;
            assert_eq!((max_num_seqs, max_num_batched_tokens, steps_in_flight), (7, 77, 1));
            assert_eq!(rules.preemption.max_in_transit_mib, 777);
        }
    }

    #[test]
    fn deadlines_are_judged_if_tiers_and_slack_rule_and_late_requests_do_not_just_wait() {
        let judges = |order, budget, late| {
            let rules = |e: &mut EngineSettings| {
                (e.scheduler.order, e.scheduler.budget, e.shedding.late) = (order, budget, late);
            };
            scheduler(rules).basis.rules.judges_deadlines()
        };
        assert!(judges(Order::Tier, Budget::Slack, Late::BestEffort));
        assert!(!judges(Order::Arrival, Budget::Slack, Late::BestEffort));
        assert!(!judges(Order::Tier, Budget::Fixed, Late::BestEffort));
        assert!(!judges(Order::Tier, Budget::Slack, Late::Wait));
    }

    #[test]
    fn victims_give_up_the_part_of_their_table_that_the_policy_says() {
        let release = |victim_release| {
            let s = scheduler(|e| {
                e.preemption.victim_release = victim_release;
                e.preemption.victim_release_blocks = 3;
            });
            s.basis.rules.release()
        };
        assert_eq!(release(VictimRelease::All), Release::All);
        assert_eq!(release(VictimRelease::Unshared), Release::Unshared);
        assert_eq!(release(VictimRelease::Needed), Release::Needed { unit: 3 });
    }
}
