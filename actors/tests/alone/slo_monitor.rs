//! Tests of the SloMonitor actor alone: it reports pressure levels of resources, and the headroom of each tier.

use crate::run;
use actix::{Actor, Addr};
use metrics_exporter_prometheus::PrometheusBuilder;
use tiercel_actors::kit::{Received, lifeline, recorder, settle};
use tiercel_actors::messages::{GetPressure, GetSlo, Headroom, InUse, Observe, Shutdown, Tick};
use tiercel_actors::{Level, Resource, SloMonitor};
use tiercel_config::{EngineSettings, SloTargets};
use tiercel_device::{Clock, SeqId, Tier, Timestamp};
use tiercel_policy::blocks::Salt;
use tiercel_policy::slo::{Observation, Promise};

/// Starts a monitor of latency targets that watches at most one tenant. Returns it with a recorder of the headroom
/// (share of a target that is left) that it will report.
fn started(clock: Clock) -> (Addr<SloMonitor>, Received<Headroom>) {
    let mut settings = EngineSettings::default();
    settings.slo.max_tenants = 1;
    let (headroom, reports) = recorder();
    let (life, _obituary) = lifeline("SloMonitor");
    let monitor = SloMonitor::new(&settings.slo, settings.pressure, clock, headroom, life);
    (monitor.start(), reports)
}

#[test]
fn a_full_resource_is_under_pressure_and_a_tick_reports_the_headroom_of_each_tier() {
    run(async {
        let (monitor, reports) = started(Clock::simulated());
        let levels = monitor.send(GetPressure).await.unwrap().0;
        assert!(levels.iter().all(|level| *level == Level::default()));
        monitor.send(InUse { resource: Resource::Blocks, used_percent: 100.0 }).await.unwrap();
        let levels = monitor.send(GetPressure).await.unwrap().0;
        assert!(levels.iter().any(|level| *level != Level::default()), "{levels:?}");
        assert!(monitor.send(Tick).await.unwrap());
        settle().await;
        let tiers: Vec<Tier> = reports.take().iter().map(|report| report.tier).collect();
        assert_eq!(tiers, Tier::ALL);
        let latest: Vec<Tier> =
            monitor.send(GetSlo).await.unwrap().0.iter().map(|report| report.tier).collect();
        assert_eq!(latest, Tier::ALL, "the reports of the last tick");
    });
}

const TENANT: Salt = Salt([0xab; 16]);

/// Sends what happened to a request of the tenant that arrived at the start.
async fn observe(monitor: &Addr<SloMonitor>, seq: u64, what: &[Observation]) {
    for what in what {
        let message = Observe { seq: SeqId(seq), at: Timestamp(0), what: *what };
        monitor.send(message).await.unwrap();
    }
}

/// A promise of a TTFT of `ttft_ms`, of 50 ms for each token, and of 5 s in all.
fn promised(tier: Tier, ttft_ms: f64) -> Observation {
    let targets = SloTargets {
        ttft_ms: Some(ttft_ms),
        tpot_ms: Some(50.0),
        e2e_ms: Some(5_000.0),
        ..SloTargets::default()
    };
    Observation::Promised(Promise { tier, tenant: TENANT, arrival: Timestamp(0), targets })
}

/// Asserts that the text `metrics` of the endpoint `/metrics` has the time series `series` with a value within 2 % of
/// `expected`.
fn assert_exported(metrics: &str, series: &str, expected: f64) {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value: f64 = line.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().unwrap();
    assert!((value - expected).abs() <= 0.02 * expected.abs(), "{series} is {value}");
}

#[test]
fn a_tick_exports_the_windows_of_tiers_and_tenants_to_the_metrics() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        run(async {
            let clock = Clock::simulated();
            let (monitor, _headroom) = started(clock.clone());
            let first = Observation::FirstToken { ttft_ms: 100.0 };
            let finished = Observation::Finished { tpot_ms: Some(100.0), e2e_ms: 4_000.0 };
            observe(&monitor, 1, &[promised(Tier::Standard, 200.0), first, finished]).await;
            observe(&monitor, 2, &[promised(Tier::Premium, 0.0)]).await;
            monitor.send(InUse { resource: Resource::Blocks, used_percent: 100.0 }).await.unwrap();
            clock.sleep_us(1).await;
            monitor.send(Tick).await.unwrap();
        });
    });
    let metrics = metrics.render();
    for (metric, compliance, headroom, seconds) in
        [("ttft", 1.0, 0.5, 0.1), ("tpot", 0.0, -1.0, 0.1), ("e2e", 1.0, 0.2, 4.0)]
    {
        let of = format!("tier=\"standard\",metric=\"{metric}\"");
        let exported = |name: &str, more: &str, value| {
            assert_exported(&metrics, &format!("{name}{{{of}{more}}}"), value);
        };
        exported("tiercel_slo_compliance_ratio", "", compliance);
        exported("tiercel_slo_headroom_ratio", "", headroom);
        exported("tiercel_slo_overdue", "", 0.0);
        for percentile in ["50", "90", "99"] {
            let more = format!(",percentile=\"{percentile}\"");
            exported("tiercel_slo_window_seconds", &more, seconds);
        }
        let tenant = ",tenant=\"abababab\"";
        exported("tiercel_tenant_slo_compliance_ratio", tenant, compliance);
        exported("tiercel_tenant_slo_p99_seconds", tenant, seconds);
        let count = format!("tiercel_{metric}_seconds_count{{tier=\"standard\"}}");
        assert_exported(&metrics, &count, 1.0);
    }
    let overdue = |metric| format!("tiercel_slo_overdue{{tier=\"premium\",metric=\"{metric}\"}}");
    assert_exported(&metrics, &overdue("ttft"), 1.0);
    assert_exported(&metrics, &overdue("e2e"), 0.0);
    assert_exported(&metrics, "tiercel_pressure_level{resource=\"blocks\"}", 2.0);
}

#[test]
fn a_monitor_that_is_shut_down_stops_without_being_announced_dead() {
    run(async {
        let settings = EngineSettings::default();
        let (life, obituary) = lifeline("SloMonitor");
        let (slo, pressure, headroom) = (settings.slo, settings.pressure, recorder().0);
        let monitor = SloMonitor::new(&slo, pressure, Clock::simulated(), headroom, life).start();
        monitor.send(Shutdown).await.unwrap();
        settle().await;
        assert!(!monitor.connected() && obituary.borrow().is_none());
    });
}
