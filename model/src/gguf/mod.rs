//! A reader of GGUF files, versions 2 and 3, with bounded use of memory.
//!
//! A file is memory-mapped. Its directory (metadata and tensor descriptions) is checked once, when the file is opened.
//! All other data stays in the map, and a tensor is a slice of the map. A model file comes from strangers, so every
//! count and length is checked against the remaining bytes before anything is allocated for it, and every tensor is
//! checked to lie in the file. A hostile file ends in a [`GgufError`], never in a panic or in more memory than a small
//! multiple of the file's own directory.
//!
//! | file | what it does |
//! |---|---|
//! | `cursor.rs` | bounds-checked reads |
//! | `metadata.rs` | typed metadata values by key |
//! | `types.rs` | ggml's encodings and their sizes |
//! | `error.rs` | errors |

#[cfg(test)]
pub(crate) mod build;
mod cursor;
mod error;
mod metadata;
#[cfg(test)]
mod tests;
mod types;

pub use error::GgufError;
pub use metadata::Metadata;
pub use types::GgmlType;

use cursor::Cursor;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use tiercel_gpu::MappedFile;

const TENSORS_MAX: u64 = 131_072;
const TENSOR_NAME_BYTES_MAX: u64 = 1024;
const DIMS_MAX: u32 = 4;
/// Minimum bytes of a tensor description in a GGUF file: name length (8), dimension count (4), type (4) and offset (8).
const TENSOR_BYTES_MIN: usize = 24;
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 65_536;

/// An open GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    file: MappedFile,
    directory: Directory,
}

/// One tensor of an open GGUF file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Dimensions of the tensor in ggml's order, fastest-running first: a matrix of `n` rows and `k` columns has `[k,
    /// n]`.
    pub dims: &'a [u64],
    /// Encoding of the tensor's data.
    pub ggml_type: GgmlType,
    /// Bytes of the tensor in the mapped file, exactly as many as its shape and encoding imply.
    pub bytes: &'a [u8],
}

#[derive(Debug)]
struct Directory {
    index: metadata::Index,
    tensors: HashMap<String, Tensor>,
}

#[derive(Debug)]
struct Tensor {
    dims: Vec<u64>,
    ggml_type: GgmlType,
    range: Range<usize>,
}

impl GgufFile {
    /// Maps the GGUF file at `path` and checks its directory.
    ///
    /// # Errors
    /// [`GgufError`] for anything that is not a complete, well-formed GGUF file.
    pub fn open(path: &Path) -> Result<GgufFile, GgufError> {
        let file = MappedFile::open(path)
            .map_err(|source| GgufError::Io { path: path.to_owned(), source })?;
        let directory = Directory::read(file.as_ref())?;
        Ok(GgufFile { file, directory })
    }

    /// Returns the metadata of the GGUF file.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata { index: &self.directory.index, bytes: self.file.as_ref() }
    }

    /// Returns the tensor called `name`, if the file has it.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let tensor = self.directory.tensors.get(name)?;
        let bytes = &self.file.as_ref()[tensor.range.clone()];
        Some(TensorView { dims: &tensor.dims, ggml_type: tensor.ggml_type, bytes })
    }

    /// Returns the names of all tensors of the GGUF file, in no particular order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.directory.tensors.keys().map(String::as_str)
    }

    /// Returns the size of the GGUF file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file.as_ref().len() as u64
    }
}

impl Directory {
    fn read(bytes: &[u8]) -> Result<Directory, GgufError> {
        let mut cursor = Cursor::new(bytes);
        if bytes.get(..4) != Some(b"GGUF") {
            return Err(GgufError::Magic);
        }
        cursor.skip(4, "the header")?;
        match cursor.u32("the header")? {
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
            version => return Err(GgufError::Version(version)),
        }
        let tensor_count = cursor.count("tensors", TENSOR_BYTES_MIN, TENSORS_MAX)?;
        let entry_count = metadata::Index::read_count(&mut cursor)?;
        let index = metadata::Index::read(&mut cursor, entry_count)?;
        let alignment = alignment(Metadata { index: &index, bytes })?;
        let described: Vec<Described> = (0..tensor_count)
            .map(|_| Described::read(&mut cursor))
            .collect::<Result<_, GgufError>>()?;
        let data_start = (cursor.pos() as u64).next_multiple_of(alignment);
        let mut tensors = HashMap::with_capacity(described.len());
        for tensor in described {
            let (name, tensor) = tensor.locate(data_start, alignment, bytes.len() as u64)?;
            if tensors.contains_key(&name) {
                return Err(GgufError::Duplicate { what: "tensor", name });
            }
            tensors.insert(name, tensor);
        }
        Ok(Directory { index, tensors })
    }
}

fn alignment(metadata: Metadata<'_>) -> Result<u64, GgufError> {
    let alignment = metadata.u32("general.alignment")?.map_or(ALIGNMENT_DEFAULT, u64::from);
    if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
        Ok(alignment)
    } else {
        Err(GgufError::Alignment(alignment))
    }
}

/// A tensor as the file's directory describes it, before its data is checked to lie in the file.
struct Described {
    name: String,
    dims: Vec<u64>,
    ggml_type: GgmlType,
    offset: u64,
}

impl Described {
    fn read(cursor: &mut Cursor<'_>) -> Result<Described, GgufError> {
        let what = "the list of tensors";
        let name = cursor.owned("tensor names", TENSOR_NAME_BYTES_MAX)?;
        let dim_count = cursor.u32(what)?;
        if dim_count == 0 || dim_count > DIMS_MAX {
            let (count, limit) = (u64::from(dim_count), u64::from(DIMS_MAX));
            return Err(GgufError::TooMany { what: "dimensions", count, limit });
        }
        let dims = (0..dim_count).map(|_| cursor.u64(what)).collect::<Result<Vec<u64>, _>>()?;
        let id = cursor.u32(what)?;
        let Some(ggml_type) = GgmlType::from_id(id) else {
            return Err(GgufError::TensorType { name, id });
        };
        Ok(Described { name, dims, ggml_type, offset: cursor.u64(what)? })
    }

    fn locate(
        self,
        data_start: u64,
        alignment: u64,
        file_bytes: u64,
    ) -> Result<(String, Tensor), GgufError> {
        let Described { name, dims, ggml_type, offset } = self;
        let Some(bytes) = ggml_type.tensor_bytes(&dims) else {
            return Err(GgufError::TensorShape { name, dims, ggml_type: ggml_type.name() });
        };
        let start = data_start.checked_add(offset).filter(|_| offset % alignment == 0);
        let range = start.and_then(|start| Some((start, start.checked_add(bytes)?)));
        match range.filter(|&(_, end)| end <= file_bytes) {
            Some((start, end)) => {
                let range = start as usize..end as usize;
                Ok((name, Tensor { dims, ggml_type, range }))
            }
            None => Err(GgufError::TensorRange { name, offset, bytes }),
        }
    }
}
