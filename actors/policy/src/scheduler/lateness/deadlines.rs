//! Deadlines of first tokens: which requests can still be in time, and which are late.
//!
//! The prompts of as many requests as possible shall be in time, and the others are late. The rule is Moore and
//! Hodgson's (Moore, Management Science 15, 1968): take prompts in the order of their deadlines, and whenever the work
//! of the prompts taken so far does not fit before a deadline, give up the longest of these prompts. The work of higher
//! tiers' prompts counts as done first. If several tenants have prompts, the longest prompt of the tenant whose work
//! divided by the tenant's weight is the largest is given up.
//!
//! Prompts get a share of the device's time, and streams get the rest. The work of a prompt divided by this share is
//! the time of the whole steps that compute the prompt, with their decodes. So no further step is added to this time.
//!
//! A late request waits behind all requests of its tier that can be in time, and before lower tiers. Lateness is judged
//! again before each step until the deadline has passed, for at most [`JUDGED_MAX`] requests of a tier, so that a wrong
//! estimate costs little. A late request counts as in time again only if its first token has some steps of slack
//! ([`RECOVERY_STEPS`]): its prompt must be done so much before the deadline. Without this rule, requests with little
//! slack change places from step to step, and the device computes parts of prompts that are given up later. A late
//! request that has waited too long starves: it counts as in time for good (see
//! [`crate::scheduler::lateness::starvation`]).

use crate::Weight;
use crate::blocks::Salt;
use crate::scheduler::basis::Basis;
use crate::scheduler::budget::prefill_time::PrefillTime;
use crate::scheduler::budget::slack::ttft_deadline;
use crate::scheduler::cost::StepWork;
use crate::scheduler::lateness::flow::Flow;
use crate::scheduler::lateness::starvation::LateRequests;
use crate::scheduler::queue::Queue;
use crate::scheduler::queue::arrivals::Traffic;
use crate::scheduler::sequence::Sequence;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tiercel_device::{SeqId, Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();
/// Most requests of a tier whose lateness is judged before a step: those with the earliest deadlines.
const JUDGED_MAX: usize = 256;
/// Lower bound of the share of the device's time that the judgement of lateness expects for a tier's prompts.
const SHARE_MIN: f64 = 0.02;
/// Upper bound of the share of the device's time that prompts are expected to take from streams, in estimates of a
/// stream's time per token.
const PROMPTS_SHARE_MAX: f64 = 0.7;
/// Factor, by tier, on the share of the device's time that a tier's prompts are expected to have. It is above 1 because
/// streams with slack yield to prompts with a deadline, and below 1 for background, because higher-tier requests will
/// still come.
const PROMPTS_SHARE_FACTOR: [f64; TIERS] = [1.25, 1.25, 1.25, 0.7];
/// Time constant, by tier, us, of the average of the prompt work that arrives in higher tiers: about as long as
/// requests of the tier wait.
const TIME_CONSTANT_US: [f64; TIERS] = [3e6, 3e6, 3e6, 60e6];

/// Slack, in steps, that the first token of a late request needs before the request counts as in time again.
const RECOVERY_STEPS: f64 = 2.0;

/// Sort key of a request that waits for its first token: tier, deadline and id.
type Entry = (Tier, Timestamp, SeqId);

/// Deadlines of the requests that wait for their first token, and the requests that are late.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deadlines {
    /// Requests with a deadline and without a first token, in the order of tiers and deadlines. Before each step the
    /// first [`JUDGED_MAX`] of each tier are judged. A request leaves the set once its deadline has passed.
    entries: BTreeSet<Entry>,
    /// Requests that are late, and late requests that starve.
    pub(crate) late: LateRequests,
    /// Flow of requests through each tier.
    pub(crate) flow: [Flow; TIERS],
    /// Recent prompt demand as a share of the device's time: `arriving[a][b]` is the demand of tier b's prompts,
    /// averaged over the time constant of tier a.
    arriving: [[f64; TIERS]; TIERS],
    /// Time of the latest update of the recent prompt demand.
    at: Timestamp,
}

