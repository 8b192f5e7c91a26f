//! Pressure: thresholds of resource use from which the engine counts as under pressure.

use crate::SettingsError;

settings! {
    /// Thresholds of the pressure levels: a level is reached when this share of a resource is in use, percent. The
    /// level is left after use was more than five percentage points below the threshold for five seconds.
    #[derive(Copy)]
    pub struct PressureSettings {
        /// Share of the device's KV blocks in use from which the pressure level is warning, percent. The level ends
        /// after 5 s at more than 5 percentage points below.
        blocks_warning_percent: f64 = 85.0, in 10.0..=100.0;
        /// Share of the device's KV blocks in use from which the pressure level is critical, percent. The level ends
        /// after 5 s at more than 5 percentage points below.
        blocks_critical_percent: f64 = 95.0, in 10.0..=100.0;
        /// Share in use from which the pressure level is warning, percent, for each of: places for requests in a step,
        /// host blocks, blocks being copied, tokens buffered for clients.
        warning_percent: f64 = 90.0, in 10.0..=100.0;
        /// Share in use from which the pressure level is critical, percent, for each of: places for requests in a step,
        /// host blocks, blocks being copied, tokens buffered for clients.
        critical_percent: f64 = 99.0, in 10.0..=100.0;
    }
}

impl PressureSettings {
    /// Checks that no threshold of a critical level lies below that of its warning level.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
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
