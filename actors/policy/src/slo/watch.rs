//! Latencies of requests compared with the targets that they were promised, by tier and, if configured, by tenant.

use crate::blocks::Salt;
use crate::slo::window::{Unfinished, Window, WindowReport};
use std::collections::{BTreeMap, BTreeSet};
use tiercel_config::SloTargets;
use tiercel_device::{SeqId, Tier, Timestamp};

/// What a request was promised: its latency targets, with its tier, tenant and arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promise {
    /// Tier of the request.
    pub tier: Tier,
    /// Tenant of the request, in whose latency windows it counts.
    pub tenant: Salt,
    /// Time at which the request arrived.
    pub arrival: Timestamp,
    /// Latency targets of the request.
    pub targets: SloTargets,
}

/// Event of a request that matters for its latency targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Observation {
    /// The request arrived, or is promised other latency targets from now on.
    Promised(Promise),
    /// The request got its first token.
    FirstToken {
        /// Time to first token, ms.
        ttft_ms: f64,
    },
    /// The request ended with a complete output.
    Finished {
        /// TPOT: mean time per output token after the first, ms; `None` for an output of fewer than two tokens.
        tpot_ms: Option<f64>,
        /// E2E time: from the arrival to the end of the request, ms.
        e2e_ms: f64,
    },
    /// The request ended before its output was complete.
    Gone {
        /// Whether the server is to blame for the end. If so, the request's E2E target counts as missed, and its TTFT
        /// target too if no first token came. The TPOT target counts neither as met nor as missed.
        broken: bool,
    },
}

/// Sliding windows of the latencies of all requests of a tier, or of one tenant's requests in a tier.
#[derive(Clone)]
struct Group {
    ttft: Window,
    tpot: Window,
    e2e: Window,
    /// Number of requests in the group that have not ended.
    live: usize,
    /// Deadlines of unfinished requests, earliest first: `ttft_due` of first tokens that have not come, `e2e_due` of
    /// ends.
    ttft_due: BTreeSet<(Timestamp, SeqId)>,
    e2e_due: BTreeSet<(Timestamp, SeqId)>,
}

/// Percentiles, compliance and headroom of the latencies of a tier, or of one tenant in a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupReport {
    /// Tier of the requests.
    pub tier: Tier,
    /// Tenant of the requests; `None` if the report is about the whole tier.
    pub tenant: Option<Salt>,
    /// Latency statistics of TTFT (time to first token).
    pub ttft: WindowReport,
    /// Latency statistics of TPOT (mean time per output token).
    pub tpot: WindowReport,
    /// Latency statistics of E2E (time from arrival to end).
    pub e2e: WindowReport,
}

impl GroupReport {
    /// Returns the least of the headrooms of TTFT, TPOT and E2E. A headroom is 1 - the 99th percentile of
    /// `latency / target`.
    pub fn headroom(&self) -> f64 {
        self.ttft.headroom.min(self.tpot.headroom).min(self.e2e.headroom)
    }
}

/// Latency windows of all tiers and of some tenants. The number of watched requests is bounded, because the engine
/// accepts only so many.
pub struct Watch {
    length_s: u64,
    max_tenants: usize,
    tiers: [Group; Tier::ALL.len()],
    tenants: BTreeMap<(Tier, Salt), Group>,
    live: BTreeMap<SeqId, Live>,
}

#[derive(Debug, Clone, Copy)]
struct Live {
    promise: Promise,
    /// Whether the request got its first token.
    started: bool,
    /// Whether the request counts in the latency windows of its tenant: there was room for such windows when its
    /// targets were promised.
    watched: bool,
}

impl Group {
    fn new(length_s: u64) -> Group {
        let window = Window::new(length_s);
        Group {
            ttft: window.clone(),
            tpot: window.clone(),
            e2e: window,
            live: 0,
            ttft_due: BTreeSet::new(),
            e2e_due: BTreeSet::new(),
        }
    }