impl Deadlines {
    /// Adds an arriving prompt that takes `work_us` of device time to the recent prompt demand of its tier.
    fn arrives(&mut self, tier: Tier, work_us: f64, now: Timestamp) {
        for (shares, time_constant_us) in self.arriving.iter_mut().zip(TIME_CONSTANT_US) {
            let decay = (-(now.since_us(self.at) as f64) / time_constant_us).exp();
            shares.iter_mut().for_each(|share| *share *= decay);
            shares[tier.index()] += work_us / time_constant_us;
        }
        self.at = self.at.max(now);
    }

    /// Returns the recent prompt demand of `tiers` as a share of the device's time, averaged over the time constant of
    /// `tier`.
    fn taken_by(&self, tiers: &[Tier], tier: Tier, now: Timestamp) -> f64 {
        let decay = (-(now.since_us(self.at) as f64) / TIME_CONSTANT_US[tier.index()]).exp();
        let arriving = &self.arriving[tier.index()];
        tiers.iter().map(|tier| arriving[tier.index()]).sum::<f64>() * decay
    }

    /// Adds a request to those that are judged, if it has a deadline, and to the late ones, if it is late.
    fn insert(&mut self, sequence: &Sequence) {
        if let Some(deadline) = sequence.service.deadline {
            self.entries.insert((sequence.tier, deadline, sequence.id));
        }
        self.late.update(sequence);
    }

    /// Removes a request from the deadlines and from the late requests, because it got its first token, ended or moved
    /// to another tier.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        self.forget(sequence);
        self.late.leave(sequence);
    }

    /// Removes a request from those whose lateness is judged before each step.
    pub(crate) fn forget(&mut self, sequence: &Sequence) {
        if let Some(deadline) = sequence.service.deadline {
            self.entries.remove(&(sequence.tier, deadline, sequence.id));
        }
    }

    /// Returns the requests of a tier whose lateness is judged before the next step, earliest deadline first.
    fn of(&self, tier: Tier) -> impl Iterator<Item = Entry> + '_ {
        let all = (tier, Timestamp(0), SeqId(0))..=(tier, Timestamp(u64::MAX), SeqId(u64::MAX));
        self.entries.range(all).take(JUDGED_MAX).copied()
    }
}

/// The rest of a prompt with a deadline, of a waiting or a running sequence.
#[derive(Debug, Clone, Copy)]
struct Prompt {
    seq: SeqId,
    tenant: Salt,
    weight: Weight,
    /// Time until the prompt must be done, us; negative if this moment has passed. The prompt of a request that was
    /// late must be done [`RECOVERY_STEPS`] steps before its deadline, any other prompt at its deadline.
    until_deadline_us: f64,
    /// Device time that computing the rest of the prompt takes, us.
    work_us: f64,
}

/// A request whose lateness is judged before a step.
struct Judged {
    entry: Entry,
    /// Prompt work that the request still has; `None` if it needs no time now.
    prompt: Option<Prompt>,
    /// Whether the request is on hold.
    held: bool,
    /// Whether the request was late until now.
    was_late: bool,
}

impl Judged {
    /// Returns a request that is judged at `now`. A step takes `step_us`. Of a prompt that has not started, the share
    /// `uncached_share` is expected to be computed.
    fn new(
        entry: Entry,
        sequence: &Sequence,
        (basis, uncached_share, step_us): (&Basis, f64, f64),
        now: Timestamp,
    ) -> Judged {
        let (_, deadline, _) = entry;
        let margin_us = if sequence.service.late { RECOVERY_STEPS * step_us } else { 0.0 };
        let until_deadline_us = deadline.0 as f64 - now.0 as f64 - margin_us;
        Judged {
            entry,
            prompt: prompt(sequence, until_deadline_us, (basis, uncached_share)),
            held: sequence.held(),
            was_late: sequence.service.late,
        }
    }
}

/// Prompts that are in time, by tenant.
#[derive(Debug, Default)]
struct InTime(BTreeMap<Salt, OfTenant>);

/// Prompts of one tenant that are in time.
#[derive(Debug, Default)]
struct OfTenant {
    weight: Weight,
    /// Sum of the prompts' work, us.
    work_us: u64,
    /// Work of each prompt, us, and its sequence; the longest first.
    prompts: BinaryHeap<(u64, SeqId)>,
}

impl InTime {
    fn take(&mut self, prompt: Prompt) {
        let work_us = prompt.work_us as u64;
        let of_tenant = self.0.entry(prompt.tenant).or_default();
        of_tenant.weight = prompt.weight;
        of_tenant.work_us += work_us;
        of_tenant.prompts.push((work_us, prompt.seq));
    }

