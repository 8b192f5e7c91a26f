//! Which share of the device each tier is due.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

/// Shares of the device's time, percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharesSettings {
    /// Of the premium tier.
    pub premium_percent: f64,
    /// Of the standard tier.
    pub standard_percent: f64,
    /// Of the background tier.
    pub background_percent: f64,
}

/// The shares of the project's first source document.
impl Default for SharesSettings {
    fn default() -> Self {
        SharesSettings { premium_percent: 50.0, standard_percent: 35.0, background_percent: 15.0 }
    }
}

impl SharesSettings {
    /// Shares by tier (system, premium, standard, background), percent.
    pub fn percent(&self) -> [f64; 4] {
        [0.0, self.premium_percent, self.standard_percent, self.background_percent]
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// Names the first field out of its range and the range.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        range("shares.premium_percent", self.premium_percent, 1.0, 98.0)?;
        range("shares.standard_percent", self.standard_percent, 1.0, 98.0)?;
        range("shares.background_percent", self.background_percent, 1.0, 98.0)?;
        let sum: f64 = self.percent().iter().sum();
        if (sum - 100.0).abs() > 1e-6 {
            return Err(SettingsError::Conflict {
                field: "shares.premium_percent",
                why: "and shares.standard_percent and shares.background_percent must be 100 together",
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
