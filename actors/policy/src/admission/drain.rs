//! How fast a queue drains, and so when to come back.

use std::collections::VecDeque;
use tiercel_device::Timestamp;

/// Departures remembered to estimate a rate.
const DEPARTURES: usize = 32;
/// Told to those who come before anything is known, ms.
const UNKNOWN_MS: f64 = 10_000.0;
/// Clients do not wait longer, ms.
const LONGEST_MS: f64 = 120_000.0;

/// How fast a queue drains, from the times between its last departures. Only time counts in which somebody
/// waited: a queue that was empty says nothing of how fast it would have drained.
#[derive(Debug, Clone, Default)]
pub struct DrainRate {
    gaps_us: VecDeque<u64>,
    sum_us: u64,
    /// Since when somebody waits and nobody has left; `None` while nobody waits.
    since: Option<Timestamp>,
}

impl DrainRate {
    /// A request entered the queue.
    pub fn entered(&mut self, now: Timestamp) {
        self.since.get_or_insert(now);
    }

    /// A request left the queue; `waiting` are still in it.
    pub fn left(&mut self, waiting: u32, now: Timestamp) {
        let gap_us = self.since.map_or(0, |since| now.since_us(since));
        self.since = (waiting > 0).then_some(now);
        if self.gaps_us.len() == DEPARTURES {
            self.sum_us -= self.gaps_us.pop_front().unwrap_or(0);
        }
        self.gaps_us.push_back(gap_us);
        self.sum_us += gap_us;
    }

    /// Expected wait behind `requests`, us, at the recent rate; `None` before anything left. A longer time than
    /// usual without a departure counts too.
    pub fn wait_us(&self, requests: u32, now: Timestamp) -> Option<f64> {
        let left = self.gaps_us.len() as f64;
        let mean_us = (left > 0.0).then(|| self.sum_us as f64 / left)?;
        let since_us = self.since.map_or(0.0, |since| now.since_us(since) as f64);
        let mean_us = mean_us.max((self.sum_us as f64 + since_us) / (left + 1.0));
        Some(mean_us * f64::from(requests))
    }

    /// When those `requests` will have left, ms from now, between 1 s and 2 min.
    pub fn retry_after_ms(&self, requests: u32, now: Timestamp) -> u64 {
        let wait_ms = self.wait_us(requests, now).map_or(UNKNOWN_MS, |us| us / 1000.0);
        wait_ms.ceil().clamp(1_000.0, LONGEST_MS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn the_retry_time_follows_the_drain_rate() {
        let mut rate = DrainRate::default();
        assert_eq!(rate.retry_after_ms(5, Timestamp(0)), 10_000, "nothing known yet");
        rate.entered(Timestamp(0));
        for second in 1..=10 {
            rate.left(5, Timestamp(second * S));
        }
        assert_eq!(rate.retry_after_ms(20, Timestamp(10 * S)), 20_000);
        assert_eq!(rate.retry_after_ms(1000, Timestamp(10 * S)), 120_000);
        assert_eq!(rate.retry_after_ms(0, Timestamp(10 * S)), 1_000);
        assert_eq!(rate.retry_after_ms(20, Timestamp(22 * S)), 40_000, "nobody left for 12 s");
    }

    #[test]
    fn time_in_which_nobody_waited_does_not_count() {
        let mut rate = DrainRate::default();
        for minute in 0..40 {
            rate.entered(Timestamp(60 * minute * S));
            rate.left(0, Timestamp((60 * minute + 1) * S));
        }
        assert_eq!(rate.wait_us(3, Timestamp(9000 * S)), Some(3e6));
    }
}
