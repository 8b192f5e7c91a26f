//! The slack reserve: slack that premium streams shall keep while several tiers have requests. Only the demand of
//! premium prompts for time in a step may use it up.
//!
//! A premium prompt whose first token is due may need more time in a step than the TPOT targets of the streams leave. A
//! stream with slack can afford the prompt. The slack that is enough is measured: the lag of a hypothetical premium
//! stream that is always running, if steps held only premium work, behaves as a queue (Lindley's recursion): each step
//! adds its premium work and takes off the TPOT target. The reserve is a quantile of the lag of this stream in about
//! the last ten minutes of steps while several tiers have requests.
//!
//! Lower tiers pay for the reserve, so it is no larger than premium's missed targets ask for. `slo.premium.assurance`
//! is the share of premium requests that shall be in target, for example 0.999 (three nines). The reserve begins at its
//! full size, at which it covers the lag in 99.9 % of the step time. While 1,000 premium requests (one divided by the
//! share that may miss) are in target without a miss, the covered share falls by a nine: to 99 %, then to 90 %, and
//! then to none. Each miss adds a nine, up to the full size. A miss counts whatever its cause. But some requests do not
//! count, in target or not: requests with targets of their own, requests that were on hold or changed their tier, and
//! requests whose last token came while one tier alone had requests (`State::learn_from_premium`).

use tiercel_device::Timestamp;

/// Upper bound of the measured lag behind the TPOT target, us. A stream with a larger lag needs more slack than streams
/// can save.
const LAG_MAX_US: f64 = 1e6;
/// Smallest lag behind the TPOT target that the histogram of lags tells apart from no lag, us.
const LAG_MIN_US: f64 = 1e3;
/// Ratio of a bucket's upper bound to its lower bound in the histogram of lags behind the TPOT target, for all buckets
/// but the first and the last.
const BUCKET_RATIO: f64 = 1.05;
/// Number of buckets of the histogram of lags behind the TPOT target: one for lags below 1 ms, the others for lags up
/// to 1 s.
const BUCKETS: usize = 143;
/// Largest sum of the histogram's step durations, us. The histogram is scaled down to this sum, so that older steps
/// count less and less.
const HISTOGRAM_MAX_US: f64 = 600e6;
/// Largest part of a step that a stream saves to build up its slack reserve, as a share of the stream's aimed pace, for
/// each nine that the reserve covers. The reserve covers three nines if it covers the lag in 0.999 of the step time.
const SAVED_PER_NINE: f64 = 0.05;
/// Largest number of excess misses, as a multiple of the nines of the assurance. Excess misses above the nines add
/// nothing to the reserve, but they keep it at its full size for longer: at an overload, misses come in clusters.
const EXCESS_PER_NINE: f64 = 2.0;
/// Number of steps between two computations of the slack reserve, which is a quantile of the time by which a premium
/// stream would be behind its TPOT target.
const STEPS_PER_UPDATE: u32 = 64;

/// Slack reserve (slack of premium streams that lower tiers' work may not use up). It is computed from a histogram of
/// lags: times by which premium streams would be behind their TPOT target if steps held only premium work.
#[derive(Debug, Clone)]
pub(crate) struct SlackReserve {
    /// Assurance: share of premium requests that shall be in target, 0 to 1.
    assurance: f64,
    /// Excess misses: number that rises by 1 with each premium request that missed a target, and falls by 1 less the
    /// assurance with each that is in target. At least 0. The reserve covers one nine of the step time for each excess
    /// miss, up to the nines of the assurance.
    excess_misses: f64,
    /// Lag of a hypothetical premium stream that is in every step, if steps held only premium work, us.
    lag_us: f64,
    /// Histogram of the lag: total duration of the steps that ended with a lag in each bucket, us.
    buckets: [f64; BUCKETS],
    /// Sum of the buckets of the lag histogram, us.
    seen_us: f64,
    /// Number of steps since the slack reserve was last computed.
    steps: u32,
    /// Time at which the latest step that the measurement counts ended. Steps of one tier alone and failed steps do not
    /// count.
    stepped_at: Timestamp,
    /// Slack reserve when it was last computed: a quantile of the lag, us.
    reserve_us: f64,
}

