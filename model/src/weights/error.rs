//! Errors of loading weights.

use crate::arch::ConfigError;
use crate::gguf::GgufError;
use std::path::{Path, PathBuf};
use tiercel_gpu::OpError;

/// Reason why weights cannot be loaded. The message names the file or tensor at fault, except for a refused
/// configuration or GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The model's configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The GGUF file was refused.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The operating system could not open or read a file of the checkpoint.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the file that could not be opened or read.
        path: PathBuf,
        /// Error of the operating system on opening or reading the file.
        source: std::io::Error,
    },
    /// A JSON file of a checkpoint is larger than any plausible one.
    #[error("{path} is {bytes} bytes long, more than the limit of {limit}")]
    TooLarge {
        /// Path of the JSON file that is too large.
        path: PathBuf,
        /// Size of the JSON file that is too large, bytes.
        bytes: u64,
        /// Largest accepted size of a JSON file of a checkpoint, bytes.
        limit: u64,
    },
    /// The directory has no weights in a format that this program reads.
    #[error(
        "{0} holds neither model.safetensors nor model.safetensors.index.json; \
         point --model at a directory downloaded from Hugging Face with safetensors, or at a .gguf file"
    )]
    NoWeights(PathBuf),
    /// A safetensors file or its index is malformed.
    #[error("{path} is not a usable safetensors file: {why}; download it again")]
    Safetensors {
        /// Path of the malformed safetensors file or index.
        path: PathBuf,
        /// Reason why the safetensors file or index is not usable.
        why: String,
    },
    /// Tensors that the model's configuration implies are absent.
    #[error("the model lacks {count} of its tensors: {shown}; the download may be incomplete")]
    Missing {
        /// Number of absent tensors.
        count: usize,
        /// Names of the first few absent tensors.
        shown: String,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("tensor {name} is {found:?} but the configuration implies {expected:?}")]
    Shape {
        /// Name of the tensor with the wrong shape.
        name: String,
        /// Shape of the tensor in the file, outermost dimension first.
        found: Vec<usize>,
        /// Shape that the configuration implies for the tensor.
        expected: Vec<usize>,
    },
    /// A tensor has an encoding that this program does not read.
    #[error("tensor {name} is stored as {encoding}; {supported}")]
    Encoding {
        /// Name of the tensor whose encoding is not read.
        name: String,
        /// Encoding of the tensor that this program does not read.
        encoding: String,
        /// Advice that lists the supported tensor encodings.
        supported: &'static str,
    },
    /// A tensor that belongs to a quantized matrix is absent, or has another type, shape or content than the method of
    /// quantization implies.
    #[error(
        "tensor {name} is {found}; quantization_config in config.json implies {expected}; the model may be \
         incomplete or damaged"
    )]
    Quantized {
        /// Name of the tensor that is absent or not as expected.
        name: String,
        /// Type and shape of the tensor in the file, or the wrong number in it.
        found: String,
        /// Type and shape, or number, that the method of quantization implies.
        expected: String,
    },
    /// The checkpoint has a tensor that this program does not read although it changes the results of the model.
    #[error(
        "tensor {name} is not read, so the model would compute something else; this kind of model is \
         not supported"
    )]
    Unread {
        /// Name of the tensor in the model's files that the forward pass would not use.
        name: String,
    },
    /// The device could not take a weight matrix or a vector.
    #[error("tensor {name}: {source}")]
    Pack {
        /// Name of the tensor that the device refused, or of the first of several stacked tensors.
        name: String,
        /// Error with which the device refused the tensor.
        source: OpError,
    },
}

impl WeightError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> WeightError {
        let path = path.to_owned();
        move |source| WeightError::Io { path, source }
    }

    pub(super) fn safetensors(path: &Path, why: impl ToString) -> WeightError {
        WeightError::Safetensors { path: path.to_owned(), why: why.to_string() }
    }
}
