//! Account of one party: tokens and device time since the start, and device time lately.

use super::report::PartyUsage;
use tiercel_device::Timestamp;

/// Length of a slice of the window in which device time is summed up, us.
const SLICE_US: u64 = 5_000_000;
/// Number of slices in the window: it covers the last minute, less the part of its last slice that is to come.
const SLICES: usize = 12;

/// Number of a tenant's account, the same in each tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct AccountId(pub(super) u8);

/// Device time that a party had and that it was due, us.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct DeviceTime {
    pub(super) had_us: f64,
    pub(super) due_us: f64,
}

impl DeviceTime {
    fn add(&mut self, time: DeviceTime) {
        self.had_us += time.had_us;
        self.due_us += time.due_us;
    }
}

/// Account of a tier, or of a tenant in a tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    /// Number of live sequences that are not on hold.
    pub(super) working: u32,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: u64,
    total: DeviceTime,
    /// Device time in each slice of the window, with the number of the slice.
    window: [(u64, DeviceTime); SLICES],
}

impl Account {
    /// Adds device time that ended at `now`.
    pub(super) fn add(&mut self, time: DeviceTime, now: Timestamp) {
        self.total.add(time);
        let number = now.0 / SLICE_US;
        let slice = &mut self.window[number as usize % SLICES];
        if slice.0 != number {
            *slice = (number, DeviceTime::default());
        }
        slice.1.add(time);
    }

    /// Returns the device time in the window that ends at `now`.
    pub(super) fn lately(&self, now: Timestamp) -> DeviceTime {
        let number = now.0 / SLICE_US;
        let mut lately = DeviceTime::default();
        for (_, time) in self.window.iter().filter(|(slice, _)| slice + SLICES as u64 > number) {
            lately.add(*time);
        }
        lately
    }

    /// Whether the account holds nothing: no working sequence, no prompt tokens, and no device time that was had or
    /// due.
    pub(super) fn is_unused(&self) -> bool {
        self.working == 0 && self.total == DeviceTime::default() && self.prompt_tokens == 0
    }

    /// Returns the account as a report, in which the deviation is a share of `window_us`: the device time of all
    /// parties in the window that ends at `now`.
    pub(super) fn usage(&self, window_us: f64, now: Timestamp) -> PartyUsage {
        let lately = self.lately(now);
        let deviation_us = lately.had_us - lately.due_us;
        PartyUsage {
            working: self.working,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            device_us: self.total.had_us,
            due_us: self.total.due_us,
            recent_device_us: lately.had_us,
            recent_due_us: lately.due_us,
            deviation: if window_us > 0.0 { deviation_us / window_us } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn had(had_us: f64) -> DeviceTime {
        DeviceTime { had_us, due_us: 2.0 * had_us }
    }

    #[test]
    fn the_window_forgets_time_after_a_minute_and_the_total_keeps_it() {
        let mut account = Account::default();
        account.add(had(10.0), Timestamp(4_999_999));
        account.add(had(20.0), Timestamp(5_000_000));
        let seen = |account: &Account, now| account.lately(Timestamp(now)).had_us;
        assert_eq!([59_999_999, 60_000_000].map(|now| seen(&account, now)), [30.0, 20.0]);
        // The 13th slice takes the place of the first one.
        account.add(had(5.0), Timestamp(60_000_001));
        assert_eq!([60_000_001, 65_000_000].map(|now| seen(&account, now)), [25.0, 5.0]);
        assert_eq!(seen(&account, 200_000_000), 0.0);
        let usage = account.usage(100.0, Timestamp(65_000_000));
        assert_eq!((usage.device_us, usage.due_us, usage.deviation), (35.0, 70.0, -0.05));
        assert_eq!(account.usage(0.0, Timestamp(0)).deviation, 0.0, "no device time lately");
    }
}
