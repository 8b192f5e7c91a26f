//! Settings of the CPU device, and the errors of opening it.

use super::kv::{CpuCopier, KvLayout, KvMemory};
use super::ops::CpuOps;
use super::pool::Pool;
use crate::KvType;
use std::sync::Arc;

/// Settings of a CPU device. The KV fields must agree with the model that will run on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Number of compute threads, the calling thread included; at least 1.
    pub threads: usize,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Tokens per KV block; at least 1. The vector kernels need a power of two from 8 to 256.
    pub block_size: usize,
    /// Number of KV blocks in the device pool.
    pub device_blocks: u32,
    /// Number of KV blocks in the host pool; 0 for none.
    pub host_blocks: u32,
    /// Number of layers of the model.
    pub layers: usize,
    /// Number of key/value heads of a layer.
    pub kv_heads: usize,
    /// Width of a head: number of components of a key or a value. The vector kernels need a multiple of 8.
    pub head_dim: usize,
}

impl CpuOptions {
    /// Returns the size of one KV block, bytes: keys and values of all layers, rounded up to a cache line.
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

/// Error of opening a CPU device.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// An option of the CPU device that must be positive is 0; the text names it.
    #[error("a CPU device cannot have {0}")]
    Options(String),
    /// Too little memory for the KV blocks of a pool.
    #[error(
        "{blocks} KV blocks of {block_bytes} bytes ({tier} pool) do not fit in memory ({why}); \
         choose fewer blocks (kv.cache_mib, kv.host_mib), or a smaller kv.type"
    )]
    Memory {
        /// Pool whose KV blocks do not fit in memory: `"device"` or `"host"`.
        tier: &'static str,
        /// Number of KV blocks that the settings ask for.
        blocks: u32,
        /// Size of one KV block, bytes.
        block_bytes: usize,
        /// Reason for which the KV blocks could not be allocated, as text for the error message.
        why: String,
    },
    /// The operating system could not start a compute thread.
    #[error("could not start compute thread {index} of {threads}: {source}; lower device.threads")]
    Thread {
        /// Number of the compute thread that could not be started.
        index: usize,
        /// Number of compute threads that the settings ask for.
        threads: usize,
        /// Error of the operating system when the thread was started.
        source: std::io::Error,
    },
}

/// Type whose `open` function opens a CPU device.
#[derive(Debug)]
pub struct CpuDevice;

impl CpuDevice {
    /// Starts the compute pool and allocates the device pool and the host pool of KV blocks. Returns the op set, which
    /// runs on the thread that computes steps, and the copier of KV blocks, which runs on a copy thread. They share the
    /// KV memory.
    ///
    /// # Errors
    /// [`CpuError`] for a setting of 0, too little memory, or a thread that cannot be started.
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
