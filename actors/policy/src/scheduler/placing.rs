//! Where the policy's order puts a sequence, and how waiting changes that.

use crate::scheduler::rank::Place;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use crate::slo::Promise;
use tiercel_config::{AgeingCap, AtLimit, Order};
use tiercel_device::{SeqId, Tier, Timestamp};

impl Scheduler {
    /// Places a new sequence in the order of service.
    pub(crate) fn place_new(&mut self, sequence: &mut Sequence) {
        let (tier, prompt) = (sequence.tier, sequence.prompt_len());
        sequence.predicted_tokens = self.predictor.predict(tier, prompt, sequence.max_tokens());
        // Kept up to date whatever the order is, so that the operator may change it.
        let tokens = f64::from(prompt) + sequence.predicted_tokens;
        sequence.start_tag = self.fair.arrive(sequence.tenant, tokens);
        self.take_turn(sequence, tier);
        self.place(sequence);
    }

    /// What a live sequence is promised.
    pub fn promise(&self, seq: SeqId) -> Option<Promise> {
        let Sequence { tier, tenant, arrival, targets, .. } = *self.sequences.get(seq)?;
        Some(Promise { tier, tenant, arrival, targets })
    }

    /// Places a sequence by its tier and priority as they are.
    pub(crate) fn place(&self, sequence: &mut Sequence) {
        let of_tier = self.slo.of(sequence.tier).of_prompt(sequence.prompt_len());
        sequence.targets = of_tier.asked(&sequence.asked, self.slo.requests_may_tighten);
        let order = self.settings.order;
        let tiered = order == Order::Tier;
        let key = match order {
            Order::Tier if self.settings.fair_tenants => sequence.turn.tag,
            Order::Arrival | Order::Tier => 0.0,
            Order::Shortest => sequence.predicted_tokens,
            Order::Fair => sequence.start_tag,
        };
        sequence.promised_nothing = self.is_promised_nothing(sequence);
        let level = if tiered { sequence.served_as().index() as u8 } else { 0 };
        let shares = self.divides() && level == Tier::Background.index() as u8;
        // Of late ones as many as possible are done soon.
        let shortest = tiered && sequence.late && !self.others_take_turns(sequence);
        let often = sequence.preemptions >= self.preemption.max_per_request;
        sequence.place = Place {
            level,
            priority: if tiered { sequence.priority } else { 0 },
            late: sequence.late,
            key: if shortest { u64::from(sequence.prompt_len()) } else { key as u64 },
            promoted: often && self.preemption.at_limit == AtLimit::Promote,
            rest: if shares { sequence.tier.index() as u8 } else { 0 },
        };
        sequence.ages_at = self.ages_at(sequence, 1);
    }

    /// Places everybody anew.
    pub(crate) fn place_all(&mut self) {
        let mut all = std::mem::replace(
            &mut self.sequences,
            crate::scheduler::roster::Roster::new(self.preemption.resume),
        );
        for mut sequence in all.drain() {
            self.place(&mut sequence);
            self.sequences.insert(sequence);
        }
    }

    /// When a sequence that waits will have waited `times` times as long as it takes to gain a tier; `None`
    /// if that gains it nothing.
    fn ages_at(&self, sequence: &Sequence, times: u64) -> Option<Timestamp> {
        let span_us = (self.settings.ageing_s * 1e6) as u64;
        let best = match self.settings.ageing_cap {
            AgeingCap::Standard => Tier::Standard,
            AgeingCap::Premium => Tier::Premium,
        };
        let gains = self.settings.order == Order::Tier
            && span_us > 0
            && usize::from(sequence.place.level) > best.index();
        gains.then(|| Timestamp(sequence.arrival.0.saturating_add(span_us.saturating_mul(times))))
    }

    /// Sequences that have waited long enough gain a tier.
    pub(crate) fn age(&mut self, now: Timestamp) {
        while let Some(seq) = self.sequences.timed_out(now) {
            let Some(mut sequence) = self.sequences.remove(seq) else { return };
            sequence.place.level -= 1;
            sequence.place.rest = 0;
            let level = Tier::ALL[usize::from(sequence.place.level)];
            self.take_turn(&mut sequence, level);
            if self.settings.fair_tenants {
                sequence.place.key = sequence.turn.tag as u64;
            }
            let from = sequence.served_as().index() as u64;
            let gained = from - u64::from(sequence.place.level);
            sequence.ages_at = self.ages_at(&sequence, gained + 1);
            self.sequences.insert(sequence);
        }
    }
}
