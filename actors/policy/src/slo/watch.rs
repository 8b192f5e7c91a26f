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
        /// Whether the server is to blame for the end. If so, every target that the request was still waiting for
        /// counts as missed.
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
    /// Returns the least of the headrooms (1 - p99 latency / target) of TTFT, TPOT and E2E.
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
mod tests {
    use super::*;

    const A: Salt = Salt([1; 16]);
    const B: Salt = Salt([2; 16]);
    const S: u64 = 1_000_000;

    fn promise(tier: Tier, tenant: Salt) -> Observation {
        let targets =
            SloTargets { ttft_ms: Some(200.0), e2e_ms: Some(5000.0), ..SloTargets::default() };
        Observation::Promised(Promise { tier, tenant, arrival: Timestamp(0), targets })
    }

    fn of(watch: &mut Watch, tier: Tier, tenant: Option<Salt>, now: Timestamp) -> GroupReport {
        let reports = watch.report(now);
        let found = reports.iter().find(|report| report.tier == tier && report.tenant == tenant);
        *found.unwrap_or_else(|| panic!("{tier:?} {tenant:?}"))
    }

    #[test]
    fn a_request_counts_once_as_late_however_it_ends() {
        let first = Observation::FirstToken { ttft_ms: 300.0 };
        let finished = Observation::Finished { tpot_ms: None, e2e_ms: 400.0 };
        let ends = [
            (vec![first, finished], 1, 0.0, 1.0),
            // Case without a first token: the only token of the output is a stop token.
            (vec![finished], 0, 0.0, 1.0),
            (vec![Observation::Gone { broken: true }], 0, 0.0, 0.0),
            (vec![Observation::Gone { broken: false }], 0, 0.0, 1.0),
        ];
        for (end, samples, ttft_met, e2e_met) in ends {
            let mut watch = Watch::new(60, 0);
            assert_eq!(watch.observe(SeqId(1), first, Timestamp(0)), None, "nothing was promised");
            watch.observe(SeqId(1), promise(Tier::Premium, A), Timestamp(0));
            let report = of(&mut watch, Tier::Premium, None, Timestamp(200_000));
            assert_eq!((report.ttft.overdue, report.ttft.compliance), (0, 1.0), "in time yet");
            let report = of(&mut watch, Tier::Premium, None, Timestamp(200_001));
            assert_eq!((report.ttft.overdue, report.ttft.compliance), (1, 0.0));
            assert_eq!((report.e2e.overdue, report.headroom() < 0.0), (0, true));
            for what in &end {
                let tier = watch.observe(SeqId(1), *what, Timestamp(300_000));
                assert_eq!(tier, Some(Tier::Premium));
            }
            let report = of(&mut watch, Tier::Premium, None, Timestamp(6 * S));
            assert_eq!((report.ttft.overdue, report.e2e.overdue), (0, 0), "{end:?}");
            assert_eq!((report.ttft.samples, report.ttft.compliance), (samples, ttft_met));
            assert_eq!(report.e2e.compliance, e2e_met, "{end:?}");
            assert!(report.headroom() < 0.0, "it shows in both: {end:?}");
            assert!(watch.live.is_empty());
        }
    }

    #[test]
    fn who_is_moved_counts_in_the_tier_it_is_in_then() {
        let mut watch = Watch::new(60, 4);
        watch.observe(SeqId(1), promise(Tier::Standard, A), Timestamp(0));
        watch.observe(SeqId(1), Observation::FirstToken { ttft_ms: 100.0 }, Timestamp(100_000));
        watch.observe(SeqId(1), promise(Tier::Premium, A), Timestamp(S));
        let late = of(&mut watch, Tier::Premium, None, Timestamp(6 * S));
        assert_eq!((late.ttft.overdue, late.e2e.overdue), (0, 1), "it had its first token");
        assert_eq!(of(&mut watch, Tier::Premium, Some(A), Timestamp(6 * S)).e2e.overdue, 1);
        let before = of(&mut watch, Tier::Standard, None, Timestamp(6 * S));
        assert_eq!((before.e2e.overdue, before.ttft.samples), (0, 1));
    }

    #[test]
    fn tenants_are_bounded_and_those_that_went_away_make_room() {
        let mut watch = Watch::new(60, 1);
        watch.observe(SeqId(1), promise(Tier::Standard, A), Timestamp(0));
        watch.observe(SeqId(2), promise(Tier::Standard, B), Timestamp(0));
        let tenants = |watch: &mut Watch, now| -> Vec<Salt> {
            watch.report(now).iter().filter_map(|report| report.tenant).collect()
        };
        assert_eq!(tenants(&mut watch, Timestamp(0)), [A], "there is room for one");
        assert_eq!(of(&mut watch, Tier::Standard, None, Timestamp(S)).ttft.overdue, 2);
        // Check that a request that came when there was no room for its tenant's windows does not count in windows that
        // are added later.
        let mut later = Watch::new(60, 1);
        later.observe(SeqId(1), promise(Tier::Standard, A), Timestamp(0));
        later.observe(SeqId(2), promise(Tier::Standard, B), Timestamp(0));
        later.observe(SeqId(1), Observation::Gone { broken: false }, Timestamp(0));
        assert_eq!(tenants(&mut later, Timestamp(0)), [A], "the last of it");
        later.observe(SeqId(3), promise(Tier::Standard, B), Timestamp(0));
        later.observe(SeqId(2), Observation::Gone { broken: true }, Timestamp(S));
        let report = of(&mut later, Tier::Standard, Some(B), Timestamp(70 * S));
        assert_eq!((report.ttft.overdue, report.ttft.compliance), (1, 0.0), "the third alone");
        assert_eq!(tenants(&mut later, Timestamp(900 * S)), [B], "which still runs");
        let end = Observation::Finished { tpot_ms: Some(20.0), e2e_ms: 900.0 };
        for seq in [SeqId(1), SeqId(2)] {
            watch.observe(seq, end, Timestamp(S));
        }
        assert_eq!(of(&mut watch, Tier::Standard, Some(A), Timestamp(S)).tpot.samples, 1);
        watch.observe(SeqId(3), promise(Tier::Standard, B), Timestamp(30 * S));
        assert_eq!(tenants(&mut watch, Timestamp(30 * S)), [A], "it was active lately");
        let last = of(&mut watch, Tier::Standard, Some(A), Timestamp(70 * S));
        assert_eq!((last.tpot.samples, last.tpot.p99_ms), (0, 0.0), "the last of it");
        assert_eq!(tenants(&mut watch, Timestamp(71 * S)), []);
        watch.observe(SeqId(4), promise(Tier::Standard, B), Timestamp(71 * S));
        assert_eq!(tenants(&mut watch, Timestamp(900 * S)), [B], "its request still runs");
    }
}
