//! Devices that run a model: the op set that a model's forward pass is written against, and its implementations for the
//! CPU and for NVIDIA GPUs.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at the first surprise"))]

mod available;
pub mod cpu;
pub mod cuda;
mod draws;
mod ggml;
mod kv_type;
mod mmap;
mod ops;
mod quantized;

pub use available::available_bytes;
pub use draws::{Draw, Drawn, RowInput};
pub use kv_type::KvType;
pub use mmap::MappedFile;
pub use ops::{
    AttentionShape, MatrixPart, OpError, Ops, SeqRows, SourceType, TensorUse, WeightFormat,
};
pub use quantized::{NumberType, QuantizedPart, QuantizedShape, UNIT};
