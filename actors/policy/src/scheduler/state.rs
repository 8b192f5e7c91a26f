//! The scheduler's state, as parts that each own one concept, and the functions that report on it.

use crate::accounting::{Ledger, UsageReport};
use crate::admission::{Capacity, ShareReport};
use crate::scheduler::basis::Basis;
use crate::scheduler::budget::prefill_time::capacity;
use crate::scheduler::budget::slack_reserve::SlackReserve;
use crate::scheduler::budget::target_source::TargetSource;
use crate::scheduler::cost::{CostError, CostModel};
use crate::scheduler::counters::{Census, Counters};
use crate::scheduler::lateness::deadlines::Deadlines;
use crate::scheduler::memory::Memory;
use crate::scheduler::memory::reservation::Reservations;
use crate::scheduler::outbox::Outbox;
use crate::scheduler::pipeline::Pipeline;
use crate::scheduler::plan::retry::Retry;
use crate::scheduler::queue::Queue;
use crate::scheduler::queue::length_predictor::PredictionError;
use crate::scheduler::queue::tier_usage::TierUsage;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::suspects::Suspects;
use crate::slo::{Promise, Retargeted, Targets};
use tiercel_config::{EngineSettings, Policy};
use tiercel_device::{DeviceInfo, DeviceProfile, SeqId, Ticket, Timestamp};

/// State of the scheduler: every live sequence, and the cycle of planning a step, granting its blocks and running it.
#[derive(Debug)]
pub(crate) struct State {
    /// Rules, cost model and latency targets in effect.
    pub(crate) basis: Basis,
    /// Settings from which latency targets are derived, again if the device's speed changes.
    pub(crate) target_source: TargetSource,
    /// All live sequences, in order of service.
    pub(crate) queue: Queue,
    /// Deadlines of first tokens, and requests that are late.
    pub(crate) deadlines: Deadlines,
    /// Slack reserve: slack that premium streams shall keep while several tiers have requests.
    pub(crate) reserve: SlackReserve,
    /// The scheduler's view of the device pool: reservations, mirroring and free blocks.
    pub(crate) memory: Memory,
    /// Pipeline: steps in flight, and the step that is being planned.
    pub(crate) pipeline: Pipeline,
    /// Which sequences the next plan considers, and for how many waiting ones it may request blocks; adjusted by
    /// denials and empty plans.
    pub(crate) retry: Retry,
    /// Suspects: sequences of a failed step, which run alone until they are cleared.
    pub(crate) suspects: Suspects,
    /// Reports to the block store and the device that wait for the next step request and the next batch.
    pub(crate) outbox: Outbox,
    /// Device time that each tier used lately.
    pub(crate) usage: TierUsage,
    /// Tokens and device time that each tier and each tenant had, and the device time that was due to them.
    pub(crate) ledger: Ledger,
    /// Whether the static batch is closed to new sequences, because one of its sequences has ended.
    pub(crate) batch_closed: bool,
    /// Number of times that sequences got their blocks (starts and resumes) so far.
    pub(crate) opened: u64,
    /// Totals of steps, preemptions, copies and tokens since the start of the scheduler.
    pub(crate) counters: Counters,
}

impl State {
    /// Creates a scheduler without sequences for a device.
    pub(crate) fn new(
        settings: &EngineSettings,
        info: &DeviceInfo,
        profile: DeviceProfile,
    ) -> State {
        let depth = info.max_steps_in_flight.min(settings.scheduler.steps_in_flight);
        let rules = Rules::new(settings, info);
        let cost = CostModel::new(profile, info);
        let target_source = TargetSource::new(&settings.slo, info);
        let targets = target_source.targets(&cost, &rules.scheduling);
        let reservations = Reservations::new(&settings.reservation, info.device_blocks);
        State {
            queue: Queue::new(&rules),
            basis: Basis { rules, cost, targets },
            target_source,
            deadlines: Deadlines::default(),
            reserve: SlackReserve::new(settings.slo.assurance()),
            memory: Memory::new(reservations),
            pipeline: Pipeline::new(depth),
            retry: Retry::new(),
            suspects: Suspects::default(),
            outbox: Outbox::default(),
            usage: TierUsage::default(),
            ledger: Ledger::default(),
            batch_closed: false,
            opened: 0,
            counters: Counters::default(),
        }
    }

