//! The CPU as a device: packed weights, paged attention and row operations on one compute pool.
//!
//! | module | job |
//! |---|---|
//! | `options` | settings of the device, and the errors of opening it |
//! | `ops` | the [`Ops`](crate::Ops) implementation: checks shapes, calls the kernels |
//! | `pool` | the compute threads |
//! | `memory` | large zeroed memory mappings from the system |
//! | `kv`, `kv_write`, `element` | memory of both KV pools and the copier between them; writing; element types |
//! | `tensor` | activations, vectors, rotary tables |
//! | `weights` | the forms that a matrix can take in memory, and packing |
//! | `linear` | products of activations and packed matrices |
//! | `attention` | attention over paged blocks |
//! | `rows` | norms, rotation, activation function: operations on single rows |
//! | `isa`, `exp` | instruction sets; the exponential function |

mod attention;
mod element;
mod exp;
mod isa;
mod kv;
mod kv_write;
mod linear;
mod memory;
mod ops;
mod options;
mod pool;
mod rows;
mod tensor;
#[cfg(test)]
mod tests;
mod weights;

pub use kv::CpuCopier;
pub use ops::CpuOps;
pub use options::{CpuDevice, CpuError, CpuOptions};
pub(crate) use pool::Pool;
pub use tensor::{Rope, Tensor, Vector};
pub use weights::{Matrix, packed_bytes};
