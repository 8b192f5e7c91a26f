//! Tests of the admission gate with `shedding.form = share`: random refusals by the tiers' shares of the device's time.

use super::*;
use crate::admission::ShareReport;

/// Returns a scheduler's report at this load. Background used 80 % of the device's time and premium 20 %. Of these two
/// tiers, background is due 0.15 / (0.5 + 0.15) = 23.08 %. The expected wait in each queue is 20 s. The backlog is so
/// long that every request is late.
fn sharing(load: f64) -> Capacity {
    let (had, due) = ([0.0, 0.2, 0.0, 0.8], [0.0, 0.5, 0.35, 0.15]);
    Capacity {
        shedding: Some(SheddingSettings { form: SheddingForm::Share, ..refusing_late() }),
        shares: ShareReport { load, had, due },
        queue_us: [Some(20e6); 4],
        ..forecasting(5_100_000.0)
    }
}

/// Submits a request `times` times and returns the refusals. An accepted request leaves its queue at once.
fn refusals(gate: &mut Gate, request: &Applicant, times: u32, now: Timestamp) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for _ in 0..times {
        match gate.submit(request, now) {
            Ok(seq) => gate.left(seq, Left::Ended, now),
            Err(refusal) => refusals.push(refusal),
        }
    }
    refusals
}

#[test]
fn under_load_a_tier_with_more_than_its_share_is_refused_mostly_and_told_both_shares() {
    let mut gate = gate_with(all(100.0), sharing(0.8));
    let refused = refusals(&mut gate, &of(Tier::Background), 1000, NOW);
    // Background used 0.8 - 0.23 = 0.57 more than its share, for which the probability of a refusal is the largest,
    // 0.8.
    assert!((760..840).contains(&refused.len()), "{}", refused.len());
    for refusal in refused {
        let Refusal::OverShare { tier, had_percent, due_percent, retry_after_ms } = refusal else {
            panic!("not refused for its share: {refusal:?}");
        };
        assert_eq!((tier, had_percent, due_percent), (Tier::Background, 80, 23));
        // Retry times are the expected wait in the queue and up to a half more.
        assert!((20_000..=30_000).contains(&retry_after_ms), "{retry_after_ms}");
    }
}

#[test]
fn shedding_by_shares_refuses_neither_late_requests_of_other_tiers_nor_any_at_a_low_load() {
    let mut gate = gate_with(all(100.0), sharing(0.8));
    assert_eq!(refusals(&mut gate, &of(Tier::Standard), 100, NOW), []);
    assert_eq!(refusals(&mut gate, &of(Tier::Premium), 100, NOW), []);
    let mut gate = gate_with(all(100.0), sharing(0.79));
    assert_eq!(refusals(&mut gate, &of(Tier::Background), 100, NOW), []);
}

#[test]
fn shedding_by_shares_accepts_every_client_that_comes_back_at_its_retry_time() {
    let mut gate = gate_with(all(100.0), sharing(0.8));
    let request = Applicant { returning: true, ..of(Tier::Background) };
    for _ in 0..100 {
        gate.advised(request.tier, request.tenant, 1_000, NOW);
    }
    assert_ne!(refusals(&mut gate, &request, 100, NOW), [], "the clients come too early");
    assert_eq!(refusals(&mut gate, &request, 100, NOW + 1_000_000), []);
    let again = refusals(&mut gate, &request, 100, NOW + 1_000_000);
    assert_ne!(again, [], "the credits are used up");
}

#[test]
fn a_request_that_passes_a_check_passes_the_random_draw_when_it_is_submitted() {
    let mut gate = gate_with(all(100.0), sharing(0.8));
    let request = of(Tier::Background);
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..1000 {
        if gate.would_accept(&request, NOW).is_ok() {
            let seq = gate.submit(&request, NOW).expect("the request passed the check");
            gate.left(seq, Left::Ended, NOW);
            passed += 1;
        } else {
            refused += 1;
        }
    }
    // The probability of a refusal is 0.8.
    assert!(passed > 100 && refused > 100, "{passed} passed, {refused} refused");
}
