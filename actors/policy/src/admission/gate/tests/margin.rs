//! Tests of the safety margin of forecasts, which learns from the TTFT of accepted standard requests.

use super::*;

/// TTFT target of all tiers, ms. The half keeps limits that are rounded down to 1 ms away from rounding errors.
const TARGET_MS: f64 = 10_000.5;
/// TTFT target of all tiers, us.
const TARGET_US: u64 = 10_000_500;

/// Longest accepted forecast TTFT with the first margin, 1, ms.
const UNCHANGED: u64 = 10_000;
/// Longest accepted forecast TTFT after one request in time, ms: the margin is 1 + 0.02 * 0.05 = 1.001.
const AFTER_IN_TIME: u64 = 10_010;
/// Longest accepted forecast TTFT after one late request, ms: the margin is 1 - 0.02 * 0.95 = 0.981.
const AFTER_LATE: u64 = 9_810;

/// Returns the longest accepted forecast TTFT of a tier, ms, as told in a refusal.
fn limit_ms(gate: &mut Gate, tier: Tier) -> u64 {
    gate.update(forecasting(1e9));
    match gate.would_accept(&of(tier), NOW) {
        Err(Refusal::Late { limit_ms, .. }) => limit_ms,
        other => panic!("not refused for lateness: {other:?}"),
    }
}

/// Returns a gate that accepted a request of `tier`, which left the queue `us` after its arrival.
fn gate_after(tier: Tier, how: Left, us: u64) -> Gate {
    let mut gate = gate_with(all(TARGET_MS), report());
    let seq = gate.submit(&of(tier), NOW).expect("no prompt waits");
    gate.left(seq, how, NOW + us);
    gate
}

#[test]
fn a_late_standard_request_lowers_the_limit_and_one_in_time_raises_it() {
    let limit = |us| limit_ms(&mut gate_after(Tier::Standard, Left::Started, us), Tier::Standard);
    assert_eq!(limit_ms(&mut gate_with(all(TARGET_MS), report()), Tier::Standard), UNCHANGED);
    assert_eq!(limit(TARGET_US - 1), AFTER_IN_TIME);
    assert_eq!(limit(TARGET_US), AFTER_IN_TIME);
    assert_eq!(limit(TARGET_US + 1), AFTER_LATE);
    assert_eq!(limit(2 * TARGET_US), AFTER_LATE);
}

#[test]
fn only_standard_requests_with_a_first_token_change_the_margin() {
    let limit = |tier, how| limit_ms(&mut gate_after(tier, how, 2 * TARGET_US), Tier::Standard);
    assert_eq!(limit(Tier::Premium, Left::Started), UNCHANGED);
    assert_eq!(limit(Tier::Background, Left::Started), UNCHANGED);
    assert_eq!(limit(Tier::Standard, Left::Ended), UNCHANGED);
    assert_eq!(limit(Tier::Standard, Left::TurnedAway { retry_after_ms: 1_000 }), UNCHANGED);
}

#[test]
fn the_margin_holds_for_standard_requests_only() {
    let mut gate = gate_after(Tier::Standard, Left::Started, 2 * TARGET_US);
    assert_eq!(limit_ms(&mut gate, Tier::Standard), AFTER_LATE);
    assert_eq!(limit_ms(&mut gate, Tier::Background), UNCHANGED);
}

#[test]
fn a_request_whose_tier_was_changed_does_not_change_the_margin() {
    let mut gate = gate_with(all(TARGET_MS), report());
    let seq = gate.submit(&of(Tier::Premium), NOW).expect("no prompt waits");
    gate.tier_changed(seq, Tier::Standard);
    gate.left(seq, Left::Started, NOW + 2 * TARGET_US);
    assert_eq!(limit_ms(&mut gate, Tier::Standard), UNCHANGED);
}

#[test]
fn a_request_whose_target_even_an_idle_server_misses_does_not_change_the_margin() {
    let limit = |prompt| {
        let mut gate = gate_with(all(100.0), report());
        let request = Applicant { prompt, ..of(Tier::Standard) };
        let seq = gate.submit(&request, NOW).expect("the request is alone");
        gate.left(seq, Left::Started, NOW + 1_000_000);
        limit_ms(&mut gate, Tier::Standard)
    };
    // On an idle server 960 tokens take 96 ms + 5 ms, 1 ms longer than the target, and 940 tokens 94 ms + 5 ms.
    assert_eq!(limit(960), 100);
    // The limit of 0.981 * 100 ms = 98.1 ms is rounded down.
    assert_eq!(limit(940), 98);
}

#[test]
fn the_margin_stays_as_it_is_while_late_requests_are_not_refused() {
    let shedding = Some(SheddingSettings { late: Late::BestEffort, ..refusing_late() });
    let mut gate = gate_with(all(TARGET_MS), Capacity { shedding, ..report() });
    let seq = gate.submit(&of(Tier::Standard), NOW).expect("no prompt waits");
    gate.left(seq, Left::Started, NOW + 2 * TARGET_US);
    assert_eq!(limit_ms(&mut gate, Tier::Standard), UNCHANGED);
}
