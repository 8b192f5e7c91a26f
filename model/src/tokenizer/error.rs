//! Errors of building a tokenizer and of encoding a text.

use crate::gguf::GgufError;
use std::path::PathBuf;

/// A tokenizer that cannot be built or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file of the tokenizer is missing or unreadable.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file is far larger than any tokenizer file.
    #[error("{path} has {bytes} bytes, more than the limit of {limit}")]
    FileTooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file, bytes.
        bytes: u64,
        /// Most bytes that are read.
        limit: u64,
    },
    /// The content of a tokenizer file is not valid.
    #[error("{path} is not valid: {reason}")]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file is not valid.
        reason: String,
    },
    /// The GGUF file's tokenizer metadata is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The GGUF file's tokenizer metadata contradicts itself.
    #[error("the GGUF file's tokenizer is not usable: {0}")]
    Metadata(String),
    /// The model's kind of tokenizer is not implemented.
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// Kind of tokenizer.
        what: String,
        /// Advice: a kind or file that can be used instead.
        instead: &'static str,
    },
    /// The text is longer than any context can hold.
    #[error("the text has {bytes} bytes, more than the limit of {limit}")]
    TextTooLong {
        /// Length of the text, bytes.
        bytes: usize,
        /// Most bytes that are encoded.
        limit: usize,
    },
    /// The tokenizer failed on a text.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
}
