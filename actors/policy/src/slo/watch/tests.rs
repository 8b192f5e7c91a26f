//! Tests of the comparison of latencies with the targets that were promised.

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

#[test]
fn a_request_that_ends_without_a_first_token_missed_its_target_only_after_the_deadline() {
    let finished = Observation::Finished { tpot_ms: None, e2e_ms: 200.0 };
    for end in [finished, Observation::Gone { broken: false }] {
        // The TTFT target is 200 ms, from an arrival at 0.
        for (at, compliance) in [(200_000, 1.0), (200_001, 0.0)] {
            let mut watch = Watch::new(60, 0);
            watch.observe(SeqId(1), promise(Tier::Premium, A), Timestamp(0));
            watch.observe(SeqId(1), end, Timestamp(at));
            let report = of(&mut watch, Tier::Premium, None, Timestamp(at));
            assert_eq!(report.ttft.compliance, compliance, "{end:?} at {at}");
        }
    }
}

#[test]
fn the_headroom_of_a_group_is_that_of_its_tightest_target() {
    let window = |headroom| WindowReport {
        samples: 1,
        overdue: 0,
        p50_ms: 1.0,
        p90_ms: 1.0,
        p99_ms: 1.0,
        compliance: 1.0,
        headroom,
    };
    for [ttft, tpot, e2e] in [[0.25, 0.5, 0.75], [0.75, 0.25, 0.5], [0.5, 0.75, 0.25]] {
        let (ttft, tpot, e2e) = (window(ttft), window(tpot), window(e2e));
        let report = GroupReport { tier: Tier::Premium, tenant: None, ttft, tpot, e2e };
        assert_eq!(report.headroom(), 0.25);
    }
}
