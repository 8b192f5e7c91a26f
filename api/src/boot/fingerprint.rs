//! Computes the system fingerprint, a short text that every answer states. The fingerprint stays the same as long as
//! the program, the model and the settings that the texts of answers depend on stay the same. A client that sends a
//! request with a `seed` twice can expect equal texts only if the fingerprints of both answers are equal.

use crate::text::Forms;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tiercel_config::ServerSettings;
use tiercel_device::SamplingParams;
use tiercel_model::source::ModelFiles;

/// Length of each hashed piece of a file, bytes. Only pieces from the beginning, the middle and the end of a file are
/// hashed, so that a model of any size is hashed in a few milliseconds.
const PIECE_BYTES: u64 = 1 << 20;
/// Largest number of files of a model's directory that are hashed.
const MAX_FILES: usize = 1_000;
/// File name extensions of the files in a directory that belong to a model.
const ENDINGS: [&str; 4] = ["json", "safetensors", "jinja", "model"];
/// Number of hexadecimal digits of a fingerprint.
const DIGITS: usize = 12;

/// Returns a hash of the sizes of a model's files and of pieces of their contents. The hash does not depend on the
/// names of folders and on modification times, so a copy of a model has the hash of the original.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn of_files(files: &ModelFiles) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    for path in paths(files)? {
        add_file(&mut hasher, &path)?;
    }
    Ok(hasher.finalize())
}

/// Properties of the served model on which the texts of answers depend.
pub(crate) struct Served<'a> {
    /// Hash of the model's files; of a mock device, hash of its profile and its replies.
    pub(crate) model: blake3::Hash,
    /// Name of the device that computes.
    pub(crate) device: &'a str,
    /// Sources of the chat templates.
    pub(crate) templates: Vec<&'a str>,
    /// Forms in which answers are searched for calls and reasoning.
    pub(crate) forms: &'a Forms,
    /// Default sampling parameters.
    pub(crate) sampling: &'a SamplingParams,
}

/// Returns the system fingerprint of a server: `tiercel-VERSION-HASH`.
pub(crate) fn of_server(settings: &ServerSettings, served: &Served<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    // Hash the file of the program, because two builds of one version can differ. If the file cannot be read, the
    // fingerprint tells programs apart by their versions alone.
    if let Err(error) = std::env::current_exe().and_then(|path| add_file(&mut hasher, &path)) {
        tracing::debug!(%error, "the system fingerprint does not cover the program's file");
    }
    let Served { model, device, templates, forms, sampling } = served;
    hasher.update(model.as_bytes());
    let kv = (&settings.kv.element, settings.kv.block_size);
    let of_text = (&settings.model.weights, kv, settings.device.exact);
    let parsers = (forms.tools, forms.reasoning, forms.template.is_some());
    let whole = format!("{device} {of_text:?} {parsers:?} {templates:?} {sampling:?}");
    hasher.update(whole.as_bytes());
    let hash = hasher.finalize().to_hex();
    format!("tiercel-{}-{}", env!("CARGO_PKG_VERSION"), &hash[..DIGITS])
}

/// Returns the paths of a model's files, in an order that does not depend on the file system.
fn paths(files: &ModelFiles) -> io::Result<Vec<PathBuf>> {
    let dir = match files {
        ModelFiles::Gguf(path) => return Ok(vec![path.clone()]),
        ModelFiles::HfDir(dir) => dir,
    };
    let of_model = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ENDINGS.contains(&ending)) && path.is_file()
    };
    let entries = std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    paths.retain(of_model);
    paths.sort();
    paths.truncate(MAX_FILES);
    Ok(paths)
}

