//! Why a model could not be made ready.

use crate::weights::WeightError;
use tiercel_gpu::cpu::CpuError;
use tiercel_gpu::cuda::CudaError;

/// A model that cannot be served as asked.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The device.
    #[error(transparent)]
    Device(#[from] CpuError),
    /// The GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Weights in a form that a GPU does not have.
    #[error("a GPU holds weights in bf16, not {0}; choose the weight format auto or bf16")]
    CudaWeights(&'static str),
    /// Activations, or a shape that the device does not take.
    #[error("the model cannot run on this device: {0}")]
    Operations(#[from] tiercel_gpu::OpError),
    /// An option out of its range.
    #[error("{option} is {value}; it must be between {min} and {max}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: u64,
        /// Smallest accepted.
        min: u64,
        /// Largest accepted.
        max: u64,
    },
    /// Weights and activations leave no memory of the GPU for a KV cache.
    #[error(
        "of {free} free bytes of the GPU, {share:.0} % may be used, and weights and activations take \
         {taken}: none are left for the KV cache; raise device.memory_percent or choose a smaller model"
    )]
    GpuFull {
        /// Bytes free.
        free: u64,
        /// Percent that may be used.
        share: f64,
        /// Bytes of weights, activations and scratch.
        taken: u64,
    },
    /// A KV cache of the size asked for does not fit.
    #[error(
        "a KV cache of {kv} bytes does not fit: {free} bytes of the GPU are free, and weights and \
         activations take {taken}; lower kv.cache_mib"
    )]
    GpuKv {
        /// Bytes asked for.
        kv: u64,
        /// Bytes free.
        free: u64,
        /// Bytes of weights, activations, scratch and reserve.
        taken: u64,
    },
    /// The KV cache has no room for a single block.
    #[error(
        "{bytes} bytes of KV cache hold no block of {block_bytes} bytes; give it more memory or make \
         blocks smaller"
    )]
    NoBlocks {
        /// Memory given.
        bytes: u64,
        /// Bytes of one block.
        block_bytes: u64,
    },
    /// Activations would not fit.
    #[error(
        "a step of {tokens} tokens needs {bytes} bytes of activations but {available} are available; \
         lower max_num_batched_tokens"
    )]
    Activations {
        /// Tokens of a step.
        tokens: usize,
        /// Bytes needed.
        bytes: u64,
        /// Bytes available.
        available: u64,
    },
    /// The operating system refused a thread.
    #[error("could not start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The model ran but its first steps failed.
    #[error("the model's first steps failed: {0}")]
    FirstSteps(String),
}

impl LoadError {
    /// Whether it is about the device: another one may do.
    pub fn is_of_device(&self) -> bool {
        use LoadError::*;
        // A setting of the KV cache that is wrong for a GPU is not for the CPU to make up for.
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
