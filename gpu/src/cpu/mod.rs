//! The CPU as a device: packed weights, paged attention and row operations on one compute pool.
//!
//! | module | job |
//! |---|---|
//! | `options` | settings of the device and what can go wrong opening it |
//! | `pool` | the compute threads |
//! | `kv` | KV slabs of both tiers, and the copier between them |
//! | `tensor` | activations, vectors, rotary tables |
//! | `ops` | the [`Ops`](crate::Ops) implementation: checks shapes, delegates |

mod attention;
mod element;
mod exp;
mod isa;
mod kv;
mod kv_write;
mod linear;
mod ops;
mod options;
mod pool;
mod rows;
mod tensor;
mod weights;

pub use kv::CpuCopier;
pub use ops::CpuOps;
pub use options::{CpuDevice, CpuError, CpuOptions};
pub use tensor::{Rope, Tensor, Vector};
pub use weights::Matrix;
