//! An NVIDIA GPU as a device: weights in bf16 or quantized, paged attention by the project's own kernels, and block
//! copies on separate CUDA streams.
//!
//! | module | job |
//! |---|---|
//! | `driver` | the trait that a GPU driver implements, and the errors of a GPU |
//! | `kernels` | the sources below `gpu/kernels`, and the options that each is compiled with |
//! | `shapes` | the attention shapes that the kernels are tested with |
//! | `launch` | requesting launches and uploading the words that launches read |
//! | `ops`, `attention` | the [`Ops`](crate::Ops) implementation: checks shapes, launches kernels |
//! | `linear` | products with weight matrices, bf16 or quantized |
//! | `multiply` | the forms of the kernels that multiply by weight matrices |
//! | `access` | copies tensors from and to the host |
//! | `batch`, `words` | description of a batch that kernels read, and the device memory that holds the description |
//! | `kv_pool` | memory of the KV cache and of the host pool |
//! | `memory` | weights, activations and KV blocks in device memory |
//! | `sample` | drawing tokens from logits |
//! | `graph_cache`, `layouts` | graphs of decode steps with equal launches, and which graph goes if there are too many |
//! | `steps` | steps in flight, and waiting for their ends |
//! | `weights` | uploads weights: converted to bf16, or quantized as they are |
//! | `copier` | block copies between the device pool and the host pool |
//! | `host_pool` | pinned memory of the host pool, piece by piece while the engine runs |
//! | `device` | the driver of a real GPU |
//!
//! Every module except `device` also runs without a GPU: the crate in `tests/emulated` runs the same kernels on the
//! host.

mod access;
mod attention;
mod batch;
mod copier;
mod device;
mod driver;
mod graph_cache;
mod host_pool;
mod kernels;
mod kv_pool;
mod launch;
mod layouts;
mod linear;
mod memory;
mod multiply;
mod ops;
mod sample;
#[expect(unreachable_pub, reason = "the build script of tests/emulated includes the file, too")]
mod shapes;
mod steps;
mod weights;
mod words;

pub use copier::{CopyDriver, CudaCopier};
pub use device::{
    Compiled, Context, CudaCopies, CudaDriver, KernelCache, PinnedHost, compile, gpu_present,
};
pub use driver::{
    Arg, CudaError, DevicePtr, Driver, KernelShape, Launch, Product, SLOT_BYTES, SLOTS, Work,
};
pub use host_pool::{HostPlan, HostPool, PinHost};
pub use kernels::{
    ATTENTION_PREFILL, ATTENTION_ROWS, KV_WRITE, LargestLaunch, PRODUCTS, QUANTIZED, ROWS, SAMPLE,
    SPAN, Unit,
};
pub use memory::{CudaKv, CudaMatrix, CudaRope, CudaTensor, CudaVector};
pub use ops::{CudaBatch, CudaOps, CudaOptions};
pub use shapes::{MODEL_SHAPES, kv_format, tested_shapes};
pub use weights::held_bytes;
