//! Why a tokenizer cannot be built, or a text not be encoded.

use crate::gguf::GgufError;
use std::path::PathBuf;

/// A tokenizer that cannot be built or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file is missing or unreadable.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file is far larger than any tokenizer.
    #[error("{path} has {bytes} bytes, more than the limit of {limit}")]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A file holds something else than it should.
    #[error("{path} is not valid: {reason}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The GGUF file's tokenizer metadata is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The GGUF file's tokenizer metadata contradicts itself.
    #[error("the GGUF file's tokenizer is not usable: {0}")]
    Metadata(String),
    /// A kind of tokenizer that is not implemented.
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// The kind.
        what: String,
        /// What can be used instead.
        instead: &'static str,
    },
    /// The text is longer than any context could hold.
    #[error("the text has {bytes} bytes, more than the limit of {limit}")]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// The most that is encoded.
        limit: usize,
    },
    /// The tokenizer failed on this text.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
}