impl SlackReserve {
    /// Creates a slack reserve without measured lags, which is 0 us. Until premium requests are in target, the reserve
    /// has its full size: once lags are measured, it covers the lag in the assured share of the step time.
    pub(crate) fn new(assurance: f64) -> SlackReserve {
        SlackReserve {
            assurance,
            excess_misses: nines(assurance),
            lag_us: 0.0,
            buckets: [0.0; BUCKETS],
            seen_us: 0.0,
            steps: 0,
            stepped_at: Timestamp(0),
            reserve_us: 0.0,
        }
    }

    /// Changes the assurance. The reserve follows from the lags that were measured so far, and begins again at the full
    /// size of the new assurance, also if that is lower.
    pub(crate) fn set_assurance(&mut self, assurance: f64) {
        if assurance != self.assurance {
            self.assurance = assurance;
            self.excess_misses = nines(assurance);
            self.update_reserve();
        }
    }

    /// Changes the excess misses by a premium sequence that has ended, and met all of its targets or missed one.
    pub(crate) fn ended(&mut self, in_target: bool) {
        let change = if in_target { self.assurance - 1.0 } else { 1.0 };
        let most = EXCESS_PER_NINE * nines(self.assurance);
        self.excess_misses = (self.excess_misses + change).clamp(0.0, most);
    }

    /// Returns the number of nines of the share of the step time in which the reserve covers the lag (0.9 has one).
    fn covered_nines(&self) -> f64 {
        self.excess_misses.min(nines(self.assurance))
    }

    /// Creates a slack reserve of `reserve_us` for tests, without measured lags.
    #[cfg(test)]
    pub(crate) fn of_us(reserve_us: f64) -> SlackReserve {
        SlackReserve { reserve_us, ..SlackReserve::new(0.999) }
    }

    /// Returns the slack that premium streams shall keep, us.
    pub(crate) fn reserve_us(&self) -> f64 {
        self.reserve_us
    }

    /// Returns the largest part of a step that a stream saves to build up its slack reserve, as a share of its aimed
    /// pace. A reserve that covers the lag in a larger share of the step time is built up sooner.
    pub(crate) fn saving_max(&self) -> f64 {
        SAVED_PER_NINE * self.covered_nines()
    }

    /// Adds a step of `step_us` that ended at `now` to the measurement of the lag. With premium work alone the step
    /// would have taken `premium_us`; `target_us` is the TPOT target of premium streams.
    pub(crate) fn stepped(
        &mut self,
        premium_us: f64,
        target_us: f64,
        step_us: f64,
        now: Timestamp,
    ) {
        // While the device is idle, the hypothetical stream's lag shrinks. The lag also shrinks while uncounted steps
        // run (steps of one tier alone, and failed steps). A gap between steps that is shorter than `target_us` does
        // not count as idle, because there is a short gap between any two steps.
        let idle_us = now.since_us(self.stepped_at) as f64 - step_us;
        if idle_us > target_us {
            self.lag_us = (self.lag_us - idle_us).max(0.0);
        }
        self.stepped_at = now;
        self.lag_us = (self.lag_us + premium_us - target_us).clamp(0.0, LAG_MAX_US);
        self.buckets[bucket_of(self.lag_us)] += step_us;
        self.seen_us += step_us;
        self.steps += 1;
        if self.steps == STEPS_PER_UPDATE {
            self.steps = 0;
            self.update_reserve();
        }
    }

    /// Scales the lag histogram down to a sum of at most ten minutes, so that older steps count less and less, and
    /// computes the slack reserve as a quantile of the lag.
    fn update_reserve(&mut self) {
        let kept = (HISTOGRAM_MAX_US / self.seen_us.max(1.0)).min(1.0);
        self.buckets.iter_mut().for_each(|us| *us *= kept);
        self.seen_us *= kept;
        // If the reserve covers no nine, the reserve is 0 us. The sum over the buckets below could give a small reserve
        // here by rounding, because `seen_us` was summed in another order.
        if self.covered_nines() == 0.0 {
            self.reserve_us = 0.0;
            return;
        }
        let most_us = self.seen_us * 0.1_f64.powf(self.covered_nines());
        let mut above_us = 0.0;
        let at = self.buckets.iter().rposition(|us| {
            above_us += us;
            above_us > most_us
        });
        self.reserve_us = upper_us(at.unwrap_or(0));
    }
}

