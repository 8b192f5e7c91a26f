//! Settings of the CPU device and what can go wrong opening it.

use super::kv::{CpuCopier, KvLayout, KvMemory};
use super::ops::CpuOps;
use super::pool::Pool;
use crate::KvType;
use std::sync::Arc;

/// Settings of a CPU device. The KV fields must agree with the model that will run on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Compute threads, the calling one included; at least 1.
    pub threads: usize,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Tokens per KV block; at least 1. The vector kernels want a power of two from 8 to 256.
    pub block_size: usize,
    /// Blocks of the device tier.
    pub device_blocks: u32,
    /// Blocks of the host tier; 0 for none.
    pub host_blocks: u32,
    /// Layers of the model.
    pub layers: usize,
    /// Key/value heads of a layer.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl CpuOptions {
    /// Bytes of one block: all layers, K and V, rounded up to a cache line.
    pub fn block_bytes(&self) -> u64 {
        self.layout().block_bytes() as u64
    }

    fn layout(&self) -> KvLayout {
        KvLayout {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            block_size: self.block_size,
            kv_type: self.kv_type,
        }
    }
}

/// Why a CPU device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// A setting that must be positive is 0, or a product of settings does not fit in memory at all.
    #[error("a CPU device cannot have {0}")]
    Options(String),
    /// Not enough memory for the KV blocks.
    #[error(
        "{blocks} KV blocks of {block_bytes} bytes ({tier} tier) do not fit in memory ({why}); \
         choose fewer blocks, or a smaller KV type"
    )]
    Memory {
        /// `"device"` or `"host"`.
        tier: &'static str,
        /// Blocks asked for.
        blocks: u32,
        /// Bytes of each.
        block_bytes: usize,
        /// What the system said.
        why: String,
    },
    /// The operating system refused a compute thread.
    #[error(
        "could not start compute thread {index} of {threads}: {source}; lower the thread count"
    )]
    Thread {
        /// Which one.
        index: usize,
        /// How many were asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Opens CPU devices.
#[derive(Debug)]
pub struct CpuDevice;

impl CpuDevice {
    /// Starts the compute pool and allocates both KV tiers. The two halves share the KV memory: the ops
    /// run on the compute thread, the copier on a copy thread.
    ///
    /// # Errors
    /// [`CpuError`] for settings of 0, too little memory, or no threads.
    pub fn open(options: CpuOptions) -> Result<(CpuOps, CpuCopier), CpuError> {
        let positive = [
            ("0 threads", options.threads),
            ("0 tokens per block", options.block_size),
            ("0 layers", options.layers),
            ("0 key/value heads", options.kv_heads),
            ("heads of width 0", options.head_dim),
        ];
        if let Some((what, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(CpuError::Options((*what).to_owned()));
        }
        let memory =
            KvMemory::allocate(options.layout(), options.device_blocks, options.host_blocks)?;
        let memory = Arc::new(memory);
        let pool = Pool::start(options.threads)?;
        Ok((CpuOps::new(pool, memory.clone()), CpuCopier::new(memory)))
    }
}
