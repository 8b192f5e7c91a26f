//! Tests of the alerts in `ops/prometheus/alerts.yml` in simulated runs: alerts about an engine fire in runs that cause
//! them, and none fires in an ordinary run. They need promtool (Debian's package `prometheus`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod scrapes;

use scrapes::{Scrapes, fired};
use std::collections::BTreeSet;
use std::path::Path;
use tiercel_config::{EngineSettings, Policy, PreemptionMode};
use tiercel_device::{MockFaults, MockProfile};
use tiercel_simulation::{Experiment, Sizes};
use tiercel_workload::Workload;

/// Random noise of step times: sigma of the log-normal factor that multiplies each.
const NOISE: f64 = 0.1;

/// Returns a run of 25 minutes of a shipped workload under a policy, with `load` times its rate.
fn run(file: &str, policy: Policy, load: f64) -> Experiment {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/workloads");
    run_of(Workload::load(&folder.join(file)).unwrap(), policy, load)
}

/// Returns a run of 25 minutes of a workload under a policy, with `load` times its rate.
fn run_of(workload: Workload, policy: Policy, load: f64) -> Experiment {
    let mut workload = Workload { duration_s: 1500.0, warmup_s: 0.0, cooldown_s: 0.0, ..workload };
    // Short queues: a debug build looks at each live sequence after every event.
    workload.simulation.max_requests = Some(600);
    workload.simulation.max_queued_requests_per_tier = Some(300);
    let profile = MockProfile::named("llama70b-tp8-a100").unwrap();
    let mut settings = EngineSettings::default();
    Sizes::apply(&mut settings, &workload.simulation, &profile);
    settings.use_policy(policy);
    Experiment {
        workload: workload.at_load(load),
        profile,
        settings,
        noise_sigma: NOISE,
        drift: None,
        faults: MockFaults::default(),
        returning: 0.0,
    }
}

/// Runs the experiment and returns the names of the alerts that fired at any time.
fn alerts_in(experiment: &Experiment) -> BTreeSet<String> {
    fired(&Scrapes::of(experiment))
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn no_alert_fires_in_an_ordinary_run() {
    let alerts = alerts_in(&run("w1-mixed.toml", Policy::Tiercel, 1.0));
    assert_eq!(alerts, BTreeSet::new());
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn little_kv_memory_fires_the_alert_of_preemptions() {
    let alerts = alerts_in(&run("w2-memory-tight.toml", Policy::PriorityPreempt, 1.0));
    assert!(alerts.contains("TiercelPreemptions"), "{alerts:?}");
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn victims_that_wait_long_fill_the_host_pool_and_fire_the_alert_of_swap_space() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/alerts/lasting-swap.toml");
    let mut experiment = run_of(Workload::load(&file).unwrap(), Policy::PriorityPreempt, 1.0);
    experiment.settings.preemption.mode = PreemptionMode::Swap;
    let alerts = alerts_in(&experiment);
    assert!(alerts.contains("TiercelSwapSpace"), "{alerts:?}");
    // A host pool with room for all victims never fills.
    experiment.workload.simulation.host_blocks = Some(6000);
    let alerts = alerts_in(&experiment);
    assert!(!alerts.contains("TiercelSwapSpace"), "{alerts:?}");
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn premium_without_precedence_fires_the_alerts_of_its_promises() {
    let alerts = alerts_in(&run("w1-mixed.toml", Policy::Fcfs, 1.5));
    for expected in ["TiercelPremiumCompliance", "TiercelHeadroom"] {
        assert!(alerts.contains(expected), "{alerts:?}");
    }
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn a_greedy_tenant_on_a_server_that_is_not_fair_fires_the_alert_of_shares() {
    let alerts = alerts_in(&run("tenants.toml", Policy::Fcfs, 1.0));
    assert!(alerts.contains("TiercelTenantShareOff"), "{alerts:?}");
    let alerts = alerts_in(&run("tenants.toml", Policy::Tiercel, 1.0));
    assert!(!alerts.contains("TiercelTenantShareOff"), "{alerts:?}");
}

#[test]
#[ignore = "needs promtool; .ci/run runs this test where there is one"]
fn higher_tiers_that_take_all_time_fire_the_alert_of_shares() {
    let alerts = alerts_in(&run("w1-mixed.toml", Policy::Tiercel, 3.0));
    assert!(alerts.contains("TiercelTierShareOff"), "{alerts:?}");
}
