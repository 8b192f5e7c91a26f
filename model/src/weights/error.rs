//! Why weights could not be loaded.

use crate::arch::ConfigError;
use crate::gguf::GgufError;
use std::path::{Path, PathBuf};
use tiercel_gpu::OpError;

/// Weights that cannot be loaded. Every message says which file or tensor is at fault.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The description of the model was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The GGUF file was refused.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The operating system refused a file.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file is larger than any sane one of its kind.
    #[error("{path} is {bytes} bytes long, more than the limit of {limit}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The directory has no weights in a format this program reads.
    #[error(
        "{0} holds neither model.safetensors nor model.safetensors.index.json; \
         point --model at a directory downloaded from Hugging Face with safetensors, or at a .gguf file"
    )]
    NoWeights(PathBuf),
    /// A safetensors file or its index is malformed.
    #[error("{path} is not a usable safetensors file: {why}; download it again")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Tensors the architecture needs are absent.
    #[error("the model lacks {count} of its tensors: {shown}; the download may be incomplete")]
    Missing {
        /// How many.
        count: usize,
        /// The first few names.
        shown: String,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("tensor {name} is {found:?} but the configuration implies {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape, outermost first.
        found: Vec<usize>,
        /// What it should be.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a way this program does not read.
    #[error("tensor {name} is stored as {encoding}; {supported}")]
    Encoding {
        /// The tensor.
        name: String,
        /// Its encoding.
        encoding: String,
        /// What would work.
        supported: &'static str,
    },
    /// A tensor that changes what the model computes and that this program does not read.
    #[error(
        "tensor {name} is not read, so the model would compute something else; this kind of model is \
         not supported"
    )]
    Unread {
        /// The tensor.
        name: String,
    },
    /// The device refused a matrix.
    #[error("tensor {name}: {source}")]
    Pack {
        /// The tensor, or the first of those stacked.
        name: String,
        /// The reason.
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
