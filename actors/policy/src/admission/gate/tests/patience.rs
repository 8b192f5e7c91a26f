//! Tests of refusals because a request states a patience that is shorter than its expected wait.

use super::*;

/// Returns a scheduler's report with an expected wait of 20 s in the standard queue.
fn waiting_20_s(fair_tenants: bool) -> Capacity {
    Capacity { queue_us: [None, None, Some(20e6), None], fair_tenants, ..report() }
}

fn patient(tier: Tier, ms: u64) -> Applicant {
    Applicant { max_wait_ms: Some(ms), ..of(tier) }
}

#[test]
fn a_request_that_states_less_patience_than_its_expected_wait_is_refused_with_both_figures() {
    let mut gate = gate_with(all(100.0), waiting_20_s(false));
    assert_eq!(gate.would_accept(&patient(Tier::Standard, 20_000), NOW), Ok(()));
    let refusal =
        Refusal::OutOfPatience { tier: Tier::Standard, expected_ms: 20_000, patience_ms: 5_000 };
    assert_eq!(gate.submit(&patient(Tier::Standard, 5_000), NOW), Err(refusal));
    let returning = Applicant { returning: true, ..of(Tier::Standard) };
    let later = NOW + 15_000_000;
    assert!(!gate.has_retry_credit(&returning, later), "the client was told no retry time");
}

#[test]
fn a_stated_patience_refuses_no_request_while_the_drain_rate_is_unknown() {
    let mut gate = gate_with(all(100.0), waiting_20_s(false));
    assert_eq!(gate.would_accept(&patient(Tier::Background, 1), NOW), Ok(()));
    gate.update(report());
    assert_eq!(gate.would_accept(&patient(Tier::Standard, 1), NOW), Ok(()));
}

#[test]
fn a_wait_before_admission_counts_towards_a_stated_patience() {
    let mut gate = gate_with(all(100.0), waiting_20_s(false));
    let waited = |waited_ms, ms| Applicant { waited_ms, ..patient(Tier::Standard, ms) };
    assert_eq!(gate.would_accept(&waited(4_000, 24_000), NOW), Ok(()));
    let refusal =
        Refusal::OutOfPatience { tier: Tier::Standard, expected_ms: 24_001, patience_ms: 24_000 };
    assert_eq!(gate.would_accept(&waited(4_001, 24_000), NOW), Err(refusal));
    assert_eq!(gate.patience_of(&waited(4_000, 24_000)).left_us(), Some(20_000_000));
    gate.update(report());
    assert!(gate.would_accept(&waited(24_001, 24_000), NOW).is_err(), "also without a drain rate");
}

#[test]
fn the_patience_of_a_tier_refuses_no_request_on_arrival() {
    let mut gate = gate(|settings| settings.patience.standard_s = 5.0);
    gate.update(waiting_20_s(false));
    assert_eq!(gate.would_accept(&of(Tier::Standard), NOW), Ok(()));
}

#[test]
fn a_modest_tenant_expects_to_wait_for_a_part_of_the_queue_where_tenants_are_served_fairly() {
    let expected = |fair_tenants| {
        let mut gate = gate_with(all(100.0), report());
        let greedy = Applicant { prompt: 20, ..of(Tier::Standard) };
        gate.submit(&greedy, NOW).expect("no prompt waits yet");
        gate.update(waiting_20_s(fair_tenants));
        let modest = Applicant { tenant: Salt([2; 16]), ..patient(Tier::Standard, 5_000) };
        match gate.would_accept(&modest, NOW) {
            Err(Refusal::OutOfPatience { expected_ms, .. }) => expected_ms,
            other => panic!("not refused for its patience: {other:?}"),
        }
    };
    // Fair queueing serves 10 of the 20 waiting prompt tokens before the 10 tokens of the modest tenant, which is half
    // of the wait of 20 s.
    assert_eq!(expected(true), 10_000);
    assert_eq!(expected(false), 20_000);
}

#[test]
fn a_request_has_the_patience_that_it_states_or_that_of_its_tier() {
    let gate = gate(|settings| settings.patience.standard_s = 5.0);
    let stated = Patience { us: Some(2_000_000), before_us: 0, stated: true };
    assert_eq!(gate.patience_of(&patient(Tier::Standard, 2_000)), stated);
    let of_tier = Patience { us: Some(5_000_000), before_us: 0, stated: false };
    assert_eq!(gate.patience_of(&of(Tier::Standard)), of_tier);
}
