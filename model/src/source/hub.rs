//! Models of the Hugging Face hub, kept in Hugging Face's own cache so that other programs share the files.

use super::error::one_line;
use super::progress::Progress;
use super::{ModelFiles, ResolvedModel, SourceError, local};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, RepoType};
use std::io;
use std::path::{Path, PathBuf};

/// Names of the files that are fetched from a hub repository beside the weights. Subdirectories hold other formats of
/// the same weights and are ignored.
const WANTED: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];
/// Maximum number of files fetched from one repository of the hub; a model has fewer.
const MAX_FILES: usize = 1_000;
/// Maximum number of waits, five seconds each, for another program that downloads the same file: half an hour in all.
const LOCK_WAITS_MAX: u32 = 360;

/// Repository of the Hugging Face hub: `ORG/NAME` and an optional revision.
#[derive(Debug, PartialEq, Eq)]
struct Repo<'a> {
    org: &'a str,
    name: &'a str,
    revision: Option<&'a str>,
}

impl<'a> Repo<'a> {
    /// Returns the hub repository at the revision that the user names, `main` by default.
    fn hub(&self) -> hf_hub::Repo {
        self.at(self.revision.unwrap_or("main"))
    }

    fn at(&self, revision: &str) -> hf_hub::Repo {
        let name = format!("{}/{}", self.org, self.name);
        hf_hub::Repo::with_revision(name, RepoType::Model, revision.to_owned())
    }

    fn parse(spec: &'a str) -> Result<Repo<'a>, SourceError> {
        let invalid = || SourceError::HubSpec(format!("hf:{spec}"));
        let (id, revision) = match spec.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (spec, None),
        };
        let (org, name) = id.split_once('/').ok_or_else(invalid)?;
        let plain = |text: &str, more: &[char]| {
            let known =
                |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || more.contains(&c);
            !text.is_empty() && text.len() <= 200 && text.chars().all(known) && !text.contains("..")
        };
        if plain(org, &[]) && plain(name, &[]) && revision.is_none_or(|rev| plain(rev, &['/'])) {
            Ok(Repo { org, name, revision })
        } else {
            Err(invalid())
        }
    }
}

/// Fetches a model from the Hugging Face hub: downloads the files that the cache lacks of the commit that
/// `ORG/NAME[@REV]` names now. If the hub cannot be reached or is overloaded, uses the commit that the revision named
/// at the last complete fetch, provided the cache has all its files.
pub(super) fn fetch(
    spec: &str,
    endpoint: Option<&str>,
    cache: Option<&Path>,
) -> Result<ResolvedModel, SourceError> {
    let repo = Repo::parse(spec)?;
    let name = format!("{}/{}", repo.org, repo.name);
    let cache = cache.map_or_else(Cache::from_env, |path| Cache::new(path.to_owned()));
    let dir = match download(&repo, endpoint, &cache) {
        Err(error) if is_network(&error) => {
            let cached = cache.repo(repo.hub()).get("config.json");
            let dir = cached.and_then(|file| file.parent().map(Path::to_owned));
            let dir = dir.filter(|dir| local::check_dir(dir).is_ok());
            let dir = dir.ok_or_else(|| describe(&name, &error))?;
            tracing::warn!("the Hugging Face hub cannot be reached; using the cached {name}");
            dir
        }
        other => other.map_err(|error| describe(&name, &error))?,
    };
    local::check_dir(&dir)?;
    Ok(ResolvedModel { files: ModelFiles::HfDir(dir), name })
}

/// Downloads every needed file of the commit that the revision names now, and returns the directory of the files.
fn download(repo: &Repo<'_>, endpoint: Option<&str>, cache: &Cache) -> Result<PathBuf, ApiError> {
    let token = cache.token().or_else(|| std::env::var("HF_TOKEN").ok());
    let mut builder = ApiBuilder::from_env().with_token(token).with_progress(false);
    builder = builder.with_cache_dir(cache.path().clone());
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.to_owned());
    }
    let api = builder.build()?;
    let info = api.repo(repo.hub()).info()?;
    // The commit hash that the hub states becomes the name of a directory, so it is checked to be hexadecimal.
    if info.sha.len() < 40 || !info.sha.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(ApiError::InvalidHeader("sha"));
    }
    let commit = Commit {
        repo,
        remote: api.repo(repo.at(&info.sha)),
        local: cache.repo(repo.at(&info.sha)),
        sha: &info.sha,
        api: &api,
    };
    let files = info.siblings.iter().map(|sibling| sibling.rfilename.as_str());
    let mut found = false;
    for file in files.filter(|file| wanted(file)).take(MAX_FILES) {
        commit.fetch(file)?;
        found = true;
    }
    if !found {
        let nothing = "the repository holds neither config.json nor safetensors";
        return Err(ApiError::IoError(io::Error::new(io::ErrorKind::NotFound, nothing)));
    }
    // Record that the revision names this commit only now that all its files are in the cache: without a network, a
    // later start uses the recorded commit.
    cache.repo(repo.hub()).create_ref(&info.sha)?;
    Ok(commit.dir())
}

