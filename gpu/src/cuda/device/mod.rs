//! The driver of a real GPU, on the types of cudarc's plain bindings. Streams, memory and events are explicit, because
//! cudarc's own bookkeeping would make compute and copies wait for each other wherever they use the same memory.
//!
//! | module | job |
//! |---|---|
//! | `calls` | every call of NVIDIA's libraries, with its status as a number |
//! | `context` | finds the libraries and the GPU, before any call that would panic without them |
//! | `compile` | compiles kernels to machine code, with a cache on disk |
//! | `products` | matrix products by cuBLASLt |
//! | `staging` | pinned memory that uploads and downloads go through |
//! | `moves` | small ranges by a kernel and large ones by copy engines, to and from pinned memory |
//! | `graphs` | captured launches that are run again by one call |
//! | `results` | tokens that steps send back to the host |
//! | `step_events` | beginnings and ends of the steps in flight |
//! | `timing` | time between two events |
//! | `driver` | compute side: launches, memory, products |
//! | `copies` | copy side: block copies between the device pool and the host pool |
//! | `pinned_host` | pinned memory of the host pool, in pieces |

mod calls;
mod compile;
mod context;
mod copies;
mod driver;
mod graphs;
mod moves;
mod pinned_host;
mod products;
mod results;
mod staging;
mod step_events;
mod timing;

pub use compile::{Compiled, KernelCache, compile};
pub use context::{Context, gpu_present};
pub use copies::CudaCopies;
pub use driver::CudaDriver;
pub use pinned_host::PinnedHost;
