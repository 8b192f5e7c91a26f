//! Why a GGUF file cannot be used.

use std::path::PathBuf;

/// A file that is not a usable GGUF. Every message says where the file goes wrong; none is fatal to
/// the process.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused the file.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file (it does not start with `GGUF`)")]
    Magic,
    /// A version this reader does not know.
    #[error("GGUF version {0} is not supported (2 and 3 are); convert the model again")]
    Version(u32),
    /// Written on a big-endian machine.
    #[error("a big-endian GGUF is not supported; convert the model for a little-endian machine")]
    BigEndian,
    /// The file ends inside `what`.
    #[error("the GGUF file is truncated: it ends inside {what}; download it again")]
    Truncated {
        /// What was being read.
        what: &'static str,
    },
    /// A count or length that no file of this size, or no sane file at all, can have.
    #[error("the GGUF file claims {count} {what}, more than the limit of {limit}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The claim.
        count: u64,
        /// The most that is accepted here.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("the GGUF file holds text that is not UTF-8 in {what}")]
    Utf8 {
        /// Where.
        what: &'static str,
    },
    /// A value type number that GGUF does not define.
    #[error("the GGUF file has the unknown value type {0}")]
    ValueType(u32),
    /// Two metadata entries or two tensors share a name.
    #[error("the GGUF file names {what} `{name}` twice")]
    Duplicate {
        /// `metadata key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// `general.alignment` is not a power of two in `1..=65536`.
    #[error("the GGUF file asks for an alignment of {0}, which is not a power of two up to 65536")]
    Alignment(u64),
    /// A tensor whose encoding is not known, so that its size is not either.
    #[error("tensor `{name}` has the unknown encoding {id}; this version cannot read it")]
    TensorType {
        /// The tensor.
        name: String,
        /// ggml's number for the encoding.
        id: u32,
    },
    /// A tensor's shape is impossible.
    #[error("tensor `{name}` has an impossible shape {dims:?} for {ggml_type}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Its dimensions, fastest first.
        dims: Vec<u64>,
        /// Its encoding.
        ggml_type: &'static str,
    },
    /// A tensor's bytes are not all in the file, or not aligned.
    #[error(
        "tensor `{name}` needs {bytes} bytes at offset {offset}, which the file does not hold (truncated?)"
    )]
    TensorRange {
        /// The tensor.
        name: String,
        /// Start, relative to the data section.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// A metadata entry the caller needs is missing.
    #[error("the GGUF file has no `{0}`; it may be incomplete, or made for another program")]
    MissingKey(String),
    /// A metadata entry has another type than the caller needs.
    #[error("`{key}` of the GGUF file is {found}, not {wanted}")]
    WrongType {
        /// The entry.
        key: String,
        /// What the caller wanted.
        wanted: &'static str,
        /// What the file holds.
        found: &'static str,
    },
}
