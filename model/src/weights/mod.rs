//! Weights: loaded from a GGUF file or a Hugging Face directory into a device.
//!
//! | file | what it does |
//! |---|---|
//! | `checkpoint.rs` | a model on disk: opened, configuration read, every tensor checked to be present |
//! | `hf_dir.rs` | safetensors, single and sharded |
//! | `stored.rs` | a tensor as a checkpoint stores it, plain or quantized |
//! | `quantized` | FP8, AWQ, GPTQ and compressed-tensors' packed integer matrices of Hugging Face directories |
//! | `roles.rs` | purpose of each tensor, its name in either format, its shape |
//! | `load.rs` | packing into the device's matrices |
//! | `random.rs` | random weights, for checks |
//! | `error.rs` | errors |

mod checkpoint;
mod error;
mod hf_dir;
mod load;
mod quantized;
mod random;
mod roles;
mod stored;

#[cfg(test)]
mod tests;

pub use crate::source::ModelFiles;
pub use checkpoint::Checkpoint;
pub use error::WeightError;
pub(crate) use load::LayerWeights;
pub use load::{LoadProgress, Weights};
