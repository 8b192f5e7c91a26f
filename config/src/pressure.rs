//! From when on the engine counts as under pressure.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

/// Shares of what there is in use from which on a level is reached; it is left when less than that by five percent was in use
/// for five seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PressureSettings {
    /// Device blocks in use that are a warning, percent.
    pub blocks_warning_percent: f64,
    /// Device blocks in use that are critical, percent.
    pub blocks_critical_percent: f64,
    /// What is a warning of places in a step, host blocks, blocks being copied and tokens buffered for clients,
    /// percent of each.
    pub warning_percent: f64,
    /// What is critical of these, percent of each.
    pub critical_percent: f64,
}

impl Default for PressureSettings {
    fn default() -> Self {
        PressureSettings {
            blocks_warning_percent: 85.0,
            blocks_critical_percent: 95.0,
            warning_percent: 90.0,
            critical_percent: 99.0,
        }
    }
}

impl PressureSettings {
    /// Checks every bound.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        range("pressure.blocks_warning_percent", self.blocks_warning_percent, 10.0, 100.0)?;
        range("pressure.blocks_critical_percent", self.blocks_critical_percent, 10.0, 100.0)?;
        range("pressure.warning_percent", self.warning_percent, 10.0, 100.0)?;
        range("pressure.critical_percent", self.critical_percent, 10.0, 100.0)?;
        let conflict = |field| SettingsError::Conflict {
            field,
            why: "must not be below the warning, or nobody would ever be warned",
        };
        if self.blocks_critical_percent < self.blocks_warning_percent {
            return Err(conflict("pressure.blocks_critical_percent"));
        }
        if self.critical_percent < self.warning_percent {
            return Err(conflict("pressure.critical_percent"));
        }
        Ok(())
    }
}
