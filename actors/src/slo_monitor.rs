//! SloMonitor: windows of TTFT, TPOT and E2E per tier against the targets, and how near resources are to their limits.

use crate::admission::Admission;
use crate::lifeline::Lifeline;
use crate::messages::{
    GetPressure, Headroom, InUse, Observation, Observe, PressureLevels, Shutdown, Tick,
};
use crate::telemetry;
use actix::{Actor, ActorContext, Addr, Context, Handler};
use tiercel_config::{PressureSettings, SloSettings};
use tiercel_device::{Clock, Tier};
use tiercel_policy::pressure::Pressure;
use tiercel_policy::slo::{TierWindows, targets_of};

/// Told of every event once; evaluates on the clock's beat.
pub(crate) struct SloMonitor {
    settings: SloSettings,
    windows: [TierWindows; 4],
    pressure: Pressure,
    clock: Clock,
    admission: Addr<Admission>,
    lifeline: Lifeline,
}

impl SloMonitor {
    pub(crate) fn new(
        settings: SloSettings,
        pressure: PressureSettings,
        clock: Clock,
        admission: Addr<Admission>,
        lifeline: Lifeline,
    ) -> SloMonitor {
        let windows = TierWindows::new(settings.window_s);
        let windows = [windows.clone(), windows.clone(), windows.clone(), windows];
        let pressure = Pressure::new(pressure);
        SloMonitor { settings, windows, pressure, clock, admission, lifeline }
    }
}

impl Actor for SloMonitor {
    type Context = Context<Self>;
}

impl Handler<Observe> for SloMonitor {
    type Result = ();

    fn handle(&mut self, Observe { tier, at, what }: Observe, _: &mut Self::Context) {
        telemetry::latency(tier, what);
        let windows = &mut self.windows[tier.index()];
        match what {
            Observation::FirstToken { ttft_ms } => windows.ttft.add(at, ttft_ms),
            Observation::Finished { tpot_ms, e2e_ms } => {
                if let Some(tpot_ms) = tpot_ms {
                    windows.tpot.add(at, tpot_ms);
                }
                windows.e2e.add(at, e2e_ms);
            }
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

impl Handler<Tick> for SloMonitor {
    type Result = bool;

    fn handle(&mut self, _: Tick, _: &mut Self::Context) -> bool {
        let now = self.clock.now();
        for tier in [Tier::Premium, Tier::Standard, Tier::Background] {
            let targets = targets_of(&self.settings, tier);
            let reports = self.windows[tier.index()].report(now, &targets);
            telemetry::slo(tier, &reports);
            let headroom = reports.iter().map(|report| report.headroom).fold(1.0, f64::min);
            self.admission.do_send(Headroom { tier, headroom });
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