    fn promised(&mut self, seq: SeqId, promise: &Promise, started: bool) {
        self.live += 1;
        if let Some(due) = due(promise, promise.targets.ttft_ms).filter(|_| !started) {
            self.ttft_due.insert((due, seq));
        }
        if let Some(due) = due(promise, promise.targets.e2e_ms) {
            self.e2e_due.insert((due, seq));
        }
    }

    /// Removes a request from the group. Returns the deadlines that it was still waiting for: of its first token, and
    /// of its end.
    fn withdrawn(&mut self, seq: SeqId, promise: &Promise) -> [Option<Timestamp>; 2] {
        self.live = self.live.saturating_sub(1);
        let targets = &promise.targets;
        let waited = |dues: &mut BTreeSet<_>, target_ms| {
            due(promise, target_ms).filter(|due| dues.remove(&(*due, seq)))
        };
        [waited(&mut self.ttft_due, targets.ttft_ms), waited(&mut self.e2e_due, targets.e2e_ms)]
    }

    fn observe(&mut self, seq: SeqId, promise: &Promise, what: Observation, at: Timestamp) {
        let targets = &promise.targets;
        match what {
            Observation::Promised(_) => self.promised(seq, promise, false),
            Observation::FirstToken { ttft_ms } => {
                if let Some(due) = due(promise, targets.ttft_ms) {
                    self.ttft_due.remove(&(due, seq));
                }
                self.ttft.add(at, ttft_ms, targets.ttft_ms);
            }
            Observation::Finished { tpot_ms, e2e_ms } => {
                let [first_due, _] = self.withdrawn(seq, promise);
                // A request may finish without a first token, if its only token was a stop token. It missed its TTFT
                // target if the deadline has passed.
                if first_due.is_some_and(|due| due < at) {
                    self.ttft.add_missed(at, unfinished(promise, targets.ttft_ms, at));
                }
                if let Some(tpot_ms) = tpot_ms {
                    self.tpot.add(at, tpot_ms, targets.tpot_ms);
                }
                self.e2e.add(at, e2e_ms, targets.e2e_ms);
            }
            Observation::Gone { broken } => {
                let waited = self.withdrawn(seq, promise);
                let waits = [(&mut self.ttft, targets.ttft_ms), (&mut self.e2e, targets.e2e_ms)];
                for ((window, target_ms), due) in waits.into_iter().zip(waited) {
                    // A client that leaves after a deadline has passed was served late, so the target counts as missed.
                    if due.is_some_and(|due| broken || due < at) {
                        window.add_missed(at, unfinished(promise, target_ms, at));
                    }
                }
            }
        }
    }

    fn is_idle(&mut self, now: Timestamp) -> bool {
        let Group { ttft, tpot, e2e, live, .. } = self;
        *live == 0 && [ttft, tpot, e2e].into_iter().all(|window| window.is_empty(now))
    }

    fn report(
        &mut self,
        (tier, tenant): (Tier, Option<Salt>),
        live: &BTreeMap<SeqId, Live>,
        now: Timestamp,
    ) -> GroupReport {
        let Group { ttft, tpot, e2e, ttft_due, e2e_due, .. } = self;
        GroupReport {
            tier,
            tenant,
            ttft: ttft.report(now, overdue(ttft_due, live, |targets| targets.ttft_ms, now)),
            tpot: tpot.report(now, std::iter::empty()),
            e2e: e2e.report(now, overdue(e2e_due, live, |targets| targets.e2e_ms, now)),
        }
    }
}

fn due(promise: &Promise, target_ms: Option<f64>) -> Option<Timestamp> {
    let after_us = (target_ms? * 1000.0) as u64;
    Some(Timestamp(promise.arrival.0.saturating_add(after_us)))
}

/// Returns how long an unfinished request has taken so far, together with its target `target_ms`; `None` without a
/// target.
fn unfinished(promise: &Promise, target_ms: Option<f64>, now: Timestamp) -> Option<Unfinished> {
    Some(Unfinished { so_far_ms: now.since_ms(promise.arrival), target_ms: target_ms? })
}

