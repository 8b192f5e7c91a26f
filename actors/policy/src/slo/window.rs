//! A sliding window of latencies, kept as quantile sketches of bounded size instead of samples.

use sketches_ddsketch::{Config, DDSketch};
use std::collections::VecDeque;
use tiercel_device::Timestamp;

/// Number of time slices of a sliding window. The oldest slice is dropped as a whole, so a window reaches back at least
/// five sixths of its length.
const SLICES: usize = 6;
/// Most samples in one time slice of a sliding window. A window with more samples reaches back less far.
const SLICE_SAMPLES: u64 = 2048;
/// Relative error of a percentile of a quantile sketch (DDSketch, Masson, Rim, Lee 2019).
const ACCURACY: f64 = 0.01;
/// Smallest and greatest latency that a quantile sketch tells apart, ms. A smaller one counts as 0, a larger one as the
/// greatest: nearly three hours.
const LEAST: f64 = 1e-2;
const MOST: f64 = 1e7;
/// Most bins of a quantile sketch. At its accuracy of 1 %, 1037 bins cover all latencies from the smallest to the
/// greatest.
const MAX_BINS: u32 = 1152;

/// Sliding window of the latencies of the last seconds. Samples expire by time and by count, so that an old burst never
/// speaks for the present.
#[derive(Clone)]
pub struct Window {
    length_us: u64,
    slices: VecDeque<Slice>,
}

#[derive(Clone)]
struct Slice {
    since: Timestamp,
    latencies_ms: DDSketch,
    /// Quantile sketch of latency / target.
    used: DDSketch,
    samples: u64,
    /// `judged`: number of requests that had a target; `met`: number of these that met it.
    judged: u64,
    met: u64,
}

/// Time that an unfinished request has taken so far, and its latency target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unfinished {
    /// Time since the request arrived, ms.
    pub so_far_ms: f64,
    /// Latency target of the request, ms.
    pub target_ms: f64,
}

/// Statistics of the latencies in a sliding window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowReport {
    /// Number of latencies in the sliding window.
    pub samples: u64,
    /// Number of unfinished requests whose latency already exceeds its target.
    pub overdue: u64,
    /// Median latency, ms; 0 without samples.
    pub p50_ms: f64,
    /// 90th percentile of the latencies, ms; 0 without samples.
    pub p90_ms: f64,
    /// 99th percentile of the latencies, ms; 0 without samples.
    pub p99_ms: f64,
    /// Compliance: share of the requests with a target that met it; unfinished ones beyond their target count as
    /// misses. 1 if no request has a target.
    pub compliance: f64,
    /// Headroom: 1 - the 99th percentile of `latency / target`. It is near 1 if requests take a small part of their
    /// target, 0 at the target, and negative above it. Unfinished requests beyond their target count with the time that
    /// they have taken so far. 1 if no request has a target.
    pub headroom: f64,
}

impl Slice {
    fn new(since: Timestamp) -> Slice {
        let (latencies_ms, used) = (sketch(), sketch());
        Slice { since, latencies_ms, used, samples: 0, judged: 0, met: 0 }
    }
}

impl Window {
    /// Creates an empty sliding window of the last `length_s` seconds.
    pub fn new(length_s: u64) -> Window {
        Window { length_us: length_s * 1_000_000, slices: VecDeque::new() }
    }

    /// Adds the latency of a request to the window, and whether it met its target, if it has one.
    pub fn add(&mut self, at: Timestamp, latency_ms: f64, target_ms: Option<f64>) {
        let slice = self.slice_at(at);
        slice.samples += 1;
        slice.latencies_ms.add(latency_ms.min(MOST));
        if let Some(target_ms) = target_ms {
            slice.judged += 1;
            slice.met += u64::from(latency_ms <= target_ms);
            slice.used.add(share_used(latency_ms, target_ms));
        }
    }

    /// Adds a missed target of a request that ended before its latency could be measured. `taken` is the time until its
    /// end, which counts for the headroom.
    pub fn add_missed(&mut self, at: Timestamp, taken: Option<Unfinished>) {
        let slice = self.slice_at(at);
        slice.judged += 1;
        if let Some(Unfinished { so_far_ms, target_ms }) = taken {
            slice.used.add(share_used(so_far_ms, target_ms));
        }
    }

