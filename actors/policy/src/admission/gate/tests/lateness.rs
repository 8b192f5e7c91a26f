//! Tests of refusals for lateness: the longest accepted forecast TTFT, and requests that have no such limit.

use super::*;

/// TTFT target of all tiers, ms.
const TARGET_MS: f64 = 100.0;

/// Returns the decision on a newcomer of a tier for a forecast TTFT of `ttft_us` and the target `TARGET_MS`.
fn decision(tier: Tier, ttft_us: f64) -> Result<(), Refusal> {
    gate_with(all(TARGET_MS), forecasting(ttft_us)).would_accept(&of(tier), NOW)
}

#[test]
fn a_request_is_refused_if_its_forecast_ttft_is_longer_than_its_target() {
    for tier in [Tier::Standard, Tier::Background] {
        assert_eq!(decision(tier, 100_000.0), Ok(()), "just in time");
        let refusal = decision(tier, 100_001.0).expect_err("1 us too late");
        assert!(matches!(refusal, Refusal::Late { .. }), "{refusal:?}");
    }
}

#[test]
fn a_refusal_for_lateness_tells_the_forecast_the_limit_and_a_retry_time_from_their_difference() {
    // The first decision of a gate adds nothing to the retry time, which is then 5100 ms - 100 ms.
    let late = Refusal::Late {
        tier: Tier::Standard,
        expected_ms: 5_100,
        limit_ms: 100,
        retry_after_ms: 5_000,
    };
    assert_eq!(decision(Tier::Standard, 5_100_000.0), Err(late));
}

#[test]
fn premium_and_system_requests_are_never_refused_for_lateness() {
    assert_eq!(decision(Tier::Premium, 5_100_000.0), Ok(()));
    assert_eq!(decision(Tier::System, 5_100_000.0), Ok(()));
}

#[test]
fn late_requests_are_accepted_unless_the_settings_refuse_them() {
    let with = |shedding| {
        let report = Capacity { shedding, ..forecasting(5_100_000.0) };
        gate_with(all(TARGET_MS), report).would_accept(&of(Tier::Standard), NOW)
    };
    assert_eq!(with(Some(SheddingSettings { late: Late::Wait, ..refusing_late() })), Ok(()));
    assert_eq!(with(Some(SheddingSettings { late: Late::BestEffort, ..refusing_late() })), Ok(()));
    assert_eq!(with(None), Ok(()), "the scheduler cannot tell how much time there is");
    assert!(with(Some(refusing_late())).is_err());
}

#[test]
fn a_request_without_a_ttft_target_is_never_late() {
    let targets = Targets { standard: SloTargets::default(), ..all(TARGET_MS) };
    let mut gate = gate_with(targets, forecasting(5_100_000.0));
    assert_eq!(gate.would_accept(&of(Tier::Standard), NOW), Ok(()));
    assert!(gate.would_accept(&of(Tier::Background), NOW).is_err(), "background has a target");
}

#[test]
fn a_request_within_twice_its_ttft_alone_is_accepted_although_its_target_is_shorter() {
    let request = Applicant { prompt: 400, ..of(Tier::Standard) };
    let with = |backlog_us| {
        let report = Capacity { backlog_us: [0.0, backlog_us, 0.0, 0.0], ..report() };
        gate_with(all(TARGET_MS), report).would_accept(&request, NOW)
    };
    // The prompt takes 40 ms of device time. Alone, the request has its first token after 2 * 40 ms + 20 ms = 100 ms,
    // and behind a backlog of 50 ms after 2 * (40 ms + 50 ms) + 20 ms = 200 ms.
    assert_eq!(with(50_000.0), Ok(()));
    let refusal = with(50_000.5).expect_err("1 us more than twice the time alone");
    assert!(matches!(refusal, Refusal::Late { limit_ms: 200, .. }), "{refusal:?}");
}

#[test]
fn a_stated_target_counts_if_it_is_looser_than_that_of_the_tier() {
    let limit = |may_tighten, stated_ms| {
        let targets = Targets { requests_may_tighten: may_tighten, ..all(TARGET_MS) };
        let request = Applicant { targets: ttft(stated_ms), ..of(Tier::Standard) };
        match gate_with(targets, forecasting(5_100_000.0)).would_accept(&request, NOW) {
            Err(Refusal::Late { limit_ms, .. }) => limit_ms,
            other => panic!("not refused for lateness: {other:?}"),
        }
    };
    assert_eq!(limit(false, 300.0), 300);
    assert_eq!(limit(false, 60.0), 100, "a tighter target does not count");
    assert_eq!(limit(true, 60.0), 60, "a tighter target counts where requests may tighten");
}

#[test]
fn new_targets_hold_for_the_next_request() {
    let mut gate = gate_with(all(TARGET_MS), forecasting(200_000.0));
    assert!(gate.would_accept(&of(Tier::Standard), NOW).is_err());
    gate.retarget(all(200.0));
    assert_eq!(gate.would_accept(&of(Tier::Standard), NOW), Ok(()));
    gate.retarget(all(TARGET_MS));
    assert!(gate.would_accept(&of(Tier::Standard), NOW).is_err());
}

#[test]
fn a_modest_tenant_waits_for_no_more_than_its_turn_where_tenants_are_served_fairly() {
    let expected = |fair_tenants, tenant| {
        let mut gate = gate_with(all(TARGET_MS), report());
        let greedy = Applicant { prompt: 20, ..of(Tier::Standard) };
        gate.submit(&greedy, NOW).expect("no prompt waits yet");
        let backlog_us = [0.0, 0.0, 100_000.0, 0.0];
        gate.update(Capacity { fair_tenants, backlog_us, ..report() });
        match gate.would_accept(&Applicant { tenant, ..of(Tier::Standard) }, NOW) {
            Err(Refusal::Late { expected_ms, .. }) => expected_ms,
            other => panic!("not refused for lateness: {other:?}"),
        }
    };
    // Fair queueing serves 10 of the 20 waiting prompt tokens, half of the backlog of 100 ms, before the 10 tokens of
    // another tenant: 2 * (50 ms + 1 ms) + 20 ms = 122 ms. Otherwise the whole backlog is before them: 222 ms.
    let (greedy, modest) = (of(Tier::Standard).tenant, Salt([2; 16]));
    assert_eq!(expected(true, modest), 122);
    assert_eq!(expected(true, greedy), 222);
    assert_eq!(expected(false, modest), 222);
}
