//! Errors of building a tokenizer and of encoding a text.

use crate::gguf::GgufError;
use std::path::PathBuf;

/// Reason why a tokenizer cannot be built, or a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file of a tokenizer, or a JSON configuration file beside it, is missing or unreadable.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the tokenizer or configuration file that cannot be read.
        path: PathBuf,
        /// Error of the operating system on reading the file.
        source: std::io::Error,
    },
    /// A file of a tokenizer, or a JSON configuration file beside it, is larger than any plausible one.
    #[error("{path} has {bytes} bytes, more than the limit of {limit}")]
    FileTooLarge {
        /// Path of the tokenizer file that is too large.
        path: PathBuf,
        /// Size of the tokenizer file, bytes.
        bytes: u64,
        /// Largest accepted size of the tokenizer file, bytes.
        limit: u64,
    },
    /// The content of a tokenizer file, or of a JSON configuration file beside it, is not valid.
    #[error("{path} is not valid: {reason}")]
    Invalid {
        /// Path of the tokenizer file whose content is not valid.
        path: PathBuf,
        /// Reason why the content of the tokenizer file is not valid.
        reason: String,
    },
    /// The GGUF file cannot be read, or its tokenizer metadata is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The GGUF file's tokenizer metadata cannot be used, for example because it contradicts itself.
    #[error("the GGUF file's tokenizer is not usable: {0}")]
    Metadata(String),
    /// The model's kind of tokenizer is not implemented.
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// Kind of tokenizer that is not implemented.
        what: String,
        /// Advice: a kind of tokenizer or a file that can be used instead.
        instead: &'static str,
    },
    /// A text to be tokenized is longer than any context can hold.
    #[error("the text has {bytes} bytes, more than the limit of {limit}")]
    TextTooLong {
        /// Length of the text that is too long, bytes.
        bytes: usize,
        /// Longest text that is tokenized, bytes.
        limit: usize,
    },
    /// The tokenizer failed on a text.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
}