    fn slice_at(&mut self, at: Timestamp) -> &mut Slice {
        let slice_us = self.length_us / SLICES as u64;
        let over = |slice: &Slice| {
            at.since_us(slice.since) >= slice_us || slice.judged.max(slice.samples) >= SLICE_SAMPLES
        };
        if self.slices.back().is_none_or(over) {
            if self.slices.len() == SLICES {
                self.slices.pop_front();
            }
            self.slices.push_back(Slice::new(at));
        }
        self.slices.back_mut().expect("one was added if there was none")
    }

    /// Whether all samples of the window have expired at `now`.
    pub fn is_empty(&mut self, now: Timestamp) -> bool {
        self.expire(now);
        self.slices.is_empty()
    }

    fn expire(&mut self, now: Timestamp) {
        let length_us = self.length_us;
        while self.slices.front().is_some_and(|slice| now.since_us(slice.since) > length_us) {
            self.slices.pop_front();
        }
    }

    /// Computes the statistics of the window at time `now`. `overdue` are the unfinished requests beyond their target,
    /// which count as misses.
    pub fn report(
        &mut self,
        now: Timestamp,
        overdue: impl Iterator<Item = Unfinished>,
    ) -> WindowReport {
        self.expire(now);
        let (mut latencies_ms, mut used) = (sketch(), sketch());
        let (mut samples, mut judged, mut met, mut late) = (0, 0, 0, 0);
        for slice in &self.slices {
            merge(&mut latencies_ms, &slice.latencies_ms);
            merge(&mut used, &slice.used);
            samples += slice.samples;
            judged += slice.judged;
            met += slice.met;
        }
        for unfinished in overdue {
            late += 1;
            used.add(share_used(unfinished.so_far_ms, unfinished.target_ms));
        }
        let judged = judged + late;
        let [p50_ms, p90_ms, p99_ms] = [0.5, 0.9, 0.99].map(|q| percentile(&latencies_ms, q));
        WindowReport {
            samples,
            overdue: late,
            p50_ms,
            p90_ms,
            p99_ms,
            compliance: if judged == 0 { 1.0 } else { met as f64 / judged as f64 },
            headroom: if used.count() == 0 { 1.0 } else { 1.0 - percentile(&used, 0.99) },
        }
    }
}

fn sketch() -> DDSketch {
    DDSketch::new(Config::new(ACCURACY, MAX_BINS, LEAST))
}

fn merge(into: &mut DDSketch, from: &DDSketch) {
    if from.count() > 0 {
        into.merge(from).expect("all sketches are made alike");
    }
}

fn share_used(latency_ms: f64, target_ms: f64) -> f64 {
    (latency_ms / target_ms.max(LEAST)).min(MOST)
}

