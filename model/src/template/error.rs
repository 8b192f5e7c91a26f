//! Errors of chat templates.

use crate::gguf::GgufError;
use crate::tokenizer::TokenizerError;
use minijinja::Error;

/// Errors of reading and compiling a chat template, of rendering a conversation with it, and of encoding the result.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The chat template itself cannot be used, for example because it does not compile.
    #[error(
        "the model's chat template cannot be used: {0}; use /v1/completions, or have the template fixed"
    )]
    Template(String),
    /// The chat template refused the messages of a conversation, took too long or wrote too much. The server treats
    /// this error as a mistake of the client.
    #[error("the model's chat template does not accept these messages: {0}")]
    Messages(String),
    /// The tokenizer, or a configuration file that belongs to the chat template, cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The GGUF file that holds the chat template, or the template's entry in it, cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// Returns an error of minijinja and its cause as one line of text.
pub(super) fn one_line(error: &Error) -> String {
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(cause) = std::error::Error::source(error) {
        text = format!("{text}: {cause}");
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
