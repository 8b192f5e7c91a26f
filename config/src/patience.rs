//! How long a request waits for its first token rather than be turned away.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

/// Patience by tier, s; 0: for ever. A target orders the schedule; only patience turns requests away.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatienceSettings {
    /// Of the premium tier.
    pub premium_s: f64,
    /// Of the standard tier.
    pub standard_s: f64,
    /// Of the background tier.
    pub background_s: f64,
}

/// Ten minutes: so long the packages of OpenAI and of Anthropic wait for an answer by default.
impl Default for PatienceSettings {
    fn default() -> Self {
        PatienceSettings { premium_s: 0.0, standard_s: 600.0, background_s: 600.0 }
    }
}

impl PatienceSettings {
    /// Patience by tier (system, premium, standard, background), s; 0: for ever.
    pub fn seconds(&self) -> [f64; 4] {
        [0.0, self.premium_s, self.standard_s, self.background_s]
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// Names the first field out of its range and the range.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        range("patience.premium_s", self.premium_s, 0.0, 86_400.0)?;
        range("patience.standard_s", self.standard_s, 0.0, 86_400.0)?;
        range("patience.background_s", self.background_s, 0.0, 86_400.0)
    }
}
