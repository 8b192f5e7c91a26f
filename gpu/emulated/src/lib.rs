//! A [`Driver`](tiercel_gpu::cuda::Driver) without a GPU: the kernels of `gpu/kernels`, compiled for the host.
//!
//! Each thread of a block is a coroutine, so that barriers and exchanges between lanes do what they do on a GPU, one at a
//! time. Tensor-core instructions are written out after the layout of their fragments in the PTX manual. Matrix products
//! are plain loops. It is for tests: what it computes is what the kernels say, at a ten-thousandth of their speed.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at the first surprise"))]

mod copies;
mod driver;
mod kernels;

pub use copies::EmulatedCopies;
pub use driver::{EmulatedDriver, Fault};
