//! Tests of the SloMonitor actor alone: it reports pressure levels of resources, and the headroom of each tier.

use crate::run;
use actix::Actor;
use tiercel_actors::kit::{lifeline, recorder, settle};
use tiercel_actors::messages::{GetPressure, Headroom, InUse, Tick};
use tiercel_actors::{Level, Resource, SloMonitor};
use tiercel_config::EngineSettings;
use tiercel_device::{Clock, Tier};

#[test]
fn a_full_resource_is_under_pressure_and_a_tick_reports_the_headroom_of_each_tier() {
    run(async {
        let settings = EngineSettings::default();
        let (headroom, reports) = recorder::<Headroom>();
        let (life, _obituary) = lifeline("SloMonitor");
        let clock = Clock::simulated();
        let monitor =
            SloMonitor::new(&settings.slo, settings.pressure, clock, headroom, life).start();
        let levels = monitor.send(GetPressure).await.unwrap().0;
        assert!(levels.iter().all(|level| *level == Level::default()));
        monitor.send(InUse { resource: Resource::Blocks, used_percent: 100.0 }).await.unwrap();
        let levels = monitor.send(GetPressure).await.unwrap().0;
        assert!(levels.iter().any(|level| *level != Level::default()), "{levels:?}");
        assert!(monitor.send(Tick).await.unwrap());
        settle().await;
        let tiers: Vec<Tier> = reports.take().iter().map(|report| report.tier).collect();
        assert_eq!(tiers, Tier::ALL);
    });
}
