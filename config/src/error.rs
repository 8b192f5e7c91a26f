//! Errors for settings whose value cannot be used.

/// Error for a setting whose value cannot be used. The message names the setting and what is allowed, and a value that
/// is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A setting has a value outside its range.
    #[error("{field} = {value} is out of range: allowed is {allowed}")]
    Range {
        /// Dotted name of the setting, as in the settings file.
        field: String,
        /// Value that was given for the setting.
        value: String,
        /// Range of values that the setting allows.
        allowed: String,
    },
    /// The value of a setting breaks a rule other than its range, mostly a rule that relates two settings.
    #[error("{field}: {why}")]
    Conflict {
        /// Dotted name of the setting, as in the settings file.
        field: &'static str,
        /// Rule that the value of the setting breaks.
        why: &'static str,
    },
}

impl SettingsError {
    /// Returns the error with the name of the table `table` put before the name of its setting. A conflict names its
    /// setting in full already and is returned unchanged.
    pub(crate) fn within(self, table: &str) -> SettingsError {
        match self {
            SettingsError::Range { field, value, allowed } => {
                SettingsError::Range { field: format!("{table}.{field}"), value, allowed }
            }
            conflict => conflict,
        }
    }
}
