//! A [`Driver`](tiercel_gpu::cuda::Driver) without a GPU: the kernels of `gpu/kernels`, compiled for the host.
//!
//! Each thread of a thread block is a coroutine, so that barriers and exchanges between lanes behave as on a GPU; one
//! coroutine runs at a time. Tensor-core instructions follow the layout of their fragments in the PTX manual. Matrix
//! products that a GPU computes by cuBLASLt are plain loops; all other matrix products are kernels like the rest. The
//! emulator is for tests: it runs the kernels' own source, at a ten-thousandth of a GPU's speed.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at the first surprise"))]

mod copies;
mod driver;
mod fault;
mod kernels;
mod time;

pub use copies::{EmulatedCopies, EmulatedHost};
pub use driver::EmulatedDriver;
pub use fault::Fault;
pub use time::{BYTES_PER_US, LAUNCH_US};
