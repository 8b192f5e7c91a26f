//! Tests of the admission gate: changes of a waiting request's tier, and the closed gate. The submodules test the other
//! decisions of the gate.

mod best_effort;
mod lateness;
mod margin;
mod patience;
mod retry_times;
mod returning;
mod shares;

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
        weight: Weight::default(),
        prompt: 10,
        max_tokens: 10,
        targets: SloTargets::default(),
        may_tighten: None,
        max_wait_ms: None,
        waited_ms: 0,
        sibling: false,
        returning: false,
    }
}

const NOW: Timestamp = Timestamp(1_000);

/// Returns latency targets that consist of a TTFT target.
fn ttft(ms: f64) -> SloTargets {
    SloTargets { ttft_ms: Some(ms), ..SloTargets::default() }
}

/// Returns targets that give premium, standard and background the same TTFT target.
fn all(ttft_ms: f64) -> Targets {
    let (premium, standard, background) = (ttft(ttft_ms), ttft(ttft_ms), ttft(ttft_ms));
    Targets { premium, standard, background, requests_may_tighten: false }
}

/// Returns shedding settings with which late requests are refused.
fn refusing_late() -> SheddingSettings {
    SheddingSettings { form: SheddingForm::Forecast, load_percent: 80.0, late: Late::Refuse }
}

/// Returns the scheduler's report of a device on which no prompt waits. A prompt token takes 100 us. Prompts have half
/// of each step of 20 ms, so they take twice their device time.
fn report() -> Capacity {
    Capacity {
        step_us: 20_000.0,
        idle_us: 5_000.0,
        prompts_us: 10_000.0,
        token_us: 100.0,
        shedding: Some(refusing_late()),
        ..Capacity::default()
    }
}

/// Returns a scheduler's report from which a request with a prompt of 10 tokens (1 ms of device time) has a forecast
/// TTFT of `ttft_us`. The premium backlog, which is served before requests of all tiers but system, is so long that
/// `2 * (backlog + 1 ms) + 20 ms` is `ttft_us`.
fn forecasting(ttft_us: f64) -> Capacity {
    let backlog_us = (ttft_us - 20_000.0) / 2.0 - 1_000.0;
    Capacity { backlog_us: [0.0, backlog_us, 0.0, 0.0], ..report() }
}

/// Returns a gate that has these latency targets and took over this report of the scheduler.
fn gate_with(targets: Targets, capacity: Capacity) -> Gate {
    let mut gate = gate(|_| ());
    gate.retarget(targets);
    gate.update(capacity);
    gate
}

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

#[test]
fn only_the_first_choice_of_a_request_counts_in_a_queue_until_it_leaves_or_moves() {
    let mut gate = gate(|settings| settings.admission.max_queued_tokens_per_tier = 15);
    let first = gate.submit(&of(Tier::Standard), NOW).expect("nothing waits");
    let sibling = Applicant { sibling: true, ..of(Tier::Standard) };
    let [left, moves] = [0; 2].map(|_| gate.submit(&sibling, NOW).expect("it counts as no token"));
    gate.left(left, Left::Ended, NOW);
    gate.tier_changed(moves, Tier::Background);
    // The ten tokens of the first choice still wait, and five more may.
    let of_tokens = |prompt, tier| Applicant { prompt, ..of(tier) };
    assert!(gate.would_accept(&of_tokens(6, Tier::Standard), NOW).is_err());
    assert_eq!(gate.would_accept(&of_tokens(5, Tier::Standard), NOW), Ok(()));
    assert_eq!(gate.would_accept(&of_tokens(900, Tier::Background), NOW), Ok(()));
    gate.left(first, Left::Started, NOW);
    assert_eq!(gate.would_accept(&of_tokens(900, Tier::Standard), NOW), Ok(()));
}

#[test]
fn only_the_first_choice_of_a_request_counts_in_its_tenants_part_of_a_queue() {
    let mut gate = gate(|settings| settings.admission.max_queued_tokens_per_tier = 80);
    gate.update(Capacity { fair_tenants: true, ..report() });
    let fits = |gate: &mut Gate| {
        gate.would_accept(&Applicant { prompt: 69, ..of(Tier::Standard) }, NOW).is_ok()
    };
    let choices = [false, true, true].map(|sibling| Applicant { sibling, ..of(Tier::Standard) });
    let choices = choices.map(|choice| gate.submit(&choice, NOW).expect("the queue has room"));
    assert!(fits(&mut gate), "the tenant holds an eighth of the queue, so it may fill the rest");
    gate.left(choices[1], Left::Started, NOW);
    gate.tier_changed(choices[2], Tier::Background);
    gate.submit(&Applicant { prompt: 1, ..of(Tier::Standard) }, NOW).expect("there is room");
    assert!(!fits(&mut gate), "the tenant holds more than an eighth");
}