/// Returns the percentile `q` (0 to 1) of a quantile sketch by the nearest-rank method; 0 for an empty sketch.
fn percentile(sketch: &DDSketch, q: f64) -> f64 {
    let last = sketch.count().saturating_sub(1);
    let rank = ((sketch.count() as f64 * q).ceil() as usize).clamp(1, last + 1) - 1;
    // The sketch returns the sample of rank `floor(q * last)`, counted from 0. This `q` makes that rank equal to the
    // nearest rank of the percentile.
    let q = if rank == last { 1.0 } else { (rank as f64 + 0.5) / last as f64 };
    sketch.quantile(q).expect("a quantile between 0 and 1").unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::empty;

    const S: u64 = 1_000_000;

    fn near(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() <= 2.0 * ACCURACY
    }

    #[test]
    fn percentiles_compliance_and_headroom() {
        let mut window = Window::new(60);
        // Add latencies of 1 to 1000 ms in a scrambled order, spread over all time slices.
        for i in 0..1000 {
            window.add(Timestamp(i * 59_000), ((i * 617) % 1000 + 1) as f64, Some(2000.0));
        }
        let report = window.report(Timestamp(59 * S), empty());
        assert!(near(report.p50_ms, 500.0) && near(report.p90_ms, 900.0), "{report:?}");
        assert!(near(report.p99_ms, 990.0) && near(1.0 - report.headroom, 0.495), "{report:?}");
        assert_eq!((report.samples, report.overdue, report.compliance), (1000, 0, 1.0));
    }

    #[test]
    fn every_sample_is_judged_by_its_own_target_and_exactly() {
        let mut window = Window::new(60);
        for (latency_ms, target_ms) in
            [(100.0, Some(100.0)), (100.0, Some(99.9)), (900.0, Some(1000.0)), (9e9, None)]
        {
            window.add(Timestamp(0), latency_ms, target_ms);
        }
        let report = window.report(Timestamp(0), empty());
        assert_eq!((report.samples, report.compliance), (4, 2.0 / 3.0));
        assert!(report.headroom.abs() < 0.03, "at the limit: {report:?}");
    }

    #[test]
    fn those_overdue_count_before_they_get_there_and_those_that_never_do_as_misses() {
        let mut window = Window::new(60);
        window.add(Timestamp(0), 50.0, Some(100.0));
        let late = Unfinished { so_far_ms: 300.0, target_ms: 100.0 };
        let report = window.report(Timestamp(S), std::iter::repeat_n(late, 3));
        assert_eq!((report.samples, report.overdue, report.compliance), (1, 3, 0.25));
        assert!(near(1.0 - report.headroom, 3.0), "{report:?}");
        assert!(near(report.p99_ms, 50.0), "nobody has seen more yet: {report:?}");
        assert_eq!(window.report(Timestamp(S), empty()).compliance, 1.0, "they were not added");
        window.add_missed(Timestamp(S), Some(late));
        let report = window.report(Timestamp(S), empty());
        assert_eq!((report.samples, report.compliance), (1, 0.5));
        assert!(near(1.0 - report.headroom, 3.0), "{report:?}");
    }

    #[test]
    fn samples_expire_by_time_and_by_count() {
        let mut window = Window::new(1);
        window.add(Timestamp(0), 500.0, Some(100.0));
        assert_eq!(window.report(Timestamp(S), empty()).compliance, 0.0);
        let late = window.report(Timestamp(S + 1), empty());
        assert_eq!((late.samples, late.compliance, late.headroom), (0, 1.0, 1.0));
        assert!(window.is_empty(Timestamp(S + 1)));
        window.add(Timestamp(2 * S), 7.0, Some(1.0));
        for _ in 0..SLICES as u64 * SLICE_SAMPLES {
            window.add(Timestamp(2 * S), 1.0, Some(1.0));
        }
        let report = window.report(Timestamp(2 * S), empty());
        assert!(report.samples <= SLICES as u64 * SLICE_SAMPLES, "{report:?}");
        assert_eq!(report.compliance, 1.0, "the first one is gone");
        assert_eq!(window.slices.len(), SLICES);
    }

    #[test]
    fn of_few_samples_the_worst_is_the_99th_percentile() {
        let mut window = Window::new(60);
        for latency_ms in [50.0, 10_000.0] {
            window.add(Timestamp(0), latency_ms, Some(100.0));
        }
        let report = window.report(Timestamp(0), empty());
        assert!(near(report.p99_ms, 10_000.0) && near(report.p50_ms, 50.0), "{report:?}");
        assert!(report.headroom < -90.0, "{report:?}");
    }

    #[test]
    fn latencies_beyond_all_measure_are_bounded_too() {
        let mut window = Window::new(60);
        for at in 0..59 {
            for exponent in [-300, at - 30, 30 - at, 300] {
                window.add(Timestamp(at as u64 * S), 10f64.powi(exponent), Some(1.0));
            }
        }
        let report = window.report(Timestamp(59 * S), empty());
        assert_eq!((report.samples, window.slices.len()), (4 * 59, SLICES));
        assert!((report.compliance - 0.5).abs() < 0.05, "{report:?}");
        assert!(near(report.p99_ms, MOST), "{report:?}");
        for slice in &window.slices {
            assert!(slice.latencies_ms.length() <= MAX_BINS as usize);
        }
    }
}
