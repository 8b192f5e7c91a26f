//! Errors for a model that could not be loaded.

use crate::weights::WeightError;
use tiercel_gpu::cpu::CpuError;
use tiercel_gpu::cuda::CudaError;

/// A model that cannot be loaded with the given options.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model's files cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The CPU device cannot be opened.
    #[error(transparent)]
    Device(#[from] CpuError),
    /// The GPU cannot be used.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The chosen weight format does not exist on a GPU.
    #[error("a GPU holds weights in bf16, not {0}; set model.weights to auto or bf16")]
    CudaWeights(&'static str),
    /// The activations do not fit on the device, or the device does not support a shape of the model.
    #[error("the model cannot run on this device: {0}")]
    Operations(#[from] tiercel_gpu::OpError),
    /// An option is outside its range.
    #[error("{option} is {value}; it must be between {min} and {max}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        value: u64,
        /// Smallest accepted value.
        min: u64,
        /// Largest accepted value.
        max: u64,
    },
    /// Weights and activations leave no GPU memory for a KV cache.
    #[error(
        "of {free} free bytes of GPU memory, {share:.0} % may be used, and weights and activations take \
         {taken}: none are left for the KV cache; raise device.memory_percent or choose a smaller model"
    )]
    GpuFull {
        /// Free bytes of GPU memory.
        free: u64,
        /// Percent of the free bytes that may be used.
        share: f64,
        /// Bytes taken by all but the KV cache: weights, activations, scratch and spare memory.
        taken: u64,
    },
    /// A KV cache of the configured size does not fit in GPU memory.
    #[error(
        "a KV cache of {kv} bytes does not fit: {free} bytes of the GPU are free, and weights and \
         activations take {taken}; lower kv.cache_mib"
    )]
    GpuKv {
        /// Configured size of the KV cache, bytes.
        kv: u64,
        /// Free bytes of GPU memory.
        free: u64,
        /// Bytes taken by all but the KV cache: weights, activations, scratch and spare memory.
        taken: u64,
    },
    /// The memory of the KV cache is smaller than a single block.
    #[error(
        "{bytes} bytes of KV cache hold no block of {block_bytes} bytes; raise \
         kv.cache_mib or lower kv.block_size"
    )]
    NoBlocks {
        /// Memory of the KV cache, bytes.
        bytes: u64,
        /// Bytes of one KV block.
        block_bytes: u64,
    },
    /// The activations of a step do not fit in memory.
    #[error(
        "a step of {tokens} tokens needs {bytes} bytes of activations but {available} are available; \
         lower scheduler.max_num_batched_tokens"
    )]
    Activations {
        /// Most tokens of a step.
        tokens: usize,
        /// Bytes that the activations need.
        bytes: u64,
        /// Bytes of memory that are available.
        available: u64,
    },
    /// The operating system could not start a thread.
    #[error("could not start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The model was loaded, but its first steps failed.
    #[error("the model's first steps failed: {0}")]
    FirstSteps(String),
}

impl LoadError {
    /// Whether the error concerns the device, so that another device may be able to load the model.
    pub fn is_of_device(&self) -> bool {
        use LoadError::*;
        // A wrong size of the KV cache on a GPU does not count: it is a wrong setting, which running on the CPU would
        // hide.
        matches!(
            self,
            Cuda(_)
                | CudaWeights(_)
                | Operations(_)
                | GpuFull { .. }
                | FirstSteps(_)
                | Weights(WeightError::Pack { .. })
        )
    }
}
