//! Tests of best-effort requests in forecasts: whether the prompt of an accepted request counts as served before those
//! of the standard tier.

use super::*;

/// Forecast TTFT of a standard request after a prompt of 30 ms arrived that counts as background, ms. The standard
/// request has a prompt of 1 ms and is behind a standard backlog of 1 s: 2 * (1000 + 1) + 20 = 2022.
const BEHIND_BACKGROUND: u64 = 2022;
/// Forecast TTFT of the same standard request if the prompt of 30 ms counts as premium or system, ms. The prompt is
/// served first, and more prompts of its tier are expected to take 0.01 of the device's time, which is 30 ms in 3 s:
/// (1000 + 30 + 1) / (0.5 - 0.01) + 20 = 2124.08. If the prompt counted as standard, the forecast would be
/// 2 * (1000 + 30 + 1) + 20 = 2082.
const BEHIND_BETTER: u64 = 2124;

/// Returns the forecast TTFT of a standard request, ms, after a prompt of 30 ms arrived in the tier `arrived`. Premium
/// has the latency targets `premium`.
fn expected_ms(fair_tiers: bool, premium: SloTargets, arrived: Tier) -> u64 {
    let backlog_us = [0.0, 0.0, 1e6, 0.0];
    let report = Capacity { backlog_us, fair_tiers, ..report() };
    let mut gate = gate_with(Targets { premium, ..all(100.0) }, report);
    gate.submit(&Applicant { prompt: 300, ..of(arrived) }, NOW)
        .expect("above standard nobody is late");
    match gate.would_accept(&of(Tier::Standard), NOW) {
        Err(Refusal::Late { expected_ms, .. }) => expected_ms,
        other => panic!("not refused for lateness: {other:?}"),
    }
}

#[test]
fn a_premium_request_without_targets_counts_as_background_where_tiers_share() {
    let none = SloTargets::default();
    assert_eq!(expected_ms(true, none, Tier::Premium), BEHIND_BACKGROUND);
    assert_eq!(expected_ms(false, none, Tier::Premium), BEHIND_BETTER, "tiers do not share");
}

#[test]
fn a_premium_request_with_a_ttft_or_a_tpot_target_counts_as_premium() {
    let tpot = SloTargets { tpot_ms: Some(10.0), ..SloTargets::default() };
    for fair_tiers in [true, false] {
        assert_eq!(expected_ms(fair_tiers, ttft(100.0), Tier::Premium), BEHIND_BETTER);
        assert_eq!(expected_ms(fair_tiers, tpot, Tier::Premium), BEHIND_BETTER);
    }
}

#[test]
fn a_system_request_always_counts_as_such() {
    for fair_tiers in [true, false] {
        assert_eq!(expected_ms(fair_tiers, ttft(100.0), Tier::System), BEHIND_BETTER);
    }
}
