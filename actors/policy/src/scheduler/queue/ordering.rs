//! Ordering: the priority key of each sequence, from which its rank in the order of service is made, and how ageing
//! changes the key.

use crate::admission::Patience;
use crate::scheduler::basis::Basis;
use crate::scheduler::queue::Queue;
use crate::scheduler::queue::priority_key::PriorityKey;
use crate::scheduler::queue::sequence_table::SequenceTable;
use crate::scheduler::queue::service_class::ServiceClass;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::Sequence;
use tiercel_config::{AgeingCap, AtLimit, Order};
use tiercel_device::{SeqId, Tier, Timestamp};

impl Queue {
    /// Gives a new sequence its predicted output length, its tags in the fair queues and its priority key.
    pub(crate) fn place_new(&mut self, sequence: &mut Sequence, basis: &Basis) {
        let (tier, prompt) = (sequence.tier, sequence.prompt_len());
        let predicted = self.predictor.predict(tier, prompt, sequence.text.max_tokens);
        sequence.service.predicted_tokens = predicted;
        // A new sequence enters both kinds of fair queue of tenants (by tokens and by device time), even if the present
        // policy ignores them, because an operator may change the policy while the sequence waits.
        let tokens = f64::from(prompt) + predicted;
        sequence.service.token_tag =
            self.token_queue.arrive(sequence.service.weighted_tenant(), tokens);
        self.tenants.enter(sequence, tier, &basis.cost);
        promise(sequence, basis);
        self.place(sequence, basis);
    }

    /// Gives a sequence that moved to another tier the latency targets of that tier, its patience unless the request
    /// stated its own, and a new priority key.
    pub(crate) fn place_in_new_tier(&mut self, sequence: &mut Sequence, basis: &Basis) {
        promise(sequence, basis);
        if !sequence.service.patience.stated {
            let stated = (None, sequence.service.patience.before_us);
            sequence.service.patience = Patience::of(&basis.rules.patience, sequence.tier, stated);
        }
        self.place_again(sequence, basis);
    }

    /// Gives a preempted sequence, or one whose tier or priority changed, a new priority key. If the sequence has no
    /// first token and is not in the fair queue of its tier's tenants (because its tier changed, or it aged), moves it
    /// there before.
    pub(crate) fn place_again(&mut self, sequence: &mut Sequence, basis: &Basis) {
        let tier = sequence.tier;
        self.tenants.enter(sequence, tier, &basis.cost);
        self.place(sequence, basis);
    }

    /// Sets the priority key and the time of ageing of a sequence, and whether it is best effort, from its tier, its
    /// priority, its targets, its tags in the fair queues and the settings in effect. Drops tiers gained by ageing; the
    /// next `age` gives them back if the sequence waits.
    pub(crate) fn place(&self, sequence: &mut Sequence, basis: &Basis) {
        let rules = &basis.rules;
        sequence.service.best_effort = is_best_effort(sequence, rules);
        sequence.service.key = self.key(sequence, rules);
        sequence.service.ages_at = ages_at(sequence, 1, rules);
    }

    fn key(&self, sequence: &Sequence, rules: &Rules) -> PriorityKey {
        let (order, tiered) = (rules.scheduling.order, rules.by_tier());
        let number = match order {
            Order::Tier if rules.scheduling.fair_tenants => sequence.service.tenant_tag.start,
            Order::Arrival | Order::Tier => 0.0,
            Order::Shortest => sequence.service.predicted_tokens,
            Order::Fair => sequence.service.token_tag,
        };
        let served_as = sequence.tier_before_ageing();
        let class = match tiered {
            true => ServiceClass::new(sequence.tier, served_as, rules.tiers_are_fair()),
            false => ServiceClass::UNTIERED,
        };
        // Among late requests the shortest prompt goes first, so that as many as possible are served soon, unless
        // several tenants wait.
        let tenants_share = || rules.scheduling.fair_tenants && self.tenants.others_wait(sequence);
        let shortest = tiered && sequence.service.late && !tenants_share();
        let often = rules.at_preemption_limit(sequence.preemptions);
        PriorityKey {
            class,
            priority: if tiered { sequence.service.priority } else { 0 },
            late: sequence.service.late,
            number: if shortest { u64::from(sequence.prompt_len()) } else { number as u64 },
            promoted: often && rules.preemption.at_limit == AtLimit::Promote,
        }
    }

