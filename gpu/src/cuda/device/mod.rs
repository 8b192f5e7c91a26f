//! The driver of a real GPU, on cudarc's plain bindings: streams, memory and events are explicit, because cudarc's own
//! bookkeeping would make compute and copies wait for each other wherever they use the same memory.
//!
//! | module | job |
//! |---|---|
//! | `context` | finds the libraries and the GPU, before anything that would panic without them |
//! | `compile` | kernels to machine code, kept on disk |
//! | `products` | matrix products by cuBLASLt |
//! | `staging` | pinned memory that uploads go through |
//! | `graphs` | launches that are done again by one call |
//! | `results` | what steps send back |
//! | `driver` | the compute side |
//! | `copies` | the copy side |

mod compile;
mod context;
mod copies;
mod driver;
mod graphs;
mod products;
mod results;
mod staging;

pub use compile::{Compiled, KernelCache, compile};
pub use context::{Context, gpu_present};
pub use copies::CudaCopies;
pub use driver::CudaDriver;
