//! Tensors of a Hugging Face directory: one safetensors file, or several shards with an index. The files are mapped;
//! only their headers are parsed.

use super::WeightError;
use super::stored::{Content, Stored};
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tiercel_gpu::{MappedFile, SourceType};

/// Largest accepted JSON file, bytes. `config.json` and the shard index are never this large.
const JSON_BYTES_MAX: u64 = 64 << 20;
const SHARDS_MAX: usize = 4096;
/// Bytes before the JSON header of a safetensors file, which hold the header's length.
const HEADER_PREFIX: usize = 8;

/// An open Hugging Face model directory: its mapped weight shards.
pub(super) struct HfDir {
    shards: Vec<Shard>,
    /// Number of the weight shard that holds a tensor, by the tensor's name.
    index: HashMap<String, usize>,
}

/// A tensor of a safetensors file.
pub(super) struct FileTensor<'a> {
    /// Dimensions of the tensor, outermost first.
    pub(super) shape: &'a [usize],
    pub(super) dtype: Dtype,
    pub(super) bytes: &'a [u8],
}

struct Shard {
    path: PathBuf,
    file: MappedFile,
    data_start: usize,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: HashMap<String, String>,
}

/// Reads a whole JSON file of a checkpoint; refuses a file above the size limit.
pub(super) fn read_json(path: &Path) -> Result<Vec<u8>, WeightError> {
    let file = File::open(path).map_err(WeightError::io(path))?;
    let mut bytes = Vec::new();
    file.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(WeightError::io(path))?;
    if bytes.len() as u64 > JSON_BYTES_MAX {
        let (path, bytes) = (path.to_owned(), bytes.len() as u64);
        return Err(WeightError::TooLarge { path, bytes, limit: JSON_BYTES_MAX });
    }
    Ok(bytes)
}

impl HfDir {
    pub(super) fn open(dir: &Path) -> Result<HfDir, WeightError> {
        let (single, index) =
            (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
        // Prefer `model.safetensors` to a shard index, as Hugging Face's own loader does: an index beside it is a
        // leftover.
        if !single.is_file() {
            if index.is_file() {
                return HfDir::open_shards(dir, &index);
            }
            return Err(WeightError::NoWeights(dir.to_owned()));
        }
        let shard = Shard::open(single)?;
        let index = shard.metadata.offset_keys().into_iter().map(|name| (name, 0)).collect();
        Ok(HfDir { shards: vec![shard], index })
    }

    fn open_shards(dir: &Path, index_path: &Path) -> Result<HfDir, WeightError> {
        let bad = |why: String| WeightError::safetensors(index_path, why);
        let parsed: ShardIndex = serde_json::from_slice(&read_json(index_path)?)
            .map_err(|error| bad(error.to_string()))?;
        let files: BTreeSet<&String> = parsed.weight_map.values().collect();
        if files.len() > SHARDS_MAX {
            return Err(bad(format!("{} shards, more than {SHARDS_MAX}", files.len())));
        }
        let mut shards = Vec::with_capacity(files.len());
        let mut numbers = HashMap::with_capacity(files.len());
        for file in files {
            // Refuse shard names with a directory in them, which could lead outside the model's directory.
            if Path::new(file).file_name().and_then(|name| name.to_str()) != Some(file) {
                let shown: String = file.chars().take(64).collect();
                return Err(bad(format!("{shown:?} is not a plain file name")));
            }
            numbers.insert(file.clone(), shards.len());
            shards.push(Shard::open(dir.join(file))?);
        }
        let index =
            parsed.weight_map.into_iter().map(|(name, file)| (name, numbers[&file])).collect();
        Ok(HfDir { shards, index })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// Returns a tensor of floats; `None` if it is absent.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<Stored<'_>>, WeightError> {
        let Some(FileTensor { shape, dtype, bytes }) = self.raw(name)? else { return Ok(None) };
        let source = match dtype {
            Dtype::F32 => SourceType::F32,
            Dtype::F16 => SourceType::F16,
            Dtype::BF16 => SourceType::Bf16,
            other => {
                return Err(WeightError::Encoding {
                    name: name.to_owned(),
                    encoding: format!("{other:?}"),
                    supported: "safetensors may hold F32, F16 or BF16; matrices of other types need \
                                quantization_config in config.json",
                });
            }
        };
        Ok(Some(Stored { shape: shape.to_vec(), content: Content::Encoded(source, bytes) }))
    }

    /// Returns a tensor of any type; `None` if it is absent.
    pub(super) fn raw(&self, name: &str) -> Result<Option<FileTensor<'_>>, WeightError> {
        let Some(shard) = self.index.get(name).map(|&number| &self.shards[number]) else {
            return Ok(None);
        };
        let Some(info) = shard.metadata.info(name) else {
            let why = format!("it does not hold {name:?}, although the index says so");
            return Err(WeightError::safetensors(&shard.path, why));
        };
        let (start, end) = info.data_offsets;
        // The slice is in bounds: `read_metadata` has checked that a tensor's offsets lie in the file and match shape
        // and type.
        let bytes = &shard.file.as_ref()[shard.data_start..][start..end];
        Ok(Some(FileTensor { shape: &info.shape, dtype: info.dtype, bytes }))
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Shard, WeightError> {
        let file = MappedFile::open(&path).map_err(WeightError::io(&path))?;
        let (header, metadata) = SafeTensors::read_metadata(file.as_ref())
            .map_err(|error| WeightError::safetensors(&path, error))?;
        Ok(Shard { path, file, data_start: HEADER_PREFIX + header, metadata })
    }
}