/// One commit of a hub repository, whose files never change.
struct Commit<'a> {
    repo: &'a Repo<'a>,
    api: &'a Api,
    remote: ApiRepo,
    local: CacheRepo,
    sha: &'a str,
}

impl Commit<'_> {
    fn dir(&self) -> PathBuf {
        self.local.pointer_path(self.sha)
    }

    /// Downloads a file of the commit unless it is in the cache. Waits, at most half an hour, while another program
    /// downloads the file.
    fn fetch(&self, file: &str) -> Result<(), ApiError> {
        let mut waits = 0;
        while !self.dir().join(file).exists() && !self.adopt(file)? {
            match self.remote.download_with_progress(file, Bar::new(self.repo)) {
                // Count a wait: the download library has already waited a few seconds for the program that holds the
                // file's lock.
                Err(ApiError::LockAcquisition(_)) if waits < LOCK_WAITS_MAX => {
                    if waits == 0 {
                        tracing::info!(
                            file,
                            "another program is fetching the file; waiting for it"
                        );
                    }
                    waits += 1;
                }
                other => return other.map(|_| ()),
            }
        }
        Ok(())
    }

    /// Links a file into the directory of this commit if the cache has the same content from another commit, so that
    /// unchanged files are not downloaded again. Returns whether the file is in the cache.
    fn adopt(&self, file: &str) -> Result<bool, ApiError> {
        let metadata = self.api.metadata(&self.remote.url(file))?;
        let blob = self.local.blob_path(metadata.etag());
        let same = std::fs::metadata(&blob).is_ok_and(|blob| blob.len() == metadata.size() as u64);
        if metadata.etag().contains('/') || !same {
            return Ok(false);
        }
        std::fs::create_dir_all(self.dir())?;
        let target = Path::new("../../blobs").join(metadata.etag());
        match std::os::unix::fs::symlink(target, self.dir().join(file)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
            _ => Ok(true),
        }
    }
}

fn wanted(file: &str) -> bool {
    let weights = file.ends_with(".safetensors") || file.ends_with(".safetensors.index.json");
    let elsewhere = file.contains('/') || file.starts_with("consolidated");
    !elsewhere && (weights || WANTED.contains(&file))
}

/// Returns the HTTP status with which the hub refused a request; `None` for any other failure.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        ApiError::TooManyRetries(error) => status(error),
        _ => None,
    }
}

fn is_network(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(_) => {
            status(error).is_none_or(|status| status >= 500 || [408, 429].contains(&status))
        }
        // A connection that breaks in the middle of a file counts as a failure of the network, not of the disk.
        ApiError::IoError(error) => matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::TimedOut
                | io::ErrorKind::BrokenPipe
        ),
        ApiError::TooManyRetries(error) => is_network(error),
        _ => false,
    }
}

fn describe(repo: &str, error: &ApiError) -> SourceError {
    let advice = match (status(error), error) {
        (Some(401 | 403 | 404), _) => {
            "check the name and the revision, and set HF_TOKEN if the model is gated or private"
        }
        _ if is_network(error) => "check the network, or give a local path with --model",
        (_, ApiError::IoError(_)) => {
            "check that the name is a model, and that the Hugging Face cache is writable and has space"
        }
        (_, ApiError::LockAcquisition(_)) => {
            "another program has been fetching the model for half an hour; retry when it is done"
        }
        _ => "retry later, or give a local path with --model",
    };
    SourceError::Hub { repo: repo.to_owned(), detail: one_line(&error.to_string()), advice }
}

/// Progress display for the download of one file.
struct Bar {
    repo: String,
    bar: Option<Progress>,
    done: u64,
}

impl Bar {
    fn new(repo: &Repo<'_>) -> Bar {
        Bar { repo: format!("{}/{}", repo.org, repo.name), bar: None, done: 0 }
    }
}

impl hf_hub::api::Progress for Bar {
    fn init(&mut self, size: usize, file: &str) {
        let what = format!("fetching {} of {}", file, self.repo);
        self.bar = Some(Progress::start(what, size as u64));
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        if let Some(bar) = &self.bar {
            bar.set(self.done);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_parsed_strictly() {
        let parsed = Repo::parse("Qwen/Qwen2.5-0.5B@refs/pr/1").unwrap();
        assert_eq!(parsed, Repo { org: "Qwen", name: "Qwen2.5-0.5B", revision: Some("refs/pr/1") });
        assert_eq!(Repo::parse("a/b").unwrap().revision, None);
        for bad in [
            "", "a", "/b", "a/", "a/b/c", "a/b@", "../b", "a/..", "a/b@x..y", "a b/c", "a/b?c",
            "a/b@@c",
        ] {
            assert!(matches!(Repo::parse(bad), Err(SourceError::HubSpec(_))), "{bad:?}");
        }
    }
}
