//! Tests of clients that come back at their retry time: the gate prefers them to newcomers, once.

use super::*;

fn returning(tier: Tier) -> Applicant {
    Applicant { returning: true, ..of(tier) }
}

#[test]
fn a_client_that_comes_back_at_its_retry_time_has_a_limit_half_as_long_again() {
    let mut gate = gate_with(all(100.0), forecasting(5_100_000.0));
    let refusal = gate.submit(&of(Tier::Standard), NOW).expect_err("the request is late");
    // The first decision of a gate adds nothing to the retry time, which is then 5100 ms - 100 ms.
    assert_eq!(refusal.retry_after_ms(), Some(5_000));
    let due = NOW + 5_000_000;
    gate.update(forecasting(150_000.0));
    assert!(gate.would_accept(&returning(Tier::Standard), NOW).is_err(), "much too early");
    assert!(gate.would_accept(&returning(Tier::Standard), due - 1).is_err(), "1 us too early");
    assert!(gate.would_accept(&of(Tier::Standard), due).is_err(), "a newcomer");
    assert_eq!(gate.would_accept(&returning(Tier::Standard), due), Ok(()));
    gate.update(forecasting(150_001.0));
    let refusal = gate.would_accept(&returning(Tier::Standard), due).expect_err("1 us too late");
    assert!(matches!(refusal, Refusal::Late { limit_ms: 150, .. }), "{refusal:?}");
}

#[test]
fn a_client_returns_only_if_it_says_so_and_its_tenant_has_a_credit_for_its_tier() {
    let mut gate = gate(|_| ());
    let due = NOW + 3_000_000;
    assert!(!gate.has_retry_credit(&returning(Tier::Standard), due), "the tenant has no credit");
    gate.advised(Tier::Standard, of(Tier::Standard).tenant, 3_000, NOW);
    assert!(!gate.has_retry_credit(&returning(Tier::Standard), due - 1), "too early");
    assert!(gate.has_retry_credit(&returning(Tier::Standard), due));
    assert!(!gate.has_retry_credit(&of(Tier::Standard), due), "the client does not say so");
    assert!(
        !gate.has_retry_credit(&returning(Tier::Background), due),
        "the credit is for standard"
    );
    let other = Applicant { tenant: Salt([2; 16]), ..returning(Tier::Standard) };
    assert!(!gate.has_retry_credit(&other, due), "the credit is another tenant's");
}

#[test]
fn a_retry_credit_is_used_up_by_the_request_that_comes_back_and_not_by_a_check_or_a_newcomer() {
    let mut gate = gate(|_| ());
    let request = returning(Tier::Standard);
    gate.advised(Tier::Standard, request.tenant, 3_000, NOW);
    let due = NOW + 3_000_000;
    assert_eq!(gate.would_accept(&request, due), Ok(()));
    gate.submit(&of(Tier::Standard), due).expect("the queue has room");
    assert!(gate.has_retry_credit(&request, due));
    gate.submit(&request, due).expect("the queue has room");
    assert!(!gate.has_retry_credit(&request, due));
}

#[test]
fn a_queued_request_that_is_turned_away_leaves_a_retry_credit() {
    let mut gate = gate(|_| ());
    let due = NOW + 3_000_000;
    for how in [Left::Ended, Left::Started, Left::TurnedAway { retry_after_ms: 3_000 }] {
        let seq = gate.submit(&of(Tier::Standard), NOW).expect("the queue has room");
        gate.left(seq, how, NOW);
        assert_eq!(gate.queued(), [0; 4]);
        let credit = matches!(how, Left::TurnedAway { .. });
        assert_eq!(gate.has_retry_credit(&returning(Tier::Standard), due), credit, "{how:?}");
    }
    assert!(!gate.has_retry_credit(&returning(Tier::Standard), due - 1), "too early");
}

#[test]
fn the_credit_of_a_request_that_an_operator_moved_is_for_the_tier_that_the_client_asked_for() {
    let mut gate = gate(|_| ());
    let seq = gate.submit(&of(Tier::Standard), NOW).expect("the queue has room");
    gate.tier_changed(seq, Tier::Background);
    gate.left(seq, Left::TurnedAway { retry_after_ms: 3_000 }, NOW);
    let due = NOW + 3_000_000;
    assert!(gate.has_retry_credit(&returning(Tier::Standard), due));
    assert!(!gate.has_retry_credit(&returning(Tier::Background), due));
}
