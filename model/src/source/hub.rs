//! Models of the Hugging Face hub, kept in Hugging Face's own cache so that other programs share them.

use super::error::one_line;
use super::progress::Progress;
use super::{ModelFiles, ResolvedModel, SourceError, local};
use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::{HFClient, HFError, HFResult};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The files a server needs; subdirectories hold other formats of the same weights.
const WANTED: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
];
const UNWANTED: [&str; 2] = ["*/*", "consolidated*"];

/// `ORG/NAME` and an optional revision.
#[derive(Debug, PartialEq, Eq)]
struct Repo<'a> {
    org: &'a str,
    name: &'a str,
    revision: Option<&'a str>,
}

impl<'a> Repo<'a> {
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

/// Downloads what is missing of `ORG/NAME[@REV]`. Without a network a complete cached copy is used.
pub(super) fn fetch(
    spec: &str,
    endpoint: Option<&str>,
    cache: Option<&Path>,
) -> Result<ResolvedModel, SourceError> {
    let repo = Repo::parse(spec)?;
    let name = format!("{}/{}", repo.org, repo.name);
    let dir = match snapshot(&repo, endpoint, cache, false) {
        Err(error) if is_network(&error) => {
            let cached = snapshot(&repo, endpoint, cache, true);
            let dir = cached.ok().filter(|dir| local::check_dir(dir).is_ok());
            let dir = dir.ok_or_else(|| describe(&name, &error))?;
            tracing::warn!("the Hugging Face hub cannot be reached; using the cached {name}");
            dir
        }
        other => other.map_err(|error| describe(&name, &error))?,
    };
    local::check_dir(&dir)?;
    Ok(ResolvedModel { files: ModelFiles::HfDir(dir), name })
}

fn snapshot(
    repo: &Repo<'_>,
    endpoint: Option<&str>,
    cache: Option<&Path>,
    local_only: bool,
) -> HFResult<PathBuf> {
    let mut builder = HFClient::builder();
    if let Some(endpoint) = endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let Some(cache) = cache {
        builder = builder.cache_dir(cache);
    }
    let model = builder.build_sync()?.model(repo.org, repo.name);
    let strings =
        |patterns: &[&str]| patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    let bar = Progress::start(format!("fetching {}/{}", repo.org, repo.name), 0);
    model
        .snapshot_download()
        .maybe_revision(repo.revision)
        .allow_patterns(strings(&WANTED))
        .ignore_patterns(strings(&UNWANTED))
        .local_files_only(local_only)
        .progress(Bar { bar, files: Mutex::default() })
        .send()
}

fn is_network(error: &HFError) -> bool {
    matches!(error, HFError::Request { .. } | HFError::Xet { .. })
}

fn describe(repo: &str, error: &HFError) -> SourceError {
    let advice = match error {
        HFError::RepoNotFound { .. } | HFError::AuthRequired { .. } | HFError::Forbidden { .. } => {
            "check the name, and set HF_TOKEN if the model is gated or private"
        }
        HFError::RevisionNotFound { .. } => "check the name, and the revision after the @",
        HFError::Io(_) => "check that the Hugging Face cache is writable and has space",
        error if is_network(error) => "check the network, or give a local path with --model",
        _ => "retry later, or give a local path with --model",
    };
    SourceError::Hub { repo: repo.to_owned(), detail: one_line(&chain(error)), advice }
}

/// The innermost cause says most (`connection refused`); the outermost names the operation.
fn chain(error: &HFError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// Adds up the hub's per-file reports. (hf-hub calls it from its own tasks, hence the mutex.)
struct Bar {
    bar: Progress,
    files: Mutex<HashMap<String, u64>>,
}

impl ProgressHandler for Bar {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        match event {
            DownloadEvent::Start { total_bytes, .. } => self.bar.set_total(*total_bytes),
            DownloadEvent::Progress { files } => {
                let Ok(mut known) = self.files.lock() else { return };
                for file in files {
                    known.insert(file.filename.clone(), file.bytes_completed);
                }
                self.bar.set(known.values().sum());
            }
            DownloadEvent::AggregateProgress { bytes_completed, .. } => {
                self.bar.set(*bytes_completed);
            }
            DownloadEvent::Complete => self.bar.finish(),
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
