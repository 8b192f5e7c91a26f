//! Errors of compiling a grammar.

/// Reason why a source cannot be compiled. The message names the mistake or the unsupported feature, and the place in
/// the source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The source is larger than the limits allow.
    #[error("{what} has {size} {unit}, more than {limit}")]
    TooLarge {
        /// Name of the part that is too large, for example "the regular expression".
        what: &'static str,
        /// Measured size.
        size: usize,
        /// Unit of size and limit, for example "bytes".
        unit: &'static str,
        /// Largest accepted size.
        limit: usize,
    },
    /// The source uses a feature that is not supported.
    #[error("{at}: {feature} is not supported{}", advice(.instead))]
    Unsupported {
        /// Place in the source, for example a JSON pointer.
        at: String,
        /// Name of the feature.
        feature: String,
        /// Advice on what to use instead; may be empty.
        instead: &'static str,
    },
    /// The source needs a feature that llguidance does not have. Holds the reason of llguidance.
    #[error("this is not supported: {0}")]
    NotSupported(String),
    /// The source is not valid. Holds the place and the reason.
    #[error("{0}")]
    Invalid(String),
    /// The source is valid, but following it would take too much time or memory. Holds the reason.
    #[error("the grammar is too complex: {0}")]
    TooComplex(String),
    /// No output can follow the source. Holds the reason.
    #[error("no output can follow the grammar: {0}")]
    Unsatisfiable(String),
    /// The compiler failed on the source.
    #[error("the grammar's compiler failed on this source: {0}")]
    Failed(String),
}

fn advice(instead: &str) -> String {
    if instead.is_empty() { String::new() } else { format!("; {instead}") }
}

impl GrammarError {
    /// Creates an error for an unsupported feature at a place in the source.
    pub(crate) fn unsupported(at: &str, feature: impl Into<String>) -> GrammarError {
        GrammarError::Unsupported { at: at.to_owned(), feature: feature.into(), instead: "" }
    }
}
