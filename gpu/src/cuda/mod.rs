//! An NVIDIA GPU as a device: bf16 weights, paged attention on kernels of the project's own, block copies on a
//! stream of their own.
//!
//! | module | job |
//! |---|---|
//! | `driver` | what is needed of a GPU, as a trait, and what can go wrong with one |
//! | `kernels` | the sources below `gpu/kernels`, and what each is compiled with |
//! | `launch` | asking for launches and uploading their words |
//! | `ops`, `attention` | the [`Ops`](crate::Ops) implementation: checks shapes, launches |
//! | `access` | tensors from and to the host |
//! | `batch`, `words` | what kernels need to know of a batch, and where it is |
//! | `memory` | weights, activations and KV blocks in device memory |
//! | `sample` | drawing tokens from logits |
//! | `repeats` | decode steps that are the same launches each time, as graphs |
//! | `steps` | what is under way, and waiting for it |
//! | `weights` | from a file's encoding to bf16 |
//! | `copier` | block copies between the tiers |
//! | `device` | the driver of a real GPU |
//!
//! Everything but the driver runs without a GPU too: `gpu/emulated` runs the same kernels on the host.

mod access;
mod attention;
mod batch;
mod copier;
mod device;
mod driver;
mod kernels;
mod launch;
mod memory;
mod ops;
mod repeats;
mod sample;
mod steps;
mod weights;
mod words;

pub use copier::{CopyDriver, CudaCopier};
pub use device::{Compiled, Context, CudaCopies, CudaDriver, KernelCache, compile, gpu_present};
pub use driver::{
    Arg, CudaError, DevicePtr, Driver, KernelShape, Launch, Product, SLOT_BYTES, SLOTS, Work,
};
pub use kernels::{ATTENTION_PREFILL, ATTENTION_ROWS, KV_WRITE, ROWS, SAMPLE, SPAN, Unit};
pub use memory::{CudaKv, CudaMatrix, CudaRope, CudaTensor, CudaVector};
pub use ops::{CudaBatch, CudaOps, CudaOptions};