    /// Removes a prompt from those in time, because it will be late: the longest one of the tenant whose work divided
    /// by the tenant's weight is the largest.
    fn give_up(&mut self) -> Option<(u64, SeqId)> {
        let part = |of: &OfTenant| of.weight.virtual_time(of.work_us as f64);
        let most = self.0.values_mut().max_by(|a, b| part(a).total_cmp(&part(b)))?;
        let longest = most.prompts.pop()?;
        most.work_us -= longest.0;
        Some(longest)
    }
}

/// Returns the prompts that are late, in ascending order of their ids, and the total work of the prompts in time, us.
/// `prompts` are sorted by `until_deadline_us`, ascending. The work of higher tiers, `before_us`, goes first. A prompt
/// is in time if (`before_us` + work of the prompts in time up to and including this prompt, us) / `share` is at most
/// `until_deadline_us`; `share` is the share of the device's time that prompts get, 0 to 1.
fn split_late(
    prompts: impl Iterator<Item = Prompt>,
    before_us: f64,
    share: f64,
) -> (Vec<SeqId>, f64) {
    let (mut in_time, mut late) = (InTime::default(), Vec::new());
    let mut work_us = 0.0;
    for prompt in prompts {
        in_time.take(prompt);
        work_us += prompt.work_us;
        while (before_us + work_us) / share > prompt.until_deadline_us {
            let Some((longest_us, longest)) = in_time.give_up() else { break };
            work_us -= longest_us as f64;
            late.push(longest);
        }
    }
    late.sort_unstable();
    (late, work_us.max(0.0))
}

impl Deadlines {
    /// Adds the deadline of a request that arrives, and its prompt to the recent demand of its tier.
    pub(crate) fn enter(
        &mut self,
        sequence: &mut Sequence,
        (queue, basis): (&Queue, &Basis),
        now: Timestamp,
    ) {
        let work_us = basis.cost.prefill_us(sequence.prompt_len(), 0) * queue.uncached_share();
        self.arrives(sequence.tier, work_us, now);
        self.flow[sequence.tier.index()].entered(now);
        sequence.service.deadline = self.deadline(sequence, (queue, basis), now);
        self.insert(sequence);
    }

    /// Adds the deadline of a request again, if the request has no first token yet, after an operator moved the request
    /// to another tier.
    pub(crate) fn renew(&mut self, sequence: &mut Sequence, (queue, basis): (&Queue, &Basis)) {
        sequence.service.deadline = None;
        if sequence.first_token_at.is_none() {
            sequence.service.deadline = self.deadline(sequence, (queue, basis), sequence.arrival);
            self.insert(sequence);
        }
    }

    /// Returns the deadline of a request's first token: by its TTFT target, or, without one, early enough for the whole
    /// output to meet its E2E target. `None` without either target.
    fn deadline(
        &self,
        sequence: &Sequence,
        (queue, basis): (&Queue, &Basis),
        now: Timestamp,
    ) -> Option<Timestamp> {
        let targets = sequence.service.targets;
        if targets.ttft_ms.is_some() {
            return Some(ttft_deadline(sequence));
        }
        let e2e_us = targets.e2e_ms? * 1000.0;
        let target_us = targets.tpot_ms.map(|ms| ms * 1000.0);
        let pace_us = target_us
            .unwrap_or_else(|| self.untargeted_pace_us(sequence.tier, (queue, basis), now));
        let us = e2e_us - sequence.service.predicted_tokens * pace_us;
        Some(sequence.arrival + us.max(0.0) as u64)
    }

    /// Returns the expected time per token of a stream without a TPOT target, us. The estimate assumes that such a
    /// stream is left out of every other step while requests of higher tiers come. Otherwise it is in every step, which
    /// all streams share with the arriving prompts.
    fn untargeted_pace_us(
        &self,
        tier: Tier,
        (queue, basis): (&Queue, &Basis),
        now: Timestamp,
    ) -> f64 {
        let traffic = queue.traffic(now);
        if traffic.higher_came(tier) {
            return 2.0 * PrefillTime::now(queue, basis, traffic).step_us;
        }
        let mut streams = StepWork::default();
        for (_, stream) in queue.table.active().filter(|(_, stream)| stream.one_token_left()) {
            streams.add_decode(stream.planned_len());
        }
        let prompts = self.taken_by(&Tier::ALL, tier, now).min(PROMPTS_SHARE_MAX);
        basis.cost.step_us(&streams) / (1.0 - prompts)
    }

