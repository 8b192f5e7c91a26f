//! Patience: how long a request waits for its first token before it is turned away.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

/// Patience by tier, s; 0: requests wait for ever. Targets only order the schedule; patience turns requests away.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatienceSettings {
    /// Patience of the premium tier, s; 0: for ever.
    pub premium_s: f64,
    /// Patience of the standard tier, s; 0: for ever.
    pub standard_s: f64,
    /// Patience of the background tier, s; 0: for ever.
    pub background_s: f64,
}

/// Default patience: premium waits for ever, the other tiers wait ten minutes, as long as the client packages of OpenAI
/// and of Anthropic wait for an answer by default.
impl Default for PatienceSettings {
    fn default() -> Self {
        PatienceSettings { premium_s: 0.0, standard_s: 600.0, background_s: 600.0 }
    }
}

impl PatienceSettings {
    /// Returns the patience by tier (system, premium, standard, background), s; 0: for ever.
    pub fn seconds(&self) -> [f64; 4] {
        [0.0, self.premium_s, self.standard_s, self.background_s]
    }

    /// Checks that the patience of every tier is in its range.
    ///
    /// # Errors
    /// Fails if a field is out of its range. The error names the first such field and the range.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        range("patience.premium_s", self.premium_s, 0.0, 86_400.0)?;
        range("patience.standard_s", self.standard_s, 0.0, 86_400.0)?;
        range("patience.background_s", self.background_s, 0.0, 86_400.0)
    }
}
