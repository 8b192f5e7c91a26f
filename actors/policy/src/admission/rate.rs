//! Rate limits by the generic cell rate algorithm (GCRA, ITU-T I.371, in its form of virtual scheduling).
//!
//! A rate of R units per minute gives each unit an interval of 60 s / R. The state is one time: the moment at which the
//! units that came so far have had their intervals. A unit conforms if this moment is not more than the tolerance ahead
//! of now. The tolerance is the time of one burst.

use tiercel_device::Timestamp;

/// One minute, us.
const MINUTE_US: f64 = 60e6;
/// Number of bursts in a minute's amount: a sixth of the amount, ten seconds' worth, may come at once.
const BURSTS_PER_MIN: u64 = 6;

/// Rate limit: an amount per minute. A sixth of it may come at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Amount per minute, at least 1.
    pub per_min: u64,
}

impl Rate {
    /// Returns the largest amount that may come at once: a sixth of a minute's, at least 1.
    pub fn burst(self) -> u64 {
        (self.per_min / BURSTS_PER_MIN).max(1)
    }

    fn interval_us(self) -> f64 {
        MINUTE_US / self.per_min.max(1) as f64
    }

    fn tolerance_us(self) -> f64 {
        self.burst() as f64 * self.interval_us()
    }
}

/// State of a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Gcra {
    /// Time at which the units that came so far have had their intervals (theoretical arrival time), us.
    due_us: f64,
}

impl Gcra {
    /// Returns the time after which `units` conform to the rate, us; 0 if they do now. `units` is at most one burst.
    pub(crate) fn wait_us(&self, rate: Rate, units: u64, now: Timestamp) -> u64 {
        let due_us = self.due_us.max(now.0 as f64) + units as f64 * rate.interval_us();
        let wait_us = due_us - rate.tolerance_us() - now.0 as f64;
        // Ignore rounding errors, of which there is less than a microsecond in a year.
        if wait_us < 1.0 { 0 } else { wait_us as u64 }
    }

    /// Charges units, whether they conform or not.
    pub(crate) fn charge(&mut self, rate: Rate, units: u64, now: Timestamp) {
        self.due_us = self.due_us.max(now.0 as f64) + units as f64 * rate.interval_us();
    }

    /// Charges `units`, at most one burst, if they conform to the rate now.
    ///
    /// # Errors
    /// The time after which the units would conform, us; they are then not charged.
    pub(crate) fn charge_if_conforming(
        &mut self,
        rate: Rate,
        units: u64,
        now: Timestamp,
    ) -> Result<(), u64> {
        match self.wait_us(rate, units, now) {
            0 => {
                self.charge(rate, units, now);
                Ok(())
            }
            wait_us => Err(wait_us),
        }
    }

    /// Takes back the charge of units that did not come after all.
    pub(crate) fn refund(&mut self, rate: Rate, units: u64) {
        self.due_us -= units as f64 * rate.interval_us();
    }

    /// Returns the amount that may come at once now.
    pub(crate) fn remaining(&self, rate: Rate, now: Timestamp) -> u64 {
        let ahead_us = self.due_us - now.0 as f64;
        let left_us = rate.tolerance_us() - ahead_us.max(0.0);
        (left_us / rate.interval_us() + 1e-6).max(0.0) as u64
    }

    /// Returns the time after which a whole burst may come at once, us.
    pub(crate) fn reset_us(&self, now: Timestamp) -> u64 {
        (self.due_us - now.0 as f64).max(0.0) as u64
    }
}
