//! Errors for a GGUF file that cannot be used.

use std::path::PathBuf;

/// Error for a file that is not a usable GGUF file. Its message says what is wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system could not open or map the GGUF file.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the GGUF file.
        path: PathBuf,
        /// Error of the operating system on opening or mapping the GGUF file.
        source: std::io::Error,
    },
    /// The first four bytes of the file are not `GGUF`.
    #[error("not a GGUF file (it does not start with `GGUF`)")]
    Magic,
    /// The file has a GGUF version that this reader does not know.
    #[error("GGUF version {0} is not supported (2 and 3 are); convert the model again")]
    Version(u32),
    /// The GGUF file was written for a big-endian machine.
    #[error("a big-endian GGUF is not supported; convert the model for a little-endian machine")]
    BigEndian,
    /// The GGUF file is truncated: it ends inside the part that `what` names.
    #[error("the GGUF file is truncated: it ends inside {what}; download it again")]
    Truncated {
        /// Part of the GGUF file that was being read when the file ended.
        what: &'static str,
    },
    /// A count or length in a GGUF file is too large for the size of the file, or larger than in any plausible file.
    #[error("the GGUF file claims {count} {what}, more than the limit of {limit}")]
    TooMany {
        /// Kind of the items whose count is too large, or of the texts that are too long, such as metadata entries or
        /// tensor names.
        what: &'static str,
        /// Count, or length in bytes, that the GGUF file states.
        count: u64,
        /// Largest count or length that the GGUF reader accepts: a fixed limit or, if that is less, what the rest of
        /// the file can hold.
        limit: u64,
    },
    /// A text in the GGUF file is not UTF-8.
    #[error("the GGUF file holds text that is not UTF-8 in {what}")]
    Utf8 {
        /// Part of the GGUF file that holds the text that is not UTF-8.
        what: &'static str,
    },
    /// A metadata value has a type number that GGUF does not define.
    #[error("the GGUF file has the unknown value type {0}")]
    ValueType(u32),
    /// Two metadata entries or two tensors have the same name.
    #[error("the GGUF file names {what} `{name}` twice")]
    Duplicate {
        /// Kind of the items with equal names: `metadata key` or `tensor`.
        what: &'static str,
        /// Name of the metadata key or tensor that occurs twice in the GGUF file.
        name: String,
    },
    /// The alignment that a GGUF file states (`general.alignment`) is not a power of two in `1..=65536`.
    #[error("the GGUF file asks for an alignment of {0}, which is not a power of two up to 65536")]
    Alignment(u64),
    /// A tensor has an unknown encoding, so that its size is unknown too.
    #[error("tensor `{name}` has the unknown encoding {id}; this version cannot read it")]
    TensorType {
        /// Name of the tensor with the unknown encoding.
        name: String,
        /// Number that ggml gives the tensor's encoding.
        id: u32,
    },
    /// A tensor has an impossible shape: a dimension of 0, rows that are not whole quantization blocks, or a size that
    /// overflows.
    #[error("tensor `{name}` has an impossible shape {dims:?} for {ggml_type}")]
    TensorShape {
        /// Name of the tensor with the impossible shape.
        name: String,
        /// Dimensions of the tensor, fastest-running first.
        dims: Vec<u64>,
        /// ggml's name of the tensor's encoding.
        ggml_type: &'static str,
    },
    /// The data of a tensor is not aligned, or does not lie whole in the file.
    #[error(
        "tensor `{name}` needs {bytes} bytes at offset {offset}, which the file does not hold (truncated?)"
    )]
    TensorRange {
        /// Name of the tensor whose data is not aligned or not whole in the file.
        name: String,
        /// Start of the tensor's data, bytes from the start of the data section.
        offset: u64,
        /// Length of the tensor's data, bytes.
        bytes: u64,
    },
    /// A metadata entry that the caller needs is missing.
    #[error("the GGUF file has no `{0}`; it may be incomplete, or made for another program")]
    MissingKey(String),
    /// A GGUF metadata entry has another type than the caller needs, or an integer does not fit the type that the
    /// caller needs.
    #[error("`{key}` of the GGUF file is {found}, not {wanted}")]
    WrongType {
        /// Key of the metadata entry that has the wrong type.
        key: String,
        /// Type that the caller needs the metadata entry to have.
        wanted: &'static str,
        /// Type that the metadata entry has in the GGUF file.
        found: &'static str,
    },
}