fn add_file(hasher: &mut blake3::Hasher, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    hasher.update(&bytes.to_le_bytes());
    let last = bytes.saturating_sub(PIECE_BYTES);
    for start in [0, last / 2, last] {
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::new();
        (&mut file).take(PIECE_BYTES).read_to_end(&mut piece)?;
        hasher.update(&piece);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_config::{DeviceKind, KvElement, Weights};
    use tiercel_dialect::{ReasoningDialect, ToolDialect};

    fn model(files: &[(&str, &[u8])]) -> blake3::Hash {
        let dir = tempfile::tempdir().unwrap();
        for (name, contents) in files {
            std::fs::write(dir.path().join(name), contents).unwrap();
        }
        of_files(&ModelFiles::HfDir(dir.path().to_owned())).unwrap()
    }

    fn served<'a>(forms: &'a Forms, sampling: &'a SamplingParams) -> Served<'a> {
        let model = blake3::hash(b"model");
        Served { model, device: "cpu", templates: vec!["{{ messages }}"], forms, sampling }
    }

    fn server(settings: &ServerSettings, change: impl FnOnce(&mut Served<'_>)) -> String {
        let (forms, sampling) = (Forms::default(), SamplingParams::default());
        let mut served = served(&forms, &sampling);
        change(&mut served);
        of_server(settings, &served)
    }

    #[test]
    fn a_copy_of_a_model_has_its_hash_and_another_model_has_not() {
        let small: (&str, &[u8]) = ("config.json", b"{}");
        let original = model(&[small, ("model.safetensors", b"weights")]);
        let copy = model(&[("model.safetensors", b"weights"), small, ("README.md", b"text")]);
        assert_eq!(original, copy);
        assert_ne!(original, model(&[small, ("model.safetensors", b"weighty")]));
        assert_ne!(original, model(&[("config.json", b"{ }"), ("model.safetensors", b"weights")]));
        let missing = ModelFiles::Gguf("/nowhere/model.gguf".into());
        assert_eq!(of_files(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn beginning_middle_and_end_of_a_large_file_count() {
        let zeros = vec![0; 8 << 20];
        let original = model(&[("model.safetensors", &zeros)]);
        for place in [0, zeros.len() / 2, zeros.len() - 1] {
            let mut other = zeros.clone();
            other[place] = 1;
            assert_ne!(original, model(&[("model.safetensors", &other)]), "{place}");
        }
        assert_ne!(original, model(&[("model.safetensors", &zeros[1..])]));
    }

    #[test]
    fn only_settings_that_texts_depend_on_change_the_fingerprint() {
        let original = server(&ServerSettings::default(), |_| ());
        let form = format!("tiercel-{}-", env!("CARGO_PKG_VERSION"));
        let digits = original.strip_prefix(&form).unwrap();
        assert!(digits.len() == 12 && digits.chars().all(|digit| digit.is_ascii_hexdigit()));
        let changed = |change: fn(&mut ServerSettings)| {
            let mut settings = ServerSettings::default();
            change(&mut settings);
            server(&settings, |_| ()) != original
        };
        assert!(!changed(|settings| settings.http.max_connections = 7));
        assert!(!changed(|settings| settings.engine.scheduler.max_num_seqs = 7));
        assert!(!changed(|settings| settings.device.kind = DeviceKind::Cpu), "the device counts");
        assert!(changed(|settings| settings.model.weights = Weights::F32));
        assert!(changed(|settings| settings.kv.element = KvElement::Bf16));
        assert!(changed(|settings| settings.kv.element = KvElement::Q8));
        assert!(changed(|settings| settings.device.exact = true));
    }

    #[test]
    fn another_model_device_template_parser_or_sampling_changes_the_fingerprint() {
        let settings = ServerSettings::default();
        let original = server(&settings, |_| ());
        let greedy = SamplingParams::greedy();
        let calls = Forms { tools: Some(ToolDialect::Hermes), ..Forms::default() };
        let reasoning = Forms { reasoning: Some(ReasoningDialect::Think), ..Forms::default() };
        let changed = [
            server(&settings, |served| served.model = blake3::hash(b"other")),
            server(&settings, |served| served.device = "gpu"),
            server(&settings, |served| served.templates = vec!["{{ messages }} "]),
            server(&settings, |served| served.templates.push("{{ messages }}")),
            of_server(&settings, &served(&calls, &SamplingParams::default())),
            of_server(&settings, &served(&reasoning, &SamplingParams::default())),
            of_server(&settings, &served(&Forms::default(), &greedy)),
        ];
        for (index, changed) in changed.iter().enumerate() {
            assert_ne!(*changed, original, "{index}");
        }
    }
}
