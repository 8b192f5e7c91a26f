//! Tests of the retry times that refused clients are told: their spread, and their lower bound for a late tier.

use super::*;

/// Returns a gate that refuses newcomers of the standard tier for a forecast that is 5 s longer than the limit.
fn late_gate() -> Gate {
    gate_with(all(100.0), forecasting(5_100_000.0))
}

/// Returns the retry time that the client of a standard request is told by a check, ms.
fn told_by_check(gate: &mut Gate) -> u64 {
    let refusal = gate.would_accept(&of(Tier::Standard), NOW).expect_err("the request is refused");
    refusal.retry_after_ms().expect("the refusal tells a retry time")
}

/// Submits a request of the standard tier and returns the retry time that its client is told, ms.
fn told_by_refusal(gate: &mut Gate) -> u64 {
    let refusal = gate.submit(&of(Tier::Standard), NOW).expect_err("the request is refused");
    refusal.retry_after_ms().expect("the refusal tells a retry time")
}

#[test]
fn clients_that_are_refused_one_after_another_are_told_different_retry_times() {
    for tell in [told_by_refusal, told_by_check] {
        let mut gate = late_gate();
        let mut told = [(); 4].map(|()| tell(&mut gate));
        told.sort_unstable();
        assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
        // Retry times are 5 s and up to a half more.
        assert!(told.iter().all(|ms| (5_000..=7_500).contains(ms)), "{told:?}");
    }
}

#[test]
fn a_check_that_passes_does_not_change_the_next_retry_time() {
    let told = |checks| {
        let mut gate = late_gate();
        told_by_refusal(&mut gate);
        for _ in 0..checks {
            assert_eq!(gate.would_accept(&of(Tier::Premium), NOW), Ok(()));
        }
        told_by_refusal(&mut gate)
    };
    assert_eq!(told(0), told(3));
}

#[test]
fn clients_of_a_full_queue_wait_at_least_5_s_if_the_tier_misses_its_targets() {
    let mut gate = gate(|settings| settings.admission.max_queued_requests_per_tier = 1);
    gate.submit(&of(Tier::Standard), NOW).expect("the queue is empty");
    gate.update(Capacity { queue_us: [Some(1e6); 4], ..report() });
    // Retry times are the expected wait in the queue, here 1 s, and up to a half more.
    assert!((1_000..=1_500).contains(&told_by_check(&mut gate)));
    gate.set_headroom(Tier::Premium, -0.1);
    gate.set_headroom(Tier::Standard, 0.0);
    let told = told_by_check(&mut gate);
    assert!((1_000..=1_500).contains(&told), "the standard tier just meets its targets");
    gate.set_headroom(Tier::Standard, -0.1);
    assert_eq!(told_by_check(&mut gate), 5_000);
    gate.update(Capacity { queue_us: [Some(20e6); 4], ..report() });
    assert!((20_000..=30_000).contains(&told_by_check(&mut gate)), "the wait is longer than 5 s");
}

#[test]
fn clients_of_a_full_server_are_told_different_times_in_which_their_tiers_queue_drains() {
    let mut gate = gate_with(
        all(100.0),
        Capacity { queue_us: [None, Some(2e6), Some(20e6), None], ..report() },
    );
    let mut told = [(); 4].map(|()| gate.retry_time_when_full(Tier::Standard));
    told.sort_unstable();
    assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    // Retry times are the time in which the queue drains, and up to a half more.
    assert!(told.iter().all(|ms| (20_000..=30_000).contains(ms)), "{told:?}");
    assert!((2_000..=3_000).contains(&gate.retry_time_when_full(Tier::Premium)));
}
