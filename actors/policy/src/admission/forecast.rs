//! Forecast of when a request that arrives now gets its first token.
//!
//! After each step the scheduler reports how much device time is available to prompts, and how much the waiting prompts
//! will need. The prompts that arrive between two reports are added here. Higher tiers are served first, including
//! their requests that are still to come, which are expected to need as much device time as the tier's recent arrivals.

use crate::admission::ShareReport;
use tiercel_config::SheddingSettings;
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();

/// Time constant of the exponential average of the device time that arriving prompts need, us: long enough to have seen
/// some arrivals, short enough to follow a surge.
const TIME_CONSTANT_US: f64 = 3e6;
/// Least share of the device's time that a forecast assumes to be left for a tier's prompts, however much higher tiers
/// took lately.
const LEAST_SHARE: f64 = 0.02;

/// Intended share of late first tokens among the requests that admission accepted as in time.
const LATE_SHARE: f64 = 0.05;
/// Learning rate of the safety margin: one late request lowers the margin by about this much.
const MARGIN_GAIN: f64 = 0.02;
/// Lower and upper bound of the safety margin of forecasts, as shares of the TTFT target.
const MARGINS: (f64, f64) = (0.6, 1.2);

/// Safety margin of forecasts: a request counts as in time if its forecast TTFT is at most `margin * TTFT target`. The
/// margin shrinks with every accepted request that is late and grows with every one in time, so that few accepted
/// requests are late and no more are refused than necessary (adaptive conformal inference, Gibbs and Candes 2021).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin(f64);

impl Default for Margin {
    fn default() -> Self {
        Margin(1.0)
    }
}

impl Margin {
    /// Returns the safety margin of forecasts, as a share of a TTFT target.
    pub fn share(self) -> f64 {
        self.0
    }

    /// Adjusts the safety margin of forecasts after an accepted request got its first token, `late` or in time.
    pub fn observe(&mut self, late: bool) {
        let change = if late { LATE_SHARE - 1.0 } else { LATE_SHARE };
        self.0 = (self.0 + MARGIN_GAIN * change).clamp(MARGINS.0, MARGINS.1);
    }
}

/// The scheduler's report on the device time that is available to prompts, from which admission forecasts TTFT.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Capacity {
    /// Length of the next steps, us: as long as the TPOT targets of the streams of tiers above background and the
    /// limits on a step allow.
    pub step_us: f64,
    /// Length of an empty step (fixed cost of a step), us.
    pub idle_us: f64,
    /// Time that a step of length `step_us` has for prompts if it computes no decode tokens of the background tier, us.
    pub prompts_us: f64,
    /// Backlog: device time that the prompts of requests without a first token still need, by effective tier before
    /// ageing, us. Requests on hold do not count.
    pub backlog_us: [f64; TIERS],
    /// Expected wait in the queue of each tier, from the queue's recent drain rate, us; `None` while the drain rate is
    /// unknown.
    pub queue_us: [Option<f64>; TIERS],
    /// Whether the tenants of one tier are served by fair queueing.
    pub fair_tenants: bool,
    /// Whether tiers share by fair queueing the device time that requests with latency targets leave to best-effort
    /// requests.
    pub fair_tiers: bool,
    /// Mean device time of a prompt token, us. Prefix-cache hits cost no time, but their tokens count in the mean.
    pub token_us: f64,
    /// Server load, each tier's share of the device time used lately, and the share that the tier is due.
    pub shares: ShareReport,
    /// Settings for refusing requests for which there is no device time; `None` if the scheduler cannot tell how much
    /// time there is.
    pub shedding: Option<SheddingSettings>,
}

/// Forecast of the TTFT of arriving requests, from the scheduler's last report and the arrivals since.
#[derive(Debug, Clone, Default)]
pub struct Forecast {
    capacity: Capacity,
    /// Device time needed by the prompts that arrived since the scheduler's last report, by tier, us.
    arrived_us: [f64; TIERS],
    /// Recent demand of each tier: device time needed by arriving prompts per unit of time, as an exponential average
    /// at time `rates_at`.
    rates: [f64; TIERS],
    rates_at: Timestamp,
}

impl Forecast {
    /// Replaces the scheduler's report on the device time for prompts by a newer one. Prompts that were accepted after
    /// the scheduler made the newer report are left out of forecasts until the next report.
    pub fn update(&mut self, capacity: Capacity) {
        self.capacity = capacity;
        self.arrived_us = [0.0; TIERS];
    }

    /// Returns the settings for refusing requests for which there is no device time; `None` if the scheduler cannot
    /// tell how much time there is.
    pub fn shedding(&self) -> Option<SheddingSettings> {
        self.capacity.shedding
    }

    /// Whether the tenants of one tier are served by fair queueing.
    pub fn fair_tenants(&self) -> bool {
        self.capacity.fair_tenants
    }

