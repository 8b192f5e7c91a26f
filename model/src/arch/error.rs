//! Why a model's description was refused.

use super::Family;

/// A model description that cannot be used. Names the field as its file spells it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Not one of the supported families.
    #[error(
        "this model's architecture is {found:?}; supported are {}",
        Family::ALL.map(Family::name).join(", ")
    )]
    Architecture {
        /// What the file says.
        found: String,
    },
    /// The file is not JSON, or not an object.
    #[error("config.json cannot be read: {0}; download the model again")]
    Syntax(String),
    /// A GGUF entry of another type than it must have.
    #[error("{0}")]
    Metadata(String),
    /// A field that has no default is absent.
    #[error("the model's configuration lacks {0:?}; download the model again")]
    Missing(String),
    /// A field has another type than it must have.
    #[error("{field:?} in the model's configuration must be {expected}")]
    Type {
        /// Name of the field.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A number outside its range.
    #[error(
        "{field:?} in the model's configuration is {value}; it must be between {min} and {max}"
    )]
    Range {
        /// Name of the field.
        field: String,
        /// The number.
        value: f64,
        /// Smallest accepted.
        min: f64,
        /// Largest accepted.
        max: f64,
    },
    /// A known field with a value this program does not implement.
    #[error("{field:?} is {value} in the model's configuration; supported: {supported}")]
    Unsupported {
        /// Name of the field.
        field: String,
        /// Its value.
        value: String,
        /// What would work.
        supported: &'static str,
    },
    /// Fields that contradict each other.
    #[error("the model's configuration contradicts itself: {0}; download the model again")]
    Inconsistent(String),
}

impl ConfigError {
    pub(super) fn kind(field: &str, expected: &'static str) -> ConfigError {
        ConfigError::Type { field: field.to_owned(), expected }
    }

    pub(super) fn unsupported(
        field: &str,
        value: impl ToString,
        supported: &'static str,
    ) -> ConfigError {
        ConfigError::Unsupported { field: field.to_owned(), value: value.to_string(), supported }
    }
}
