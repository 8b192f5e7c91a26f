//! Pressure: thresholds of resource use from which the engine counts as under pressure.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

/// Thresholds of the pressure levels: a level is reached when this share of a resource is in use, percent. The level is
/// left after use was more than five percentage points below the threshold for five seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PressureSettings {
    /// Share of device blocks in use from which the pressure level is warning, percent.
    pub blocks_warning_percent: f64,
    /// Share of device blocks in use from which the pressure level is critical, percent.
    pub blocks_critical_percent: f64,
    /// Share in use from which the pressure level is warning, percent, for each of these resources: slots of a step,
    /// host blocks, blocks being copied and tokens buffered for clients.
    pub warning_percent: f64,
    /// Share in use from which the pressure level is critical, percent, for each of these resources: slots of a step,
    /// host blocks, blocks being copied and tokens buffered for clients.
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
    /// Checks that every threshold is in its range and that no critical level lies below its warning level.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        range("pressure.blocks_warning_percent", self.blocks_warning_percent, 10.0, 100.0)?;
        range("pressure.blocks_critical_percent", self.blocks_critical_percent, 10.0, 100.0)?;
        range("pressure.warning_percent", self.warning_percent, 10.0, 100.0)?;
        range("pressure.critical_percent", self.critical_percent, 10.0, 100.0)?;
        let conflict = |field| SettingsError::Conflict {
            field,
            why: "must not be below the threshold of the warning level, or that level is never reached",
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
