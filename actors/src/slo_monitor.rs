//! SloMonitor: the actor that compares TTFT, TPOT and E2E in sliding windows with their targets, and tracks how near
//! resources are to their limits.

use crate::lifeline::Lifeline;
use crate::messages::{
    GetPressure, GetSlo, Headroom, InUse, Observe, PressureLevels, Shutdown, SloReports, Tick,
};
use crate::telemetry;
use actix::{Actor, ActorContext, Context, Handler, Recipient};
use tiercel_config::{PressureSettings, SloSettings};
use tiercel_device::Clock;
use tiercel_policy::pressure::Pressure;
use tiercel_policy::slo::{GroupReport, Watch};

/// Actor that receives each latency of a request once, and computes headroom and compliance of the sliding windows on
/// every clock tick.
pub struct SloMonitor {
    watch: Watch,
    pressure: Pressure,
    /// Statistics of each tier, as of the last clock tick.
    latest: Vec<GroupReport>,
    clock: Clock,
    headroom: Recipient<Headroom>,
    lifeline: Lifeline,
}

impl SloMonitor {
    /// Makes the SloMonitor. On every clock tick it sends the least headroom of each tier to `headroom`.
    pub fn new(
        settings: &SloSettings,
        pressure: PressureSettings,
        clock: Clock,
        headroom: Recipient<Headroom>,
        lifeline: Lifeline,
    ) -> SloMonitor {
        let watch = Watch::new(settings.window_s, settings.max_tenants as usize);
        let pressure = Pressure::new(pressure);
        SloMonitor { watch, pressure, latest: Vec::new(), clock, headroom, lifeline }
    }
}

impl Actor for SloMonitor {
    type Context = Context<Self>;
}

impl Handler<Observe> for SloMonitor {
    type Result = ();

    fn handle(&mut self, Observe { seq, at, what }: Observe, _: &mut Self::Context) {
        if let Some(tier) = self.watch.observe(seq, what, at) {
            telemetry::latency(tier, what);
        }
    }
}

impl Handler<InUse> for SloMonitor {
    type Result = ();

    fn handle(&mut self, InUse { resource, used_percent }: InUse, _: &mut Self::Context) {
        if let Some(transition) = self.pressure.observe(resource, used_percent, self.clock.now()) {
            telemetry::pressure(&transition);
        }
    }
}

impl Handler<GetPressure> for SloMonitor {
    type Result = PressureLevels;

    fn handle(&mut self, _: GetPressure, _: &mut Self::Context) -> PressureLevels {
        PressureLevels(self.pressure.levels())
    }
}

impl Handler<GetSlo> for SloMonitor {
    type Result = SloReports;

    fn handle(&mut self, _: GetSlo, _: &mut Self::Context) -> SloReports {
        SloReports(self.latest.clone())
    }
}

impl Handler<Tick> for SloMonitor {
    type Result = bool;

    fn handle(&mut self, _: Tick, _: &mut Self::Context) -> bool {
        self.latest.clear();
        for report in self.watch.report(self.clock.now()) {
            telemetry::slo(&report);
            if report.tenant.is_none() {
                let (tier, headroom) = (report.tier, report.headroom());
                self.headroom.do_send(Headroom { tier, headroom });
                self.latest.push(report);
            }
        }
        true
    }
}

impl Handler<Shutdown> for SloMonitor {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        self.lifeline.release();
        ctx.stop();
    }
}
