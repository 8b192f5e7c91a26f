//! Shares: the part of the device's time that each tier is due.

use crate::SettingsError;

settings! {
    /// Shares of the device's time by tier, percent. They add up to 100.
    #[derive(Copy)]
    pub struct SharesSettings {
        // The default shares of the tiers are taken from the project's first source document.
        /// Premium's share of the device's time where tiers share it (scheduler.fair_tiers, shedding.form), percent.
        /// The shares of the three tiers add up to 100.
        premium_percent: f64 = 50.0, in 1.0..=98.0;
        /// Standard's share of the device's time where tiers share it (scheduler.fair_tiers, shedding.form), percent.
        /// The shares of the three tiers add up to 100.
        standard_percent: f64 = 35.0, in 1.0..=98.0;
        /// Background's share of the device's time where tiers share it (scheduler.fair_tiers, shedding.form), percent.
        /// The shares of the three tiers add up to 100.
        background_percent: f64 = 15.0, in 1.0..=98.0;
    }
}

impl SharesSettings {
    /// Returns the share of the device's time that each tier is due (system, premium, standard, background), percent; 0
    /// for system.
    pub fn percent(&self) -> [f64; 4] {
        [0.0, self.premium_percent, self.standard_percent, self.background_percent]
    }

    /// Checks that the tiers' shares of the device's time add up to 100 percent.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let sum: f64 = self.percent().iter().sum();
        if (sum - 100.0).abs() > 1e-6 {
            return Err(SettingsError::Conflict {
                field: "shares.premium_percent",
                why: "must be 100 together with shares.standard_percent and shares.background_percent",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_whole() {
        SharesSettings::default().check().unwrap();
        let of = |premium_percent| SharesSettings { premium_percent, ..Default::default() };
        assert!(of(60.0).check().unwrap_err().to_string().contains("100 together"));
    }
}
