//! When a request that comes now would have its first token.
//!
//! The scheduler says once a step what time there is for prompts and how much of it those that wait will take;
//! between two such reports arrivals are added up here. Better tiers go first, those that are still to come
//! included: what they took lately they are expected to take again.

use crate::admission::ShareReport;
use tiercel_config::SheddingSettings;
use tiercel_device::{Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();

/// Time over which the rate of arrivals is averaged, us: long enough to have seen some, short enough for a
/// surge.
const MEMORY_US: f64 = 3e6;
/// Least share of the time that is counted on for a tier, however much better ones took lately.
const LEAST_SHARE: f64 = 0.02;

/// Of those that were let in as in time so many may be late.
const LATE_SHARE: f64 = 0.05;
/// How much one that is late moves the margin.
const MARGIN_GAIN: f64 = 0.02;
/// Bounds of the margin.
const MARGINS: (f64, f64) = (0.6, 1.2);

/// Share of a target up to which a request counts as in time when it comes: forecasts are not exact. It shrinks
/// with every one that was let in and late, and grows with those in time, so that few are late and no more are
/// turned away than must be (adaptive conformal inference, Gibbs and Candes 2021).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin(f64);

impl Default for Margin {
    fn default() -> Self {
        Margin(1.0)
    }
}

impl Margin {
    /// The share.
    pub fn share(self) -> f64 {
        self.0
    }

    /// One that was let in had its first token, `late` or not.
    pub fn observe(&mut self, late: bool) {
        let change = if late { LATE_SHARE - 1.0 } else { LATE_SHARE };
        self.0 = (self.0 + MARGIN_GAIN * change).clamp(MARGINS.0, MARGINS.1);
    }
}

/// What the scheduler says of the time there is for prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Capacity {
    /// Length of the steps that the streams' targets allow, us.
    pub step_us: f64,
    /// Length of a step with nothing in it, us.
    pub idle_us: f64,
    /// Of `step_us`, what is left for prompts while background waits, us.
    pub prompts_us: f64,
    /// Time that prompts without a first token still take, by tier, us.
    pub backlog_us: [f64; TIERS],
    /// Expected wait in each tier's queue, us, as fast as it drained lately; `None` if nothing is known.
    pub queue_us: [Option<f64>; TIERS],
    /// Whether tenants of a tier take turns.
    pub fair_tenants: bool,
    /// Whether tiers share what work with targets leaves.
    pub fair_tiers: bool,
    /// Time that a token of a prompt takes, what is found cached included, us.
    pub token_us: f64,
    /// Who has which share of the device's time.
    pub shares: ShareReport,
    /// What to do with requests for which there is no time.
    pub shedding: Option<SheddingSettings>,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Forecast {
    capacity: Capacity,
    /// Time that prompts take which came since, by tier, us.
    arrived_us: [f64; TIERS],
    /// Time that prompts took that came lately, by tier: a share of all time, as of `rates_at`.
    rates: [f64; TIERS],
    rates_at: Timestamp,
}

impl Forecast {
    /// The scheduler's next report.
    pub fn update(&mut self, capacity: Capacity) {
        self.capacity = capacity;
        self.arrived_us = [0.0; TIERS];
    }

    /// What to do with requests for which there is no time, if the scheduler knows of time at all.
    pub fn shedding(&self) -> Option<SheddingSettings> {
        self.capacity.shedding
    }

    /// Whether tenants of a tier take turns.
    pub fn fair_tenants(&self) -> bool {
        self.capacity.fair_tenants
    }

    /// Whether tiers share what work with targets leaves.
    pub fn fair_tiers(&self) -> bool {
        self.capacity.fair_tiers
    }

    /// How long a request of the tier would wait as fast as its queue drained lately if all that wait in it went
    /// first, us; `None` if nothing is known.
    pub fn queue_us(&self, tier: Tier) -> Option<f64> {
        self.capacity.queue_us[tier.index()]
    }

    /// A request was let in.
    pub fn arrived(&mut self, tier: Tier, prompt: u32, now: Timestamp) {
        let us = self.capacity.token_us * f64::from(prompt);
        let kept = (-(now.since_us(self.rates_at) as f64) / MEMORY_US).exp();
        self.rates_at = now;
        for rate in &mut self.rates {
            *rate *= kept;
        }
        self.rates[tier.index()] += us / MEMORY_US;
        self.arrived_us[tier.index()] += us;
    }

    /// Time until the first token of a request if no other prompt were there, us.
    pub fn alone_us(&self, prompt: u32) -> f64 {
        let Capacity { step_us, prompts_us, token_us, .. } = self.capacity;
        let share = (prompts_us / step_us.max(1.0)).max(LEAST_SHARE);
        token_us * f64::from(prompt) / share + step_us
    }

    /// The same if nobody at all were there, us.
    pub fn idle_us(&self, prompt: u32) -> f64 {
        self.capacity.token_us * f64::from(prompt) + self.capacity.idle_us
    }

    /// Time until the first token of a request that comes now, us, if a share of `ahead` of what waits in its tier
    /// goes first.
    pub fn first_token_us(&self, tier: Tier, prompt: u32, ahead: f64, now: Timestamp) -> f64 {
        let Capacity { step_us, prompts_us, backlog_us, token_us, .. } = self.capacity;
        let kept = (-(now.since_us(self.rates_at) as f64) / MEMORY_US).exp();
        let better: f64 = self.rates[..tier.index()].iter().sum::<f64>() * kept;
        let share = (prompts_us / step_us.max(1.0) - better).max(LEAST_SHARE);
        let before =
            |us: &[f64; TIERS]| us[..tier.index()].iter().sum::<f64>() + us[tier.index()] * ahead;
        let work_us = before(&backlog_us) + before(&self.arrived_us) + token_us * f64::from(prompt);
        // The step under way is half over on average, and the first token comes at the end of one.
        work_us / share + step_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 30 ms, a third of it for prompts, 100 us a token.
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
    fn better_and_equal_tiers_go_first() {
        let forecast = forecast([0.0, 5_000.0, 20_000.0, 40_000.0]);
        let ms = |tier| forecast.first_token_us(tier, 100, 1.0, NOW) / 1000.0;
        // A prompt of 10 ms behind the others, at a third of the time, and the step it ends with.
        assert_eq!(ms(Tier::Premium), 3.0 * (10.0 + 5.0) + 30.0);
        assert_eq!(ms(Tier::Standard), 3.0 * (10.0 + 25.0) + 30.0);
        assert_eq!(ms(Tier::Background), 3.0 * (10.0 + 65.0) + 30.0);
        assert_eq!(forecast.alone_us(100) / 1000.0, 3.0 * 10.0 + 30.0);
        assert_eq!(forecast.idle_us(100) / 1000.0, 10.0 + 5.0);
        let us = forecast.first_token_us(Tier::Standard, 100, 0.25, NOW);
        assert_eq!(us / 1000.0, 3.0 * (10.0 + 10.0) + 30.0, "a quarter of its tier's");
    }

    #[test]
    fn arrivals_count_until_the_next_report_and_better_ones_as_a_rate_after_it() {
        let mut forecast = forecast([0.0; TIERS]);
        let alone_us = forecast.first_token_us(Tier::Standard, 100, 1.0, NOW);
        forecast.arrived(Tier::Premium, 300, NOW);
        let behind_us = forecast.first_token_us(Tier::Standard, 100, 1.0, NOW);
        // 30 ms of premium's in 3 s are a hundredth of the time.
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
    fn however_much_better_tiers_took_a_forecast_is_finite() {
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
            // Whoever is let in with less than 0.8 of the target is in time, of the others every second is late.
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
}
