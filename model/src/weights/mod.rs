//! Weights: from a GGUF file or a Hugging Face directory into a device.
//!
//! | file | what it does |
//! |---|---|
//! | `checkpoint.rs` | a model on disk: opened, configuration read, every tensor checked to be there |
//! | `hf_dir.rs` | safetensors, single and sharded |
//! | `roles.rs` | what each tensor is for, its name in either format, its shape |
//! | `load.rs` | packing into the device's matrices |
//! | `random.rs` | weights that no model has, for checks |
//! | `error.rs` | what can be wrong |

mod checkpoint;
mod error;
mod hf_dir;
mod load;
mod random;
mod roles;

#[cfg(test)]
mod tests;

pub use crate::source::ModelFiles;
pub use checkpoint::Checkpoint;
pub use error::WeightError;
pub(crate) use load::LayerWeights;
pub use load::{LoadProgress, Weights};