    /// Switches to a named policy, which the next plan follows. The largest numbers of sequences and of tokens in a
    /// step, the number of steps in flight, the limit on copies in transit, shares, patience, reservations, latency
    /// targets and the prefix cache stay as they are.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.basis.rules.follow(policy);
        self.rules_changed();
    }

    /// Switches to other settings of scheduling, preemption, shedding, shares, patience, reservations and latency
    /// targets, which the next plan follows. Live sequences keep the targets that they were promised. Returns the
    /// change of the targets in effect, if the settings of targets differ.
    pub(crate) fn adjust(&mut self, settings: &EngineSettings) -> Option<Retargeted> {
        self.basis.rules.adjust(settings);
        self.queue.tiers.set_shares(&settings.shares);
        let device_blocks = self.basis.rules.limits.device_blocks;
        self.memory.reservations = Reservations::new(&settings.reservation, device_blocks);
        self.reserve.set_assurance(settings.slo.assurance());
        let followed = self.target_source.follow(&settings.slo, &self.basis);
        let retargeted = followed.map(|(targets, unreachable)| {
            let before = std::mem::replace(&mut self.basis.targets, targets);
            Retargeted { before, targets, by_operator: true, unreachable }
        });
        self.rules_changed();
        retargeted
    }

    fn rules_changed(&mut self) {
        if !self.basis.rules.judges_deadlines() {
            self.deadlines.late.clear();
        }
        self.queue.place_all(&self.basis);
        self.batch_closed = false;
        self.retry.allow_replan();
    }

    /// Returns the latency targets in effect.
    pub(crate) fn targets(&self) -> Targets {
        self.basis.targets
    }

    /// Derives the latency targets again if the mean correction of step times has changed by a tenth or more (see
    /// [`TargetSource::derive_again`]). Live sequences keep the targets that they were promised. Returns the change of
    /// the targets, if they changed.
    pub(crate) fn derive_targets_anew(&mut self) -> Option<Retargeted> {
        let targets = self.target_source.derive_again(&self.basis)?;
        let before = std::mem::replace(&mut self.basis.targets, targets);
        let retargeted =
            Retargeted { before, targets, by_operator: false, unreachable: Vec::new() };
        (before != targets).then_some(retargeted)
    }

    /// Returns what a live sequence was promised: its tier, tenant, arrival and latency targets.
    pub(crate) fn promise(&self, seq: SeqId) -> Option<Promise> {
        let sequence = self.queue.table.get(seq)?;
        let (tenant, targets) = (sequence.service.tenant, sequence.service.targets);
        Some(Promise { tier: sequence.tier, tenant, arrival: sequence.arrival, targets })
    }

    /// Returns the errors of predicted output lengths.
    pub(crate) fn prediction_error(&self) -> PredictionError {
        self.queue.predictor.error()
    }

    /// Returns the errors of predicted step and copy times.
    pub(crate) fn cost_error(&self) -> CostError {
        self.basis.cost.error()
    }

    /// Whether another plan may find more to do: an event came since the last plan, the next plan considers other
    /// sequences, or the first sequence of the next plan may ignore the reservations of other tiers.
    pub(crate) fn may_replan(&self) -> bool {
        self.retry.may_replan
    }

    /// Returns the report for admission: device time that is available to prompts, and the backlog of prompts.
    pub(crate) fn capacity(&self, now: Timestamp) -> Capacity {
        capacity(&self.queue, &self.basis, self.share_report(), now)
    }

    /// Returns the report for shedding by shares: server load, and each tier's used and due share of the device's time.
    fn share_report(&self) -> ShareReport {
        let rules = &self.basis.rules;
        let ratio = |part: u32, whole: u32| f64::from(part) / f64::from(whole.max(1));
        let blocks = rules.limits.device_blocks;
        let in_use = ratio(blocks.saturating_sub(self.memory.free_blocks), blocks);
        let running = self.queue.table.active_len() as u32;
        let load = in_use.max(ratio(running, rules.scheduling.max_num_seqs));
        ShareReport {
            // Without running sequences report a load of 0, because the known number of free blocks leaves out blocks
            // of ended sequences until the block store's next answer.
            load: if running == 0 { 0.0 } else { load },
            had: self.usage.shares(),
            due: rules.shares.percent().map(|percent| percent / 100.0),
        }
    }

    /// Returns the largest number of sequences that a step may have.
    pub(crate) fn max_num_seqs(&self) -> u32 {
        self.basis.rules.scheduling.max_num_seqs
    }

    /// Returns the totals of steps, preemptions, copies and tokens since the start of the scheduler.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the tokens and the device time that each tier and each tenant had, and the device time that was due to
    /// them.
    pub(crate) fn usage_report(&self, now: Timestamp) -> UsageReport {
        self.ledger.report(now)
    }

    /// Returns the phase of a live sequence; `None` if the sequence is unknown.
    pub(crate) fn phase(&self, seq: SeqId) -> Option<Phase> {
        self.queue.table.get(seq).map(|sequence| sequence.phase)
    }

    /// Returns the ids of all live sequences: first active ones (which hold KV blocks), then waiting ones, each group
    /// oldest first.
    pub(crate) fn live(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.queue.table.iter().map(|sequence| sequence.id)
    }

    /// Whether any live sequence is not on hold.
    pub(crate) fn has_work(&self) -> bool {
        self.queue.table.iter().any(|sequence| !sequence.held())
    }

    /// Returns the sequence that a ticket names; `None` if it ended, or was preempted since the ticket was made.
    pub(crate) fn current(&self, ticket: Ticket) -> Option<&Sequence> {
        let named = self.queue.table.get(ticket.seq);
        named.filter(|sequence| sequence.kv.epoch == ticket.epoch)
    }

    /// Whether the scheduler has nothing left to do: no sequence is live, no ended one must still be reported to the
    /// block store, and no step is planned or in flight.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue.table.is_empty() && self.outbox.released.is_empty() && self.pipeline.is_idle()
    }

    /// Counts the sequences that wait for their start, those that run and those that are preempted.
    pub(crate) fn census(&self) -> Census {
        let (waiting, not_started) = self.queue.table.waiting_count();
        let preempted = waiting as u32 - not_started.iter().sum::<u32>();
        let mut census = Census { waiting: not_started, running: 0, preempted };
        for (_, sequence) in self.queue.table.active() {
            match sequence.phase {
                Phase::Running => census.running += 1,
                Phase::Opening if !sequence.has_started() => {
                    census.waiting[sequence.tier.index()] += 1;
                }
                Phase::Waiting | Phase::Opening | Phase::Preempting => census.preempted += 1,
            }
        }
        census
    }
}

#[cfg(test)]
mod tests;
