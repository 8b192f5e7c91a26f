//! Retry credits: the server remembers when refused clients were told to come back, and prefers a client that does so
//! to newcomers.
//!
//! Without retry credits a retry time would be an empty promise in a lasting overload: a client that comes back would
//! find the same queue, and as little room as every newcomer.

use crate::blocks::Salt;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tiercel_device::{Tier, Timestamp};

/// Most retry credits (retry times told to refused clients) that are remembered, over all tenants. Further clients get
/// none, and count as newcomers when they come back.
const MOST: usize = 16_384;
/// Most retry credits (retry times told to refused clients) that are remembered for one tenant in one tier.
const MOST_OF_TENANT: usize = 1024;
/// Lifetime of a retry credit after its retry time, us. A client that comes back later counts as a newcomer.
const KEPT_US: u64 = 120_000_000;

/// Retry credits: the retry times that refused clients were told, by tier and tenant.
#[derive(Debug, Clone, Default)]
pub struct RetryCredits {
    /// Retry times of each tenant in each tier, earliest first. A tenant without a remembered retry time has no entry.
    due: BTreeMap<(Tier, Salt), VecDeque<Timestamp>>,
    /// Index of the earliest retry time of each tenant in each tier, in order of time. With it, dropping expired retry
    /// times takes time in proportion to those dropped, not to all remembered ones.
    earliest: BTreeSet<(Timestamp, Tier, Salt)>,
    count: usize,
}

impl RetryCredits {
    /// Records a retry credit: a client of the tenant was told to come back at time `due`. Records none if as many as
    /// allowed are remembered.
    pub fn make(&mut self, tier: Tier, tenant: Salt, due: Timestamp, now: Timestamp) {
        if self.count >= MOST {
            self.forget(now);
        }
        if self.due.get(&(tier, tenant)).is_some_and(|times| times.len() >= MOST_OF_TENANT) {
            self.change(tier, tenant, |times| forget_expired(times, now));
        }
        let known = self.due.get(&(tier, tenant)).map_or(0, VecDeque::len);
        if self.count < MOST && known < MOST_OF_TENANT {
            self.change(tier, tenant, |times| {
                times.insert(times.partition_point(|time| *time <= due), due);
            });
        }
    }

    /// Whether the tenant has a valid retry credit: a retry time that has come and has not expired.
    pub fn is_due(&self, tier: Tier, tenant: Salt, now: Timestamp) -> bool {
        let times = self.due.get(&(tier, tenant)).into_iter().flatten();
        times.take_while(|time| **time <= now).any(|time| !expired(*time, now))
    }

    /// Uses up one retry credit of the tenant whose time has come, if there is one, because a client came back. If that
    /// client is refused again, the caller records a new credit.
    pub fn redeem(&mut self, tier: Tier, tenant: Salt, now: Timestamp) {
        self.change(tier, tenant, |times| {
            forget_expired(times, now);
            if times.front().is_some_and(|time| *time <= now) {
                times.pop_front();
            }
        });
    }

    /// Drops expired retry credits, whose clients did not come back.
    fn forget(&mut self, now: Timestamp) {
        while let Some((earliest, tier, tenant)) = self.earliest.first().copied() {
            if !expired(earliest, now) {
                break;
            }
            self.change(tier, tenant, |times| forget_expired(times, now));
        }
    }

    /// Changes the list of retry times of a tenant in a tier, and updates the total count and the index of earliest
    /// retry times.
    fn change(&mut self, tier: Tier, tenant: Salt, change: impl FnOnce(&mut VecDeque<Timestamp>)) {
        let mut times = self.due.remove(&(tier, tenant)).unwrap_or_default();
        if let Some(earliest) = times.front() {
            self.earliest.remove(&(*earliest, tier, tenant));
        }
        self.count -= times.len();
        change(&mut times);
        self.count += times.len();
        if let Some(earliest) = times.front() {
            self.earliest.insert((*earliest, tier, tenant));
            self.due.insert((tier, tenant), times);
        }
    }
}

/// Removes expired retry times from the front of a tenant's list, which is in order of time.
fn forget_expired(times: &mut VecDeque<Timestamp>, now: Timestamp) {
    while times.front().is_some_and(|time| expired(*time, now)) {
        times.pop_front();
    }
}

fn expired(time: Timestamp, now: Timestamp) -> bool {
    now.since_us(time) > KEPT_US
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: Salt = Salt([1; 16]);
    const S: u64 = 1_000_000;

    fn at(s: u64) -> Timestamp {
        Timestamp(s * S)
    }

    #[test]
    fn a_promise_is_kept_once_from_its_time_on_and_not_for_ever() {
        let mut credits = RetryCredits::default();
        credits.make(Tier::Standard, TENANT, at(20), at(0));
        credits.make(Tier::Standard, TENANT, at(10), at(0));
        let due = |credits: &RetryCredits, s| credits.is_due(Tier::Standard, TENANT, at(s));
        assert!(!due(&credits, 9) && due(&credits, 10));
        assert!(!credits.is_due(Tier::Background, TENANT, at(10)), "another tier");
        assert!(!credits.is_due(Tier::Standard, Salt([2; 16]), at(10)), "another tenant");
        credits.redeem(Tier::Standard, TENANT, at(10));
        assert!(!due(&credits, 19) && due(&credits, 140) && !due(&credits, 141));
        credits.redeem(Tier::Standard, TENANT, at(15));
        assert!(due(&credits, 20), "whoever came too early used up nothing");
        credits.redeem(Tier::Standard, TENANT, at(20));
        assert_eq!((credits.count, credits.due.len(), credits.earliest.len()), (0, 0, 0));
    }

    #[test]
    fn credits_are_bounded_and_unused_ones_make_room() {
        let mut credits = RetryCredits::default();
        for tenant in 0..40 {
            for _ in 0..2 * MOST_OF_TENANT {
                credits.make(Tier::Standard, Salt([tenant; 16]), at(10), at(0));
            }
        }
        assert_eq!((credits.count, credits.due.len()), (MOST, MOST / MOST_OF_TENANT));
        credits.make(Tier::Background, TENANT, at(300), at(200));
        assert_eq!((credits.count, credits.due.len(), credits.earliest.len()), (1, 1, 1));
    }

    #[test]
    fn one_tenant_has_no_more_credits_in_a_tier_than_its_limit() {
        let mut credits = RetryCredits::default();
        for _ in 0..2 * MOST_OF_TENANT {
            credits.make(Tier::Standard, TENANT, at(10), at(0));
        }
        assert_eq!(credits.count, MOST_OF_TENANT);
        credits.make(Tier::Background, TENANT, at(10), at(0));
        assert_eq!(credits.count, MOST_OF_TENANT + 1, "another tier");
        credits.make(Tier::Standard, TENANT, at(300), at(200));
        assert_eq!(credits.count, 2, "expired credits of the tenant make room");
    }
}
