//! Flow of requests through a tier: how many come, and how many get their first tokens.

use tiercel_device::Timestamp;

/// Time constant of the counts of requests that came and of those that were served, us. It is short enough that a burst
/// is forgotten after a few minutes, and long enough for the counts to hold dozens of requests. Also the time for which
/// the counts must be about equal for the flow to count as balanced: at the end of a burst, the count of requests that
/// came falls below the count of those that were served, and both are equal for some seconds on the way.
const TIME_CONSTANT_US: f64 = 60e6;
/// Largest difference between the numbers of requests that came and that were served, as a share of the latter, at
/// which the two count as about equal.
const DIFFERENCE_MAX: f64 = 0.1;
/// Smallest number of served requests of which the difference is taken as a share. With fewer, a difference of two
/// still counts as about equal, because each request makes a difference of one between its arrival and its first token.
const SERVED_MIN: f64 = 20.0;

/// Flow of requests through one tier, over the last minute or so.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    /// Requests that came, each counted with the weight exp(-age / [`TIME_CONSTANT_US`]).
    came: f64,
    /// Requests that got their first tokens, with the same weights.
    served: f64,
    /// Time of the latest arrival or first token that was counted. Requests that leave or move do not change this time.
    at: Timestamp,
    /// Time from which on the counts have been about equal; `None` if they differ.
    equal_since: Option<Timestamp>,
}

impl Flow {
    /// Counts a request that enters the tier.
    pub(crate) fn entered(&mut self, now: Timestamp) {
        self.age(now);
        self.came += 1.0;
        self.compare();
    }

    /// Counts a request that is served: it gets its first token.
    pub(crate) fn served(&mut self, now: Timestamp) {
        self.age(now);
        self.served += 1.0;
        self.compare();
    }

    /// Whether about as many requests have come as were served, for the last minute.
    pub(crate) fn balanced(&self) -> bool {
        self.equal_since.is_some_and(|since| self.at.since_us(since) as f64 >= TIME_CONSTANT_US)
    }

    /// Discounts a request that came at `arrival`, because the request ended without a first token or an operator moved
    /// it to another tier.
    pub(crate) fn gave_up(&mut self, arrival: Timestamp) {
        self.came = (self.came - weight(self.at.since_us(arrival))).max(0.0);
        self.compare();
    }

    /// Counts a request that came at `arrival`, because an operator moved it here from another tier.
    pub(crate) fn moved_in(&mut self, arrival: Timestamp) {
        self.came += weight(self.at.since_us(arrival));
        self.compare();
    }

    /// Returns the number of requests that came less the number of those that were served, for tests.
    #[cfg(test)]
    pub(crate) fn excess(&self) -> i64 {
        (self.came - self.served).round() as i64
    }

    /// Notes whether the counts are about equal.
    fn compare(&mut self) {
        let difference = (self.came - self.served).abs();
        let equal = difference <= DIFFERENCE_MAX * self.served.max(SERVED_MIN);
        self.equal_since = equal.then(|| self.equal_since.unwrap_or(self.at));
    }

    fn age(&mut self, now: Timestamp) {
        let weight = weight(now.since_us(self.at));
        (self.came, self.served) = (self.came * weight, self.served * weight);
        self.at = self.at.max(now);
    }
}

/// Returns the weight with which a request counts that is `age_us` old.
fn weight(age_us: u64) -> f64 {
    (-(age_us as f64) / TIME_CONSTANT_US).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the flow after ten minutes in which a request came every `gap_s` seconds and one was served every
    /// second.
    fn flow(gap_s: f64) -> Flow {
        let mut flow = Flow::default();
        let mut next_s = 0.0;
        for s in 0..600 {
            while next_s < f64::from(s) + 1.0 {
                flow.entered(Timestamp((next_s * 1e6) as u64));
                next_s += gap_s;
            }
            flow.served(Timestamp((s + 1) as u64 * 1_000_000));
        }
        flow
    }

    #[test]
    fn a_flow_is_balanced_if_about_as_many_come_as_are_served() {
        assert!(flow(1.0).balanced() && flow(1.05).balanced() && flow(0.95).balanced());
        assert!(!flow(1.2).balanced(), "a backlog drains");
        assert!(!flow(0.8).balanced(), "a backlog grows");
    }

    #[test]
    fn a_burst_is_forgotten_after_a_few_minutes() {
        let mut flow = flow(1.0);
        let second = |s: u64| Timestamp(s * 1_000_000);
        (0..100).for_each(|_| flow.entered(second(600)));
        assert!(!flow.balanced());
        for s in 601..=900 {
            flow.entered(second(s));
            flow.served(second(s));
        }
        assert!(flow.balanced());
    }

    #[test]
    fn a_flow_is_balanced_after_a_minute_of_equal_counts() {
        let mut flow = Flow::default();
        let mut balanced = Vec::new();
        for s in 0..=60_u64 {
            flow.entered(Timestamp(s * 1_000_000));
            flow.served(Timestamp(s * 1_000_000));
            balanced.push(flow.balanced());
        }
        assert_eq!(balanced.iter().position(|balanced| *balanced), Some(60));
        (0..9).for_each(|_| flow.entered(Timestamp(61_000_000)));
        assert!(!flow.balanced(), "9 more than 38 came");
        flow.served(Timestamp(62_000_000));
        (0..8).for_each(|_| flow.served(Timestamp(62_000_000)));
        assert!(flow.equal_since.is_some() && !flow.balanced(), "the minute begins anew");
    }

    #[test]
    fn of_few_requests_two_more_may_come_than_are_served() {
        let mut flow = Flow::default();
        let second = Timestamp(0);
        flow.entered(second);
        flow.entered(second);
        assert!(flow.equal_since.is_some());
        flow.entered(second);
        assert!(flow.equal_since.is_none());
    }

    #[test]
    fn the_end_of_a_burst_on_which_the_counts_cross_is_not_balanced() {
        // For ten minutes two requests come for each that is served, and then one for every two.
        let mut flow = Flow::default();
        let mut equal = 0;
        for s in 0..900_u64 {
            let (came, served) = if s < 600 { (2, 1) } else { (1, 2) };
            (0..came).for_each(|_| flow.entered(Timestamp(s * 1_000_000)));
            (0..served).for_each(|_| flow.served(Timestamp(s * 1_000_000)));
            equal += u32::from(flow.equal_since.is_some());
            assert!(!flow.balanced(), "second {s}");
        }
        assert!(equal > 0, "the counts cross");
    }

    #[test]
    fn a_request_whose_client_left_does_not_count_as_come() {
        let second = |s: u64| Timestamp(s * 1_000_000);
        let mut flow = flow(1.0);
        (0..50).for_each(|_| flow.entered(second(600)));
        let mut moved = Flow::default();
        for s in 601..=630 {
            flow.entered(second(s));
            flow.served(second(s));
            moved.served(second(s));
        }
        assert!(flow.equal_since.is_none() && moved.equal_since.is_none());
        (0..50).for_each(|_| flow.gave_up(second(600)));
        assert!(flow.equal_since.is_some());
        (601..=630).for_each(|s| moved.moved_in(second(s)));
        assert!(moved.equal_since.is_some());
    }

    #[test]
    fn an_earlier_event_does_not_turn_time_back() {
        let mut flow = Flow::default();
        flow.entered(Timestamp(60_000_000));
        flow.served(Timestamp(0));
        flow.entered(Timestamp(60_000_000));
        assert_eq!((flow.came, flow.served), (2.0, 1.0));
    }
}