    /// Whether tiers share by fair queueing the device time that requests with latency targets leave to best-effort
    /// requests.
    pub fn fair_tiers(&self) -> bool {
        self.capacity.fair_tiers
    }

    /// Returns the expected wait of a request at the end of its tier's queue, us, from the queue's recent drain rate;
    /// `None` while the drain rate is unknown.
    pub fn queue_us(&self, tier: Tier) -> Option<f64> {
        self.capacity.queue_us[tier.index()]
    }

    /// Records that a request was accepted: its prompt adds to the demand of its tier.
    pub fn arrived(&mut self, tier: Tier, prompt: u32, now: Timestamp) {
        let us = self.capacity.token_us * f64::from(prompt);
        let decay = (-(now.since_us(self.rates_at) as f64) / TIME_CONSTANT_US).exp();
        self.rates_at = now;
        for rate in &mut self.rates {
            *rate *= decay;
        }
        self.rates[tier.index()] += us / TIME_CONSTANT_US;
        self.arrived_us[tier.index()] += us;
    }

    /// Returns the TTFT of a request that has no other prompt before it, beside the running streams, us.
    pub fn alone_us(&self, prompt: u32) -> f64 {
        let Capacity { step_us, prompts_us, token_us, .. } = self.capacity;
        let share = (prompts_us / step_us.max(1.0)).max(LEAST_SHARE);
        token_us * f64::from(prompt) / share + step_us
    }

    /// Returns the TTFT of a request on an idle server, with neither prompts nor streams, us.
    pub fn idle_us(&self, prompt: u32) -> f64 {
        self.capacity.token_us * f64::from(prompt) + self.capacity.idle_us
    }

