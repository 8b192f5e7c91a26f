//! How fast a request queue drains, and the retry times (`Retry-After`) that follow from it.

use std::collections::VecDeque;
use tiercel_device::Timestamp;
use tiercel_device::mix::GOLDEN;

/// Number of latest departures from a queue whose gaps are averaged for its drain rate.
const DEPARTURES: usize = 32;
/// Wait on which a retry time (`Retry-After`) is based while the drain rate of the queue is unknown, ms.
const UNKNOWN_MS: f64 = 10_000.0;
/// Longest wait on which a retry time (`Retry-After`) is based, ms. With the largest addition the time is 120 s, the
/// longest that OpenAI's Python package waits; told a longer time, it gives up at once.
const LONGEST_MS: f64 = 80_000.0;
/// Largest random-looking addition to a retry time (`Retry-After`), as a share of that time. Additions differ between
/// clients, so that refused clients do not all come back at once.
const SPREAD: f64 = 0.5;

/// Drain rate of a queue, estimated from the gaps between its latest departures. Only time in which a request waited
/// counts, because an empty queue does not show how fast it would have drained.
#[derive(Debug, Clone, Default)]
pub struct DrainRate {
    gaps_us: VecDeque<u64>,
    sum_us: u64,
    waiting: u32,
    /// Start of the current gap between departures: when the last request was served, or when a request entered the
    /// empty queue. `None` while no gap runs: no request waits, or all that wait moved in from another tier.
    since: Option<Timestamp>,
}

impl DrainRate {
    /// Records, for the drain rate, that a request entered the queue.
    pub fn entered(&mut self, now: Timestamp) {
        self.waiting += 1;
        self.since.get_or_insert(now);
    }

    /// Records that a request moved in from the queue of another tier. The time that the request waited in that queue
    /// says nothing about the drain rate of this queue, so no gap between departures begins.
    pub fn moved_in(&mut self) {
        self.waiting += 1;
    }

    /// Returns the number of requests that wait in the queue.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Records that a request left the queue without being served. The drain rate does not change, because it counts
    /// only served requests.
    pub fn gave_up(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.since = None;
        }
    }

    /// Records that a waiting request was served and so left the queue, which ends a gap between departures.
    pub fn served(&mut self, now: Timestamp) {
        self.waiting = self.waiting.saturating_sub(1);
        let since = std::mem::replace(&mut self.since, (self.waiting > 0).then_some(now));
        let Some(since) = since else { return };
        let gap_us = now.since_us(since);
        if self.gaps_us.len() == DEPARTURES {
            self.sum_us -= self.gaps_us.pop_front().unwrap_or(0);
        }
        self.gaps_us.push_back(gap_us);
        self.sum_us += gap_us;
    }

    /// Returns the expected wait of a request that joins the queue now, us: mean gap between departures times the
    /// number of waiting requests; `None` before any gap was measured. A gap that is already longer than the mean
    /// raises the mean.
    pub fn wait_us(&self, now: Timestamp) -> Option<f64> {
        let left = self.gaps_us.len() as f64;
        let mean_us = (left > 0.0).then(|| self.sum_us as f64 / left)?;
        let since_us = self.since.map_or(0.0, |since| now.since_us(since) as f64);
        let mean_us = mean_us.max((self.sum_us as f64 + since_us) / (left + 1.0));
        Some(mean_us * f64::from(self.waiting))
    }
}

/// Returns the retry time (`Retry-After`) of a refused request, ms: the expected wait `wait_us` (10 s for `None`),
/// clamped to 1 s to 80 s, plus up to a half of it. The addition is computed from `number`: consecutive values give
/// evenly spread additions, so that clients that are refused together do not retry together.
pub fn retry_after_ms(wait_us: Option<f64>, number: u64) -> u64 {
    let wait_ms = wait_us.map_or(UNKNOWN_MS, |us| us / 1000.0).clamp(1_000.0, LONGEST_MS);
    // Low-discrepancy sequence: the fractional parts of the golden ratio's multiples are spread evenly over 0 to 1,
    // however many are drawn.
    let spread = number.wrapping_mul(GOLDEN) as f64 / u64::MAX as f64;
    (wait_ms * (1.0 + SPREAD * spread)).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn queue(waiting: u32) -> DrainRate {
        let mut rate = DrainRate::default();
        for _ in 0..waiting {
            rate.entered(Timestamp(0));
        }
        rate
    }

    #[test]
    fn the_wait_follows_the_drain_rate() {
        let mut rate = queue(30);
        assert_eq!(rate.wait_us(Timestamp(0)), None, "nothing known yet");
        for second in 1..=10 {
            rate.served(Timestamp(second * S));
        }
        assert_eq!(rate.wait_us(Timestamp(10 * S)), Some(20e6));
        assert_eq!(rate.wait_us(Timestamp(22 * S)), Some(40e6), "nobody left for 12 s");
        rate.gave_up();
        assert_eq!(
            rate.wait_us(Timestamp(10 * S)),
            Some(19e6),
            "one less to wait for, at the same rate"
        );
    }

    #[test]
    fn retry_times_are_bounded() {
        let waits = [None, Some(0.0), Some(20e6), Some(1e9)];
        let told = |number| waits.map(|us| retry_after_ms(us, number));
        assert_eq!(told(0), [10_000, 1_000, 20_000, 80_000]);
        for number in 0..1000 {
            let longer = told(number)
                .iter()
                .zip(told(0))
                .all(|(ms, first)| (first..=first * 3 / 2 + 1).contains(ms));
            assert!(longer && told(number).iter().all(|ms| *ms <= 120_000), "{number}");
        }
    }

    #[test]
    fn clients_refused_together_do_not_come_back_together() {
        let mut told: Vec<u64> =
            (7..107).map(|number| retry_after_ms(Some(10e6), number)).collect();
        told.sort_unstable();
        let widest = told.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest < Some(150) && told[0] < 10_150 && told[99] > 14_850, "{told:?}");
    }

    #[test]
    fn time_in_which_no_request_waited_does_not_count() {
        let mut rate = DrainRate::default();
        for minute in 0..40 {
            rate.entered(Timestamp(60 * minute * S));
            rate.served(Timestamp((60 * minute + 1) * S));
        }
        for _ in 0..3 {
            rate.entered(Timestamp(9000 * S));
        }
        assert_eq!(rate.wait_us(Timestamp(9000 * S)), Some(3e6));
    }

    #[test]
    fn a_request_that_gives_up_ends_the_current_gap_only_if_no_other_request_waits() {
        let mut rate = queue(1);
        rate.gave_up();
        for _ in 0..2 {
            rate.entered(Timestamp(100 * S));
        }
        rate.served(Timestamp(101 * S));
        assert_eq!(rate.wait_us(Timestamp(101 * S)), Some(1e6), "nobody waited before 100 s");
        let mut rate = queue(3);
        rate.gave_up();
        rate.served(Timestamp(10 * S));
        assert_eq!(rate.wait_us(Timestamp(10 * S)), Some(10e6), "two others waited for 10 s");
    }
}