    /// Gives all sequences new priority keys, because an operator has changed the policy or its settings. The sequences
    /// keep their latency targets. Under rules that do not judge lateness, no sequence is late.
    pub(crate) fn place_all(&mut self, basis: &Basis) {
        let empty = SequenceTable::new(basis.rules.preemption.resume);
        let mut all = std::mem::replace(&mut self.table, empty);
        for mut sequence in all.drain() {
            sequence.service.late &= basis.rules.judges_deadlines();
            self.place(&mut sequence, basis);
            self.table.insert(sequence);
        }
    }

    /// Marks a request as late or in time, which moves it behind the requests of its tier that are in time, or back
    /// among them. The request loses the tiers that it gained by ageing; if it waits, the next ageing gives them back.
    pub(crate) fn set_late(&mut self, seq: SeqId, late: bool, basis: &Basis) {
        let Some(mut sequence) = self.table.remove(seq) else { return };
        sequence.service.late = late;
        self.place(&mut sequence, basis);
        self.table.insert(sequence);
    }

    /// Ageing: lifts waiting sequences by one effective tier for each `scheduler.ageing_s` since their arrival, up to
    /// the cap.
    pub(crate) fn age(&mut self, now: Timestamp, basis: &Basis) {
        while let Some(seq) = self.table.aged(now) {
            let Some(mut sequence) = self.table.remove(seq) else { return };
            let class = sequence.service.key.class.aged();
            sequence.service.key.class = class;
            self.tenants.enter(&mut sequence, class.tier(), &basis.cost);
            if basis.rules.scheduling.fair_tenants {
                sequence.service.key.number = sequence.service.tenant_tag.start as u64;
            }
            let gained = sequence.tier_before_ageing().index() - class.tier().index();
            sequence.service.ages_at = ages_at(&sequence, gained as u64 + 1, &basis.rules);
            self.table.insert(sequence);
        }
    }
}

/// Promises a sequence the latency targets in effect: those of its tier for a prompt of its length, replaced by those
/// that the request states, as far as it may.
fn promise(sequence: &mut Sequence, basis: &Basis) {
    let of_tier = basis.targets.of(sequence.tier).of_prompt(sequence.prompt_len());
    let may_tighten = sequence.service.may_tighten.unwrap_or(basis.targets.requests_may_tighten);
    sequence.service.targets = of_tier.with_stated(&sequence.service.stated_targets, may_tighten);
}

/// Whether a sequence is best effort: it has neither a TTFT nor a TPOT target, and tiers share the time left to such
/// requests.
fn is_best_effort(sequence: &Sequence, rules: &Rules) -> bool {
    let targets = &sequence.service.targets;
    rules.tiers_are_fair()
        && sequence.tier > Tier::System
        && targets.ttft_ms.is_none()
        && targets.tpot_ms.is_none()
}

/// Returns when a waiting sequence gains a tier by ageing for the `times`-th time; `None` if ageing is off or cannot
/// lift it any higher.
fn ages_at(sequence: &Sequence, times: u64, rules: &Rules) -> Option<Timestamp> {
    let span_us = (rules.scheduling.ageing_s * 1e6) as u64;
    let highest = match rules.scheduling.ageing_cap {
        AgeingCap::Standard => Tier::Standard,
        AgeingCap::Premium => Tier::Premium,
    };
    let gains = rules.by_tier() && span_us > 0 && sequence.service.key.class.tier() > highest;
    gains.then(|| Timestamp(sequence.arrival.0.saturating_add(span_us.saturating_mul(times))))
}

#[cfg(test)]
mod tests;