    /// Returns the forecast TTFT of a request that arrives now, us. `ahead` is the share of its own tier's waiting
    /// prompt work that is served before the request, 0 to 1.
    pub fn first_token_us(&self, tier: Tier, prompt: u32, ahead: f64, now: Timestamp) -> f64 {
        let Capacity { step_us, prompts_us, backlog_us, token_us, .. } = self.capacity;
        let decay = (-(now.since_us(self.rates_at) as f64) / TIME_CONSTANT_US).exp();
        let better: f64 = self.rates[..tier.index()].iter().sum::<f64>() * decay;
        let share = (prompts_us / step_us.max(1.0) - better).max(LEAST_SHARE);
        let before =
            |us: &[f64; TIERS]| us[..tier.index()].iter().sum::<f64>() + us[tier.index()] * ahead;
        let work_us = before(&backlog_us) + before(&self.arrived_us) + token_us * f64::from(prompt);
        // Add one step to the time for prompt work: the request waits half a step on average for the step in flight,
        // and its first token comes at the end of a step, not in the middle.
        work_us / share + step_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_config::Late;

    /// Scheduler report for tests: steps of 30 ms, of which 10 ms are for prompts, and 100 us per prompt token.
    fn capacity() -> Capacity {
        Capacity {
            step_us: 30_000.0,
            idle_us: 5_000.0,
            prompts_us: 10_000.0,
            token_us: 100.0,
            ..Capacity::default()
        }
    }

    fn forecast(backlog_us: [f64; TIERS]) -> Forecast {
        let mut forecast = Forecast::default();
        forecast.update(Capacity { backlog_us, ..capacity() });
        forecast
    }

    const NOW: Timestamp = Timestamp(60_000_000);

    #[test]
    fn higher_and_equal_tiers_go_first() {
        let forecast = forecast([0.0, 5_000.0, 20_000.0, 40_000.0]);
        let ms = |tier| forecast.first_token_us(tier, 100, 1.0, NOW) / 1000.0;
        // Expected TTFT, ms: own prompt of 10 ms plus the prompts before it, tripled because prompts have a third of
        // the time, plus one step of 30 ms.
        assert_eq!(ms(Tier::Premium), 3.0 * (10.0 + 5.0) + 30.0);
        assert_eq!(ms(Tier::Standard), 3.0 * (10.0 + 25.0) + 30.0);
        assert_eq!(ms(Tier::Background), 3.0 * (10.0 + 65.0) + 30.0);
        assert_eq!(forecast.alone_us(100) / 1000.0, 3.0 * 10.0 + 30.0);
        assert_eq!(forecast.idle_us(100) / 1000.0, 10.0 + 5.0);
        let us = forecast.first_token_us(Tier::Standard, 100, 0.25, NOW);
        assert_eq!(us / 1000.0, 3.0 * (10.0 + 10.0) + 30.0, "a quarter of its tier's");
    }

    #[test]
    fn arrivals_count_until_the_next_report_and_those_of_higher_tiers_as_a_rate_after_it() {
        let mut forecast = forecast([0.0; TIERS]);
        let alone_us = forecast.first_token_us(Tier::Standard, 100, 1.0, NOW);
        forecast.arrived(Tier::Premium, 300, NOW);
        let behind_us = forecast.first_token_us(Tier::Standard, 100, 1.0, NOW);
        // One premium prompt of 30 ms within the 3 s of averaging makes a premium demand of 1 % of the device's time.
        assert!(
            (behind_us - (40_000.0 / (1.0 / 3.0 - 0.01) + 30_000.0)).abs() < 1.0,
            "{behind_us}"
        );
        forecast.update(capacity());
        let next_us = forecast.first_token_us(Tier::Standard, 100, 1.0, NOW);
        assert!(alone_us < next_us && next_us < behind_us, "{next_us}");
        assert_eq!(
            forecast.first_token_us(Tier::Premium, 100, 1.0, NOW),
            alone_us,
            "its own rate is no one before it"
        );
        let later_us = forecast.first_token_us(Tier::Standard, 100, 1.0, NOW + 60_000_000);
        assert!((later_us - alone_us).abs() < 1.0, "forgotten");
    }

    #[test]
    fn a_forecast_is_finite_however_much_time_higher_tiers_took() {
        let mut forecast = forecast([0.0; TIERS]);
        for _ in 0..1000 {
            forecast.arrived(Tier::Premium, 1000, NOW);
        }
        let us = forecast.first_token_us(Tier::Standard, 100, 1.0, NOW);
        assert!(us.is_finite() && us > 1e9);
        assert!(Forecast::default().first_token_us(Tier::Standard, 100, 1.0, NOW).is_finite());
    }

    #[test]
    fn the_margin_settles_where_as_many_are_late_as_may_be() {
        let mut margin = Margin::default();
        for number in 0..20_000 {
            // Simulated forecast errors: requests accepted with a margin of at most 0.8 are never late; with a larger
            // margin every second one is late. The margin must settle near 0.8.
            margin.observe(margin.share() > 0.8 && number % 2 == 0);
        }
        assert!((0.78..0.83).contains(&margin.share()), "{}", margin.share());
        for _ in 0..100 {
            margin.observe(true);
        }
        assert_eq!(margin.share(), MARGINS.0);
        for _ in 0..10_000 {
            margin.observe(false);
        }
        assert_eq!(margin.share(), MARGINS.1);
    }

    /// Returns the forecast TTFT of a standard request at time `now`, us, after premium prompts of 30 ms arrived at
    /// `arrivals`, and a later report in which no prompt waits.
    fn after_premium(arrivals: &[Timestamp], now: Timestamp) -> f64 {
        let mut forecast = forecast([0.0; TIERS]);
        for arrival in arrivals {
            forecast.arrived(Tier::Premium, 300, *arrival);
        }
        forecast.update(capacity());
        forecast.first_token_us(Tier::Standard, 100, 1.0, now)
    }

    #[test]
    fn the_demand_of_higher_tiers_decays_with_the_time_constant() {
        let then = NOW + TIME_CONSTANT_US as u64;
        // Each premium prompt of 30 ms adds 0.01 (30 ms in 3 s) to the premium demand. After 3 s, 1 / e of an addition
        // is left.
        let left = 0.01 / std::f64::consts::E;
        let expected_us = |demand: f64| 10_000.0 / (1.0 / 3.0 - demand) + 30_000.0;
        let one_us = after_premium(&[NOW], then);
        assert!((one_us - expected_us(left)).abs() < 1.0, "{one_us}");
        let two_us = after_premium(&[NOW, then], then);
        assert!((two_us - expected_us(left + 0.01)).abs() < 1.0, "{two_us}");
    }

    #[test]
    fn what_the_scheduler_reports_is_in_effect_until_the_next_report() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.shedding(), None);
        for (late, fair_tenants, fair_tiers) in
            [(Late::Wait, true, false), (Late::Refuse, false, true), (Late::BestEffort, true, true)]
        {
            let shedding = Some(SheddingSettings { late, ..SheddingSettings::default() });
            forecast.update(Capacity { shedding, fair_tenants, fair_tiers, ..capacity() });
            assert_eq!(forecast.shedding(), shedding);
            assert_eq!(
                (forecast.fair_tenants(), forecast.fair_tiers()),
                (fair_tenants, fair_tiers)
            );
        }
        forecast.update(capacity());
        assert_eq!(forecast.shedding(), None);
        assert_eq!((forecast.fair_tenants(), forecast.fair_tiers()), (false, false));
    }

    #[test]
    fn one_request_changes_the_margin_by_the_learning_rate() {
        let after = |late| {
            let mut margin = Margin::default();
            margin.observe(late);
            margin.share()
        };
        // A late request lowers the margin by 0.02 * 0.95, and one in time raises the margin by 0.02 * 0.05.
        assert!((after(true) - 0.981).abs() < 1e-12, "{}", after(true));
        assert!((after(false) - 1.001).abs() < 1e-12, "{}", after(false));
    }
}
