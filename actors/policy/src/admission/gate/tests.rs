//! Tests of the admission gate: changes of a waiting request's tier, and the closed gate.

use super::*;
use tiercel_config::EngineSettings;

fn gate(change: impl FnOnce(&mut EngineSettings)) -> Gate {
    let mut settings = EngineSettings::default();
    change(&mut settings);
    let info = DeviceInfo {
        name: "test".into(),
        block_size: 16,
        device_blocks: 100,
        host_blocks: 0,
        block_bytes: 1,
        max_steps_in_flight: 1,
        max_model_len: 1000,
        vocab_size: 10,
    };
    let none = SloTargets::default();
    let targets =
        Targets { premium: none, standard: none, background: none, requests_may_tighten: false };
    let reservations = Reservations::new(&settings.reservation, info.device_blocks);
    Gate::new((settings.admission, settings.patience), targets, (info, reservations))
}

fn of(tier: Tier) -> Applicant {
    Applicant {
        tier,
        tenant: Salt([1; 16]),
        prompt: 10,
        max_tokens: 10,
        targets: SloTargets::default(),
        max_wait_ms: None,
        returning: false,
    }
}

const NOW: Timestamp = Timestamp(1_000);

#[test]
fn a_request_that_changes_its_tier_takes_its_place_along() {
    let mut gate = gate(|settings| settings.admission.max_queued_requests_per_tier = 1);
    let seq = gate.submit(&of(Tier::Standard), NOW).expect("the queue is empty");
    assert!(gate.submit(&of(Tier::Standard), NOW).is_err(), "the queue is full");
    gate.tier_changed(seq, Tier::Premium);
    assert_eq!(gate.queued(), [0, 1, 0, 0]);
    assert!(gate.submit(&of(Tier::Premium), NOW).is_err(), "the premium queue is full now");
    gate.submit(&of(Tier::Standard), NOW).expect("the standard queue is empty again");
    gate.tier_changed(seq, Tier::Premium);
    gate.left(seq, Left::Started, NOW);
    assert_eq!(gate.queued(), [0, 0, 1, 0]);
    gate.tier_changed(seq, Tier::Background);
    assert_eq!(gate.queued(), [0, 0, 1, 0], "the sequence has left");
}

#[test]
fn a_closed_gate_refuses_everything_and_a_check_accepts_nothing() {
    let mut gate = gate(|_| ());
    assert_eq!(gate.would_accept(&of(Tier::Premium), NOW), Ok(()));
    assert_eq!(gate.queued(), [0; 4]);
    gate.close();
    assert_eq!(gate.submit(&of(Tier::Premium), NOW), Err(Refusal::ShuttingDown));
    assert_eq!(gate.would_accept(&of(Tier::Premium), NOW), Err(Refusal::ShuttingDown));
}
