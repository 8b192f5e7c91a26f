//! What can be wrong with settings.

/// A setting that cannot be used. The message names the field, the value and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A value outside its range.
    #[error("{field} = {value} is out of range: allowed is {allowed}")]
    Range {
        /// Dotted name in the file.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// Two values that cannot go together.
    #[error("{field}: {why}")]
    Conflict {
        /// Dotted name in the file.
        field: &'static str,
        /// The rule.
        why: &'static str,
    },
}
