//! Errors for a model description (`config.json` or GGUF metadata) that is refused.

use super::Family;

/// Error for a model description (`config.json` or GGUF metadata) that cannot be used. If a single field is at fault,
/// the message names it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The model's architecture is none of the supported families.
    #[error(
        "this model's architecture is {found:?}; supported are {}",
        Family::ALL.map(Family::name).join(", ")
    )]
    Architecture {
        /// Name of the unsupported architecture in the model description.
        found: String,
    },
    /// `config.json` is not JSON, or not a JSON object.
    #[error("config.json cannot be read: {0}; download the model again")]
    Syntax(String),
    /// A GGUF metadata entry cannot be read, for example because it has the wrong type.
    #[error("{0}")]
    Metadata(String),
    /// A field that has no default, or the embedding tensor of a GGUF file, is absent.
    #[error("the model's configuration lacks {0:?}; download the model again")]
    Missing(String),
    /// A field of the model description has the wrong type.
    #[error("{field:?} in the model's configuration must be {expected}")]
    Type {
        /// Name of the field that has the wrong type.
        field: String,
        /// Type that the faulty field of the model description must have.
        expected: &'static str,
    },
    /// A number in the model description is outside its range.
    #[error(
        "{field:?} in the model's configuration is {value}; it must be between {min} and {max}"
    )]
    Range {
        /// Name of the field of the model description whose number is out of range.
        field: String,
        /// Number in the model description that is out of range.
        value: f64,
        /// Smallest accepted value of the field.
        min: f64,
        /// Largest accepted value of the field.
        max: f64,
    },
    /// A field of the model description has a value that this program does not implement.
    #[error("{field:?} is {value} in the model's configuration; supported: {supported}")]
    Unsupported {
        /// Name of the field with the unsupported value.
        field: String,
        /// Unsupported value of the field.
        value: String,
        /// Values of the field that are supported.
        supported: &'static str,
    },
    /// The weights are quantized by a method, or with a setting of a method, that this program does not read.
    #[error(
        "quantization_config in the model's configuration: with quant_method {method}, {field:?} is {value}, \
         which is not supported; supported are {}, and GGUF files",
        super::quantization::METHODS
    )]
    Quantization {
        /// Method by which the weights are quantized, as the model description names it.
        method: String,
        /// Name of the field of `quantization_config` with the unsupported value.
        field: String,
        /// Unsupported value of the field.
        value: String,
    },
    /// Fields of the model description contradict each other.
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
