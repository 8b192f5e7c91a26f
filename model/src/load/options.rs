//! Settings of a model's device, which the composition root chooses.

use super::LoadError;
use std::num::NonZero;
use std::path::PathBuf;
use tiercel_gpu::{KvType, WeightFormat};

/// Device that computes.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda {
        /// Number of the GPU.
        ordinal: u32,
        /// How the GPU is used.
        usage: GpuUse,
        /// Directory in which compiled kernels are stored; `None` does not store them.
        kernels: Option<PathBuf>,
    },
}

/// Settings for the use of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuUse {
    /// Share of the GPU's free memory that may be taken, from 0 to 1.
    pub memory_share: f64,
    /// Whether every row is computed as if it were the only row of its step.
    pub exact: bool,
    /// Whether decode steps become CUDA graphs.
    pub graphs: bool,
}

impl Default for GpuUse {
    fn default() -> Self {
        GpuUse { memory_share: 0.9, exact: false, graphs: true }
    }
}

/// Settings for loading a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// Device that computes.
    pub device: DeviceChoice,
    /// Format of the weights in memory.
    pub weights: WeightFormat,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Number of compute threads; 0 starts one per core.
    pub threads: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Memory for KV blocks on the device (device pool).
    pub kv_capacity: KvCapacity,
    /// Memory of the host pool, bytes; 0 for no host pool.
    pub host_bytes: u64,
    /// Most sequences that sample in one step.
    pub max_num_seqs: usize,
    /// Most tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Longest sequence, tokens; 0 takes the model's own limit.
    pub max_model_len: usize,
    /// Most sequences that have sampler state at once, running or preempted.
    pub max_sequences: usize,
    /// Most steps in flight, if the device allows several.
    pub steps_in_flight: u32,
}

/// Size of the device pool of KV blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvCapacity {
    /// Automatic size. On a GPU: all usable memory that weights and activations leave. On the CPU: a third of the
    /// memory that weights and activations leave, at most as much as a full batch can use.
    Auto,
    /// Size in bytes, rounded down to whole blocks.
    Bytes(u64),
    /// Number of blocks.
    Blocks(u32),
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            device: DeviceChoice::Cpu,
            weights: WeightFormat::Auto,
            kv_type: KvType::F16,
            threads: 0,
            block_size: 16,
            kv_capacity: KvCapacity::Auto,
            host_bytes: 0,
            max_num_seqs: 64,
            max_num_batched_tokens: 256,
            max_model_len: 0,
            max_sequences: 4096,
            steps_in_flight: 2,
        }
    }
}

impl LoadOptions {
    /// Checks the options whose ranges do not depend on the model.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        for (option, value, min, max) in [
            ("threads", self.threads, 0, 1024),
            ("block_size", self.block_size, 1, 1024),
            ("max_num_seqs", self.max_num_seqs, 1, 65_536),
            ("max_num_batched_tokens", self.max_num_batched_tokens, 1, 1 << 20),
            ("max_sequences", self.max_sequences, 1, 1 << 24),
        ] {
            in_range(option, value as u64, min, max)?;
        }
        Ok(())
    }

    /// Returns the number of compute threads to start.
    pub(super) fn compute_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        }
    }

    /// Returns the longest sequence, tokens, for a model made for `model_len` positions.
    pub(super) fn model_len(&self, model_len: usize) -> Result<usize, LoadError> {
        if self.max_model_len == 0 {
            return Ok(model_len);
        }
        in_range("max_model_len", self.max_model_len as u64, 1, model_len as u64)?;
        Ok(self.max_model_len)
    }
}

fn in_range(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), LoadError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(LoadError::Option { option, value, min, max })
}
