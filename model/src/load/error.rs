//! Errors for a model that could not be loaded.

use crate::weights::WeightError;
use tiercel_gpu::cpu::CpuError;
use tiercel_gpu::cuda::CudaError;

/// Reason why a model cannot be loaded with the given options.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model's files cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The CPU device cannot be opened.
    #[error(transparent)]
    Device(#[from] CpuError),
    /// The GPU cannot be opened or used.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The chosen weight format does not exist on a GPU.
    #[error(
        "a GPU supports the weight formats auto and bf16, not {0}; set model.weights to auto or bf16"
    )]
    CudaWeights(&'static str),
    /// The activations do not fit on the device, or the device does not support a shape of the model.
    #[error("the model cannot run on this device: {0}")]
    Operations(#[from] tiercel_gpu::OpError),
    /// An option for loading a model is outside its range.
    #[error("{option} is {value}; it must be between {min} and {max}")]
    Option {
        /// Name of the option that is out of range.
        option: &'static str,
        /// Value of the option that is out of range.
        value: u64,
        /// Smallest accepted value of the option.
        min: u64,
        /// Largest accepted value of the option.
        max: u64,
    },
    /// A step of the dry run failed. The dry run finds the size of the KV cache.
    #[error(
        "the largest step ({rows} tokens) failed in a dry run: {error}; lower \
         scheduler.max_num_batched_tokens or scheduler.max_num_seqs"
    )]
    DryRun {
        /// Number of rows (tokens) of the step.
        rows: usize,
        /// Error of the step.
        error: tiercel_device::StepError,
    },
    /// Weights and activations leave no GPU memory for a KV cache.
    #[error(
        "of {free} free bytes of GPU memory, {share:.0} % may be used, and weights and activations take \
         {taken}: none are left for the KV cache; raise device.memory_percent or choose a smaller model"
    )]
    GpuFull {
        /// Free bytes of GPU memory.
        free: u64,
        /// Percentage of the free bytes of GPU memory that may be used.
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
        /// Configured size of the KV cache, bytes, with the KV block for padding rows if CUDA graphs are on.
        kv: u64,
        /// Free bytes of GPU memory.
        free: u64,
        /// Bytes taken by all but the KV cache: weights, activations, scratch and spare memory.
        taken: u64,
    },
    /// The memory for the KV cache is smaller than a single KV block.
    #[error(
        "{bytes} bytes of KV cache hold no block of {block_bytes} bytes; raise \
         kv.cache_mib or lower kv.block_size"
    )]
    NoBlocks {
        /// Memory for the KV cache, bytes.
        bytes: u64,
        /// Bytes of one KV block.
        block_bytes: u64,
    },
    /// The activations of the largest step do not fit in memory.
    #[error(
        "a step of {tokens} tokens needs {bytes} bytes of activations but {available} are available; \
         lower scheduler.max_num_batched_tokens"
    )]
    Activations {
        /// Maximum number of tokens in a step, for which the activations are allocated.
        tokens: usize,
        /// Bytes that the activations need.
        bytes: u64,
        /// Bytes of memory that are still free for the activations after the KV blocks.
        available: u64,
    },
    /// The operating system could not start a thread.
    #[error("the operating system could not start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The model was loaded, but its first steps failed.
    #[error("the model's first steps failed: {0}")]
    FirstSteps(String),
}

impl LoadError {
    /// Whether the loading error concerns the chosen device, so that another device may be able to load the model.
    pub fn is_of_device(&self) -> bool {
        use LoadError::*;
        // A KV cache that does not fit on the GPU is no error of the device but a wrong setting, which falling back to
        // the CPU would hide.
        matches!(
            self,
            Cuda(_)
                | CudaWeights(_)
                | Operations(_)
                | GpuFull { .. }
                | DryRun { .. }
                | FirstSteps(_)
                | Weights(WeightError::Pack { .. })
        )
    }
}
