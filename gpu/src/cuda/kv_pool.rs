//! Memory of the KV cache and of the host pool of a GPU's op set.

use super::driver::{CudaError, Driver};
use super::graph_cache::GraphCache;
use super::host_pool::HostPlan;
use super::memory::CudaKv;
use super::ops::CudaOps;
use tiercel_device::BlockId;

impl<D: Driver> CudaOps<D> {
    /// Returns how much device memory can still be allocated, bytes.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    pub fn free_bytes(&mut self) -> Result<u64, CudaError> {
        self.driver.free_bytes()
    }

    /// Allocates a KV cache of `blocks` blocks, all of them zero. The following steps use the new KV cache instead of
    /// the present one; the memory of the present one stays allocated. With `graphs`, the function allocates one block
    /// more, for the padding rows of steps that are replayed as CUDA graphs. No step may be in flight.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    pub fn allocate_kv(&mut self, blocks: u32, graphs: bool) -> Result<CudaKv, CudaError> {
        let mut kv = CudaKv { blocks: blocks + u32::from(graphs), ..self.kv };
        let bytes = kv.blocks as usize * kv.block_bytes();
        kv.at = self.driver.allocate(bytes)?;
        // Clear the KV blocks, so that no earlier content of the memory is ever read. A free block may hold any
        // numbers, but no NaN.
        self.driver.clear(kv.at, bytes)?;
        self.kv = kv;
        self.graphs = GraphCache::new(graphs.then_some(BlockId(blocks)));
        Ok(kv)
    }

    /// Makes the copy side of the GPU and the memory of a host pool. The copy side must be dropped before the op set.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    pub fn host_pool(&mut self, plan: HostPlan) -> Result<(D::Copies, D::Host), CudaError> {
        self.driver.host_pool(plan)
    }
}