    /// Judges which requests are late before a step that begins at `now`, and moves them behind the requests of their
    /// tier that are in time, or back among these. A request on hold needs no time, and is late once its deadline has
    /// passed. Late requests that have waited too long (starve) are moved first.
    pub(crate) fn judge(&mut self, queue: &mut Queue, basis: &Basis, now: Timestamp) {
        if !basis.rules.judges_deadlines() {
            return;
        }
        let traffic = queue.traffic(now);
        self.advance_starving(queue, basis, traffic, now);
        if self.entries.is_empty() {
            return;
        }
        let time = PrefillTime::now(queue, basis, traffic);
        let uncached_share = queue.uncached_share();
        let mut before_us = 0.0;
        for tier in Tier::ALL {
            let taken = self.taken_by(&Tier::ALL[..tier.index()], tier, now);
            let most = (time.share() * PROMPTS_SHARE_FACTOR[tier.index()]).min(1.0);
            let share = (most - taken).max(SHARE_MIN);
            let judged = self.of(tier).filter_map(|entry| {
                let sequence = queue.table.get(entry.2)?;
                Some(Judged::new(entry, sequence, (basis, uncached_share, time.step_us), now))
            });
            let judged: Vec<Judged> = judged.collect();
            let mut prompts: Vec<Prompt> =
                judged.iter().filter_map(|request| request.prompt).collect();
            prompts.sort_by(|a, b| a.until_deadline_us.total_cmp(&b.until_deadline_us));
            let (late, work_us) = split_late(prompts.into_iter(), before_us, share);
            before_us += work_us;
            for Judged { entry, held, was_late, .. } in judged {
                let (_, deadline, seq) = entry;
                let is_late = (deadline <= now && held) || late.binary_search(&seq).is_ok();
                if is_late != was_late {
                    self.set_late(seq, is_late, queue, basis);
                }
                if deadline <= now {
                    self.entries.remove(&entry);
                }
            }
        }
    }

    /// Makes late requests that have waited too long (starve) count as in time for good. Their early arrival then puts
    /// them before later requests of their tier, priority and tenant.
    fn advance_starving(
        &mut self,
        queue: &mut Queue,
        basis: &Basis,
        traffic: Traffic,
        now: Timestamp,
    ) {
        for tier in Tier::ALL {
            let drain_us = queue.drain[tier.index()].wait_us(now);
            let balanced = self.flow[tier.index()].balanced();
            for seq in self.late.take_starving(tier, (drain_us, balanced), traffic, now) {
                if let Some(sequence) = queue.table.get(seq) {
                    self.forget(sequence);
                }
                self.set_late(seq, false, queue, basis);
            }
        }
    }

    /// Moves a request behind the requests of its tier that are in time, or back among them.
    fn set_late(&mut self, seq: SeqId, late: bool, queue: &mut Queue, basis: &Basis) {
        if queue.table.get(seq).is_none_or(|sequence| sequence.service.late == late) {
            return;
        }
        queue.set_late(seq, late, basis);
        if let Some(sequence) = queue.table.get(seq) {
            self.late.update(sequence);
        }
    }
}

/// Returns the prompt work that a sequence still has before its deadline; `None` if the sequence is on hold, or if its
/// first token is already being sampled, so that no prompt work is left.
fn prompt(
    sequence: &Sequence,
    until_deadline_us: f64,
    (basis, uncached_share): (&Basis, f64),
) -> Option<Prompt> {
    let waits = !sequence.held() && sequence.planned_output() == 0;
    let left = sequence.left_to_compute();
    let whole_us = basis.cost.prefill_us(left, sequence.planned_len() - left);
    let work_us = if sequence.has_started() { whole_us } else { whole_us * uncached_share };
    let (tenant, weight) = sequence.service.weighted_tenant();
    waits.then_some(Prompt { seq: sequence.id, tenant, weight, until_deadline_us, work_us })
}

#[cfg(test)]
mod tests;
