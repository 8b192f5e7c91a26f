//! Checks a GPU's results against the CPU, and measures its speed against its own limits.
//!
//! | module | checks |
//! |---|---|
//! | `rows` | embedding, norms, activation function, products |
//! | `quantized` | products with quantized matrices |
//! | `attention` | attention over shapes, ragged lengths, windows, chunk boundaries, scattered blocks |
//! | `models` | logits of every family with random weights; equal bits under chunks and batches |
//! | `reference` | logits and greedy tokens of checkpoints, against those that transformers computed |
//! | `sampling` | tokens drawn on the device against the host's sampler |
//! | `steps` | two steps in flight against one step at a time |
//! | `swaps` | tokens of an engine that swaps, against those of each request alone |
//! | `copies` | block copies to the host pool and back |
//! | `faults` | too little memory, refused launches, a lost device |
//! | `speed` | speed of decode and prefill |
//! | `beside_copies` | decode as the engine runs it, while blocks are copied |
//! | `quantized_speed` | speed of products with quantized matrices |
//! | `link` | rate of block copies to and from the host pool, against one large copy |
//! | `pace` | decode as the engine runs it, with two steps in flight |
//! | `premium` | service of premium requests on an engine that is full of background work |
//! | `pair`, `report` | equal inputs on GPU and CPU; the table of results |
//!
//! Every check is generic over the driver: `src/bin/gpu-check.rs` runs the checks on a GPU, the tests run them on the
//! emulator, so that the checks themselves are tested without a GPU.

mod attention;
mod beside_copies;
mod copies;
mod faults;
mod link;
mod models;
mod pace;
mod pair;
mod premium;
mod quantized;
mod quantized_speed;
mod reference;
mod report;
mod rows;
mod sampling;
mod speed;
mod steps;
mod swaps;

pub use attention::check_attention;
pub use copies::check_copies;
pub use faults::{check_faults, lose_device};
pub use models::check_models;
pub use premium::{PremiumPlan, measure_premium};
pub use quantized::{QUANTIZED_CASES, QuantizedCase, check_quantized};
pub use reference::check_reference;
pub use report::Report;
pub use rows::check_rows;
pub use sampling::check_sampling;
pub use speed::{SpeedPlan, measure_speed, run_each_step};
pub use steps::check_steps;
pub use swaps::check_swaps;

use tiercel_device::{CopyError, StepError};
use tiercel_gpu::OpError;
use tiercel_gpu::cpu::CpuError;
use tiercel_gpu::cuda::CudaError;
use tiercel_model::arch::ConfigError;
use tiercel_model::load::LoadError;
use tiercel_model::weights::WeightError;

/// Reasons for which a GPU check could not run.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each is what its source is")]
pub enum CheckError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Operation(#[from] OpError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Cpu(#[from] CpuError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Weights(#[from] WeightError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{0}")]
    Reference(String),
}
