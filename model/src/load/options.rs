//! Options for loading a model: device, formats and sizes. The program that loads the model sets them from its
//! settings.

use super::LoadError;
use std::num::NonZero;
use std::path::PathBuf;
use tiercel_gpu::{KvType, WeightFormat};

/// Device that runs the model: the CPU or a GPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum DeviceChoice {
    /// The CPU runs the model.
    #[default]
    Cpu,
    /// An NVIDIA GPU runs the model.
    Cuda {
        /// CUDA device number of the GPU.
        ordinal: u32,
        /// Options for the use of the GPU: share of its memory, exactness, CUDA graphs.
        usage: GpuUse,
        /// Cache directory for compiled GPU kernels; with `None` they are not stored.
        kernels: Option<PathBuf>,
    },
}

/// Options for the use of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuUse {
    /// Share of the GPU's free memory, from 0 to 1, that the model and a KV cache of automatic size may take together.
    pub memory_share: f64,
    /// Whether the results of a row are bitwise independent of the other rows of its step, as if it were alone.
    pub exact: bool,
    /// Whether steps that only decode are captured and replayed as CUDA graphs, if the GPU also draws all of their
    /// tokens.
    pub graphs: bool,
}

impl Default for GpuUse {
    fn default() -> Self {
        GpuUse { memory_share: 0.9, exact: false, graphs: true }
    }
}

/// Options for loading a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// Device that runs the model.
    pub device: DeviceChoice,
    /// Format of the weights in memory.
    pub weights: WeightFormat,
    /// Element type of the KV cache. A GPU has 8 bits or bf16; the other types mean bf16 there.
    pub kv_type: KvType,
    /// Number of compute threads; 0 starts one per core that the process may use.
    pub threads: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Size of the device pool of KV blocks.
    pub kv_capacity: KvCapacity,
    /// Memory of the host pool for swapped KV blocks, bytes; 0 for no host pool. `None` chooses it: on a GPU half of
    /// the free host memory, at most twice the KV cache on the device; on the CPU no host pool.
    pub host_bytes: Option<u64>,
    /// Maximum number of sequences for which one step samples a token.
    pub max_num_seqs: usize,
    /// Maximum number of tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Maximum length of a sequence, tokens; 0 takes the maximum context length of the model.
    pub max_model_len: usize,
    /// Maximum number of sequences, running or preempted, that have sampler state at once.
    pub max_sequences: usize,
    /// Maximum number of steps in flight, if the device allows several.
    pub steps_in_flight: u32,
}

/// Size of the device pool of KV blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvCapacity {
    /// Automatic size of the device pool. On a GPU: all usable memory that weights and activations leave. On the CPU: a
    /// third of the memory that weights, activations and the host pool leave, at most as much as a full batch can use.
    Auto,
    /// Size of the device pool in bytes, rounded down to whole KV blocks.
    Bytes(u64),
    /// Size of the device pool in KV blocks.
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
            host_bytes: Some(0),
            max_num_seqs: 64,
            max_num_batched_tokens: 256,
            max_model_len: 0,
            max_sequences: 4096,
            steps_in_flight: 2,
        }
    }
}

impl LoadOptions {
    /// Checks the ranges of the load options that do not depend on the model.
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

    /// Returns the maximum length of a sequence, tokens: the option if it is set, otherwise the `model_len` positions
    /// that the model was made for. A larger option is an error.
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
