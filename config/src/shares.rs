//! Shares: the part of the device's time that each tier is due.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

/// Shares of the device's time by tier, percent. They add up to 100.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharesSettings {
    /// Share of the premium tier, percent.
    pub premium_percent: f64,
    /// Share of the standard tier, percent.
    pub standard_percent: f64,
    /// Share of the background tier, percent.
    pub background_percent: f64,
}

/// Default shares, taken from the project's first source document.
impl Default for SharesSettings {
    fn default() -> Self {
        SharesSettings { premium_percent: 50.0, standard_percent: 35.0, background_percent: 15.0 }
    }
}

impl SharesSettings {
    /// Returns the shares by tier (system, premium, standard, background), percent.
    pub fn percent(&self) -> [f64; 4] {
        [0.0, self.premium_percent, self.standard_percent, self.background_percent]
    }

    /// Checks that every share is in its range and that the shares add up to 100 percent.
    ///
    /// # Errors
    /// Fails if a share is out of its range or the sum is not 100. The error names the first such field and what is
    /// allowed.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        range("shares.premium_percent", self.premium_percent, 1.0, 98.0)?;
        range("shares.standard_percent", self.standard_percent, 1.0, 98.0)?;
        range("shares.background_percent", self.background_percent, 1.0, 98.0)?;
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
        assert!(of(0.0).check().unwrap_err().to_string().contains("1 to 98"));
        assert!(of(60.0).check().unwrap_err().to_string().contains("100 together"));
        assert!(of(f64::NAN).check().is_err());
    }
}