/// Returns the number of nines of a share: 1 for 0.9, 3 for 0.999.
fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

fn bucket_of(lag_us: f64) -> usize {
    if lag_us < LAG_MIN_US {
        return 0;
    }
    let at = (lag_us / LAG_MIN_US).ln() / BUCKET_RATIO.ln();
    (at as usize + 1).min(BUCKETS - 1)
}

/// Returns the upper bound of a bucket of the histogram of lags behind the TPOT target, us; 0 for bucket 0, which
/// stands for no lag.
fn upper_us(bucket: usize) -> f64 {
    match bucket {
        0 => 0.0,
        at => (LAG_MIN_US * BUCKET_RATIO.powi(at as i32)).min(LAG_MAX_US),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET_US: f64 = 30_000.0;

    /// Returns the slack reserve after `steps` steps of 30 ms, the TPOT target. Every `period`-th step holds
    /// `premium_us` of premium work, the others none.
    fn after(assurance: f64, period: u64, premium_us: f64, steps: u64) -> SlackReserve {
        let mut reserve = SlackReserve::new(assurance);
        for step in 1..=steps {
            let premium_us = if step % period == 0 { premium_us } else { 0.0 };
            reserve.stepped(premium_us, TARGET_US, TARGET_US, Timestamp(step * 30_000));
        }
        reserve
    }

    #[test]
    fn the_full_reserve_covers_the_lag_in_the_assured_share_of_the_step_time() {
        // A premium prompt of 180 ms in every hundredth step leaves lags of 150, 120, 90, 60 and 30 ms: 5 of 100 steps
        // end with a lag, so the quantiles of the lag are known exactly.
        for (assurance, least_us, most_us) in
            [(0.9, 0.0, 0.0), (0.955, 28e3, 33e3), (0.985, 110e3, 130e3), (0.999, 145e3, 165e3)]
        {
            let us = after(assurance, 100, 180_000.0, 10_000).reserve_us();
            assert!((least_us..=most_us).contains(&us), "{assurance}: {us}");
        }
    }

    #[test]
    fn each_covered_nine_lets_a_stream_save_five_percent_of_a_step() {
        for (assurance, share) in [(0.9, 0.05), (0.99, 0.10), (0.999, 0.15), (0.9999, 0.20)] {
            let saved = SlackReserve::new(assurance).saving_max();
            assert!((saved - share).abs() < 1e-9, "{assurance}: {saved}");
        }
    }

    #[test]
    fn the_reserve_is_as_large_as_missed_targets_ask_for() {
        // One of 100 steps ends with a lag of 150 ms, four more with less: 150 ms are the quantile 0.999.
        let mut reserve = after(0.999, 100, 180_000.0, 10_000);
        let mut us_after = |requests: usize, in_target| {
            (0..requests).for_each(|_| reserve.ended(in_target));
            reserve.update_reserve();
            reserve.reserve_us()
        };
        let full_us = us_after(0, true);
        // 1,000 requests in target take off a nine: 99 % of the step time have lags of at most 120 ms, 90 % have none.
        let one_less_us = us_after(1_001, true);
        assert!(
            (110e3..130e3).contains(&one_less_us) && full_us > 145e3,
            "{one_less_us} {full_us}"
        );
        assert_eq!(us_after(1_000, true), 0.0);
        assert_eq!(us_after(5_000, true), 0.0);
        assert_eq!(us_after(3, false), full_us, "each miss adds a nine");
        // Of 30 more misses only three count, which keep the reserve at its full size for 3,000 requests.
        us_after(30, false);
        assert_eq!(us_after(2_999, true), full_us);
        assert!(us_after(1_001, true) < 130e3);
    }

    #[test]
    fn a_changed_assurance_begins_with_the_full_reserve() {
        let mut reserve = after(0.99, 100, 180_000.0, 10_000);
        (0..1_000).for_each(|_| reserve.ended(true));
        assert_eq!(reserve.saving_max(), 0.0);
        reserve.set_assurance(0.999);
        assert!(reserve.reserve_us() > 145e3 && reserve.saving_max() > 0.149, "{reserve:?}");
    }

    #[test]
    fn work_within_the_pace_needs_no_reserve() {
        assert_eq!(after(0.9999, 1, 29_000.0, 10_000).reserve_us(), 0.0);
    }

    #[test]
    fn the_reserve_is_bounded_and_forgotten() {
        let mut reserve = after(0.999, 1, 60_000.0, 10_000);
        assert_eq!(reserve.reserve_us(), LAG_MAX_US);
        for step in 10_000..300_000 {
            reserve.stepped(0.0, TARGET_US, TARGET_US, Timestamp(step * 30_000));
        }
        assert_eq!(reserve.reserve_us(), 0.0);
    }

    #[test]
    fn idle_time_catches_up() {
        let mut reserve = SlackReserve::new(0.9);
        for step in 1..=1_000 {
            reserve.stepped(180_000.0, TARGET_US, TARGET_US, Timestamp(step * 1_000_000));
        }
        assert!(reserve.lag_us < 151_000.0, "{}", reserve.lag_us);
    }

    #[test]
    fn a_lag_is_in_the_bucket_with_its_bounds() {
        for lag_us in [1_000.0, 1_049.0, 33_000.0, 999_999.0] {
            let upper = upper_us(bucket_of(lag_us));
            assert!(lag_us <= upper && upper < lag_us * 1.06, "{lag_us} {upper}");
        }
        assert_eq!(upper_us(bucket_of(LAG_MAX_US)), LAG_MAX_US);
    }

    #[test]
    fn an_idle_time_longer_than_a_token_is_taken_off_the_lag() {
        let mut reserve = SlackReserve::new(0.9);
        reserve.stepped(180_000.0, TARGET_US, TARGET_US, Timestamp(30_000));
        assert_eq!(reserve.lag_us, 150_000.0, "180 ms of work in 30 ms");
        // Steps of 30 ms of premium work leave the lag as it is. Before the first the device is idle for 40 ms, before
        // the second for exactly the 30 ms that a token may take.
        reserve.stepped(TARGET_US, TARGET_US, TARGET_US, Timestamp(100_000));
        assert_eq!(reserve.lag_us, 110_000.0);
        reserve.stepped(TARGET_US, TARGET_US, TARGET_US, Timestamp(160_000));
        assert_eq!(reserve.lag_us, 110_000.0, "such a gap does not count as idle");
    }

    #[test]
    fn the_reserve_stays_the_same_however_long_the_same_steps_go_on() {
        // A lag of 30 ms in one of 20 steps: the reserve covers it, because 95 % of the steps are fewer than the 95.5 %
        // that it covers. Ten minutes are 20,000 steps.
        let reserves_us = [1_280, 19_200, 25_600, 320_000].map(|steps| {
            let reserve = after(0.955, 20, 60_000.0, steps);
            let sum_us: f64 = reserve.buckets.iter().sum();
            assert!((reserve.seen_us / sum_us - 1.0).abs() < 1e-6, "{steps} steps");
            assert!(reserve.seen_us < 1.001 * HISTOGRAM_MAX_US, "{steps} steps");
            reserve.reserve_us()
        });
        assert!((30e3..33e3).contains(&reserves_us[0]), "{reserves_us:?}");
        assert_eq!(reserves_us, [reserves_us[0]; 4]);
    }

    #[test]
    fn no_reserve_is_kept_if_exactly_the_covered_share_of_steps_has_no_lag() {
        // Every fourth step ends with a lag of 10 ms, and the next three with none.
        assert_eq!(after(0.75, 4, 40_000.0, 64).reserve_us(), 0.0);
        assert!((10e3..11e3).contains(&after(0.76, 4, 40_000.0, 64).reserve_us()));
    }

    #[test]
    fn a_lag_beyond_the_largest_is_in_the_last_bucket() {
        assert_eq!(bucket_of(2.0 * LAG_MAX_US), BUCKETS - 1);
    }
}