/// Iterates over the unfinished requests whose deadline has passed. A deadline of exactly `now` has not passed: the
/// request may be about to meet it.
fn overdue<'a>(
    dues: &'a BTreeSet<(Timestamp, SeqId)>,
    live: &'a BTreeMap<SeqId, Live>,
    target_ms: impl Fn(&SloTargets) -> Option<f64> + 'a,
    now: Timestamp,
) -> impl Iterator<Item = Unfinished> + 'a {
    dues.range(..(now, SeqId(0))).filter_map(move |(_, seq)| {
        let promise = live.get(seq)?.promise;
        unfinished(&promise, target_ms(&promise.targets), now)
    })
}

impl Watch {
    /// Creates latency windows of `length_s` seconds for each tier and for at most `max_tenants` pairs of tenant and
    /// tier.
    pub fn new(length_s: u64, max_tenants: usize) -> Watch {
        Watch {
            length_s,
            max_tenants,
            tiers: std::array::from_fn(|_| Group::new(length_s)),
            tenants: BTreeMap::new(),
            live: BTreeMap::new(),
        }
    }

    /// Records an event of a request. Returns the request's tier; `None` if the request is unknown, because it was
    /// never promised targets or has ended.
    pub fn observe(&mut self, seq: SeqId, what: Observation, at: Timestamp) -> Option<Tier> {
        if let Observation::Promised(promise) = what {
            self.promised(seq, promise);
            return Some(promise.tier);
        }
        let live = self.live.get_mut(&seq)?;
        live.started |= matches!(what, Observation::FirstToken { .. });
        let live = *live;
        let promise = live.promise;
        for group in self.groups(&live) {
            group.observe(seq, &promise, what, at);
        }
        if !matches!(what, Observation::FirstToken { .. }) {
            self.live.remove(&seq);
        }
        Some(promise.tier)
    }

    /// Computes the latency statistics of the tiers, then of tenants that are or were lately active. A tenant that is
    /// no longer active gets one last, empty report.
    pub fn report(&mut self, now: Timestamp) -> Vec<GroupReport> {
        let live = &self.live;
        let tiers = Tier::ALL.into_iter().zip(&mut self.tiers);
        let tiers = tiers.map(|(tier, group)| ((tier, None), group));
        let tenants = self.tenants.iter_mut();
        let tenants = tenants.map(|((tier, tenant), group)| ((*tier, Some(*tenant)), group));
        let reports = tiers.chain(tenants).map(|(of, group)| group.report(of, live, now)).collect();
        self.tenants.retain(|_, group| !group.is_idle(now));
        reports
    }

    fn promised(&mut self, seq: SeqId, promise: Promise) {
        let before = self.live.get(&seq).copied();
        if let Some(before) = before {
            for group in self.groups(&before) {
                group.withdrawn(seq, &before.promise);
            }
        }
        let started = before.is_some_and(|before| before.started);
        self.make_room(&promise);
        let watched = self.tenants.contains_key(&(promise.tier, promise.tenant));
        let live = Live { promise, started, watched };
        self.live.insert(seq, live);
        for group in self.groups(&live) {
            group.promised(seq, &promise, started);
        }
    }

    /// Adds latency windows for the tenant in the tier, if it has none there and the limit on pairs of tenant and tier
    /// allows it.
    fn make_room(&mut self, promise: &Promise) {
        let key = (promise.tier, promise.tenant);
        if self.tenants.len() < self.max_tenants && !self.tenants.contains_key(&key) {
            self.tenants.insert(key, Group::new(self.length_s));
        }
    }

    fn groups(&mut self, live: &Live) -> impl Iterator<Item = &mut Group> {
        let Promise { tier, tenant, .. } = live.promise;
        let tenant = self.tenants.get_mut(&(tier, tenant)).filter(|_| live.watched);
        std::iter::once(&mut self.tiers[tier.index()]).chain(tenant)
    }
}

#[cfg(test)]
mod tests;
