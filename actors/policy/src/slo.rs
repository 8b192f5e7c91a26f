//! Sliding windows of latency against targets.

use std::collections::VecDeque;
use tiercel_config::{SloSettings, SloTargets};
use tiercel_device::{Tier, Timestamp};

/// The targets of a tier; the system's own requests have none.
pub fn targets_of(settings: &SloSettings, tier: Tier) -> SloTargets {
    match tier {
        Tier::System => SloTargets::default(),
        Tier::Premium => settings.premium,
        Tier::Standard => settings.standard,
        Tier::Background => settings.background,
    }
}

/// Samples kept per window; older ones leave first when a window is busier than that.
const MAX_SAMPLES: usize = 2048;

/// Latencies of the last seconds. Expires by time as well as by count, so that an old burst never
/// speaks for the present.
#[derive(Debug, Clone)]
pub struct Window {
    length_us: u64,
    samples: VecDeque<(Timestamp, f64)>,
}

/// What a window says about a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowReport {
    /// Samples in the window.
    pub samples: usize,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Share of samples within the target; 1 without samples or target.
    pub compliance: f64,
    /// `1 - p99 / target`: 1 is all slack left, 0 at the limit, below 0 violating; 1 without samples
    /// or target.
    pub headroom: f64,
}

impl Window {
    /// An empty window of the last `length_s` seconds.
    pub fn new(length_s: u64) -> Window {
        Window { length_us: length_s * 1_000_000, samples: VecDeque::new() }
    }

    /// Adds a sample.
    pub fn add(&mut self, at: Timestamp, value_ms: f64) {
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((at, value_ms));
    }

    /// Evaluates the window at `now`.
    pub fn report(&mut self, now: Timestamp, target_ms: Option<f64>) -> WindowReport {
        let length_us = self.length_us;
        while self.samples.front().is_some_and(|(at, _)| now.since_us(*at) > length_us) {
            self.samples.pop_front();
        }
        let mut sorted: Vec<f64> = self.samples.iter().map(|(_, value)| *value).collect();
        sorted.sort_by(f64::total_cmp);
        let (p50_ms, p99_ms) = (percentile(&sorted, 0.5), percentile(&sorted, 0.99));
        let judged = target_ms.filter(|_| !sorted.is_empty());
        let within = |target| sorted.iter().filter(|value| **value <= target).count() as f64;
        WindowReport {
            samples: sorted.len(),
            p50_ms,
            p99_ms,
            compliance: judged.map_or(1.0, |target| within(target) / sorted.len() as f64),
            headroom: judged.map_or(1.0, |target| 1.0 - p99_ms / target),
        }
    }
}

/// Nearest-rank percentile of sorted values; 0 of none.
fn percentile(sorted: &[f64], q: f64) -> f64 {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

/// The three windows of a tier.
#[derive(Debug, Clone)]
pub struct TierWindows {
    /// Time to first token.
    pub ttft: Window,
    /// Mean time per output token.
    pub tpot: Window,
    /// End to end.
    pub e2e: Window,
}

impl TierWindows {
    /// Empty windows.
    pub fn new(length_s: u64) -> TierWindows {
        let window = Window::new(length_s);
        TierWindows { ttft: window.clone(), tpot: window.clone(), e2e: window }
    }

    /// Reports of TTFT, TPOT and E2E against a tier's targets.
    pub fn report(&mut self, now: Timestamp, targets: &SloTargets) -> [WindowReport; 3] {
        [
            self.ttft.report(now, targets.ttft_ms),
            self.tpot.report(now, targets.tpot_ms),
            self.e2e.report(now, targets.e2e_ms),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_compliance_and_headroom() {
        let mut window = Window::new(60);
        for i in 1..=100 {
            window.add(Timestamp(i), i as f64);
        }
        let report = window.report(Timestamp(200), Some(198.0));
        assert_eq!((report.p50_ms, report.p99_ms), (50.0, 99.0));
        assert_eq!(report.compliance, 1.0);
        assert_eq!(report.headroom, 0.5);
        assert_eq!(window.report(Timestamp(200), Some(90.0)).compliance, 0.9);
    }

    #[test]
    fn samples_expire_by_time_and_by_count() {
        let mut window = Window::new(1);
        window.add(Timestamp(0), 500.0);
        assert_eq!(window.report(Timestamp(1_000_000), Some(100.0)).compliance, 0.0);
        let late = window.report(Timestamp(1_000_001), Some(100.0));
        assert_eq!((late.samples, late.compliance, late.headroom), (0, 1.0, 1.0));
        for _ in 0..2 * MAX_SAMPLES {
            window.add(Timestamp(0), 1.0);
        }
        assert_eq!(window.report(Timestamp(0), None).samples, MAX_SAMPLES);
    }
}
