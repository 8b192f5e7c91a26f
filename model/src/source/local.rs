//! Models that the `--model` setting gives by a path: a GGUF file or a Hugging Face directory.

use super::{ModelFiles, ResolvedModel, SourceError};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";
/// Maximum bytes read from an index of weight shards. An index of this size names hundreds of thousands of tensors.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Checks that `path` is a model of a supported kind, without reading the weights. Returns the model's files and name.
pub(super) fn check(path: &Path) -> Result<ResolvedModel, SourceError> {
    let metadata = fs::metadata(path).map_err(|error| not_found(path, &error))?;
    let files = if metadata.is_dir() {
        check_dir(path)?;
        ModelFiles::HfDir(path.to_owned())
    } else {
        check_gguf(path)?;
        ModelFiles::Gguf(path.to_owned())
    };
    let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = match &files {
        ModelFiles::Gguf(_) => absolute.file_stem(),
        ModelFiles::HfDir(_) => absolute.file_name(),
    };
    let name = name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(ResolvedModel { files, name })
}

fn not_found(path: &Path, error: &std::io::Error) -> SourceError {
    if error.kind() != std::io::ErrorKind::NotFound {
        return SourceError::NotAModel { path: path.to_owned(), reason: error.to_string() };
    }
    let text = path.to_string_lossy();
    let is_repo = text.split('/').filter(|part| !part.is_empty() && *part != ".").count() == 2
        && !text.starts_with(['/', '.', '~'])
        && !text.ends_with(".gguf");
    let hint = if is_repo {
        format!("; for a model of the Hugging Face hub write hf:{text}")
    } else {
        String::new()
    };
    SourceError::NotFound { path: path.to_owned(), hint }
}

fn not_a_model(path: &Path, reason: impl Into<String>) -> SourceError {
    SourceError::NotAModel { path: path.to_owned(), reason: reason.into() }
}

fn check_gguf(path: &Path) -> Result<(), SourceError> {
    if !path.is_file() {
        return Err(not_a_model(path, "neither a file nor a directory"));
    }
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            Err(not_a_model(path, error.to_string()))
        }
        _ => {
            Err(not_a_model(path, "not a GGUF file; give a .gguf file or a Hugging Face directory"))
        }
    }
}

/// Checks that a Hugging Face model directory has a configuration, a tokenizer and all weight shards.
pub(super) fn check_dir(dir: &Path) -> Result<(), SourceError> {
    for file in ["config.json", "tokenizer.json"] {
        if !dir.join(file).is_file() {
            return Err(not_a_model(dir, missing(dir, file)));
        }
    }
    if dir.join(WEIGHTS).is_file() {
        return Ok(());
    }
    let index = dir.join(WEIGHTS_INDEX);
    if !index.is_file() {
        return Err(not_a_model(dir, format!("it has neither {WEIGHTS} nor {WEIGHTS_INDEX}")));
    }
    for shard in shards(&index).map_err(|reason| not_a_model(&index, reason))? {
        if !dir.join(&shard).is_file() {
            return Err(not_a_model(
                dir,
                format!("the shard {shard} is missing; download it again"),
            ));
        }
    }
    Ok(())
}

fn missing(dir: &Path, file: &str) -> String {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let gguf = entries
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "gguf"));
    match gguf {
        Some(gguf) => format!("it has no {file}, but a GGUF file: give {}", gguf.display()),
        None => format!("it has no {file}"),
    }
}

/// Returns the distinct weight shards that an index file names. Each name must be a plain file name, without a
/// directory.
fn shards(index: &Path) -> Result<Vec<String>, String> {
    let file = File::open(index).map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.take(INDEX_BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("not a valid index: {error}"))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or("not a valid index: no `weight_map`")?;
    let mut shards: Vec<String> = Vec::new();
    for shard in map.values() {
        let shard = shard.as_str().ok_or("not a valid index: a shard is not a string")?;
        if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." {
            return Err(format!("it names a shard outside its directory: {shard:?}"));
        }
        shards.push(shard.to_owned());
    }
    shards.sort();
    shards.dedup();
    Ok(shards)
}
