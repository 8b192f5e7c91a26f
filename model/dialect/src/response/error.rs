//! Error of response templates.

/// Reason why a response template cannot be used. The message names the faulty part of the template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseTemplateError {
    /// The template does not have the form that transformers documents, or uses a feature that this parser lacks.
    #[error("response_template: {place}: {problem}")]
    Form {
        /// Part of the template, for example a field.
        place: String,
        /// The problem.
        problem: String,
    },
    /// A regular expression does not compile. Look-around and back-references are not supported.
    #[error(
        "response_template: {place}: the regular expression `{pattern}` is not supported: {problem}"
    )]
    Regex {
        /// Part of the template, for example a field.
        place: String,
        /// The regular expression.
        pattern: String,
        /// The problem, in one line.
        problem: String,
    },
}

/// Returns an error about the form of a part of the template.
pub(super) fn form(place: &str, problem: impl Into<String>) -> ResponseTemplateError {
    ResponseTemplateError::Form { place: place.to_owned(), problem: problem.into() }
}
