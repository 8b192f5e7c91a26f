//! What a GPU computes, against the CPU, and how fast, against its own ceilings.
//!
//! | module | checks |
//! |---|---|
//! | `rows` | embedding, norms, activation function, products |
//! | `attention` | attention over shapes, ragged lengths, windows, chunk boundaries, scattered blocks |
//! | `models` | logits of every family on random weights; identity under chunks and batches |
//! | `reference` | logits and greedy tokens of checkpoints that transformers has run |
//! | `sampling` | tokens drawn on the device against the host's sampler |
//! | `steps` | two steps under way against one at a time |
//! | `copies` | blocks through the host tier and back |
//! | `speed` | decode and prefill, and decode while blocks are copied |
//! | `link` | blocks through the host tier, against one large copy |
//! | `pace` | decode as the engine runs it, two steps under way |
//! | `premium` | the engine full of background work, and what premium arrivals are given |
//! | `pair`, `report` | the same inputs on both devices; what was found |
//!
//! Everything is generic over the driver: `src/bin/gpu-check.rs` runs it on a GPU, the tests on the emulator, so that the
//! checks themselves are known to work before there is a GPU.

mod attention;
mod copies;
mod link;
mod models;
mod pace;
mod pair;
mod premium;
mod reference;
mod report;
mod rows;
mod sampling;
mod speed;
mod steps;

pub use attention::check_attention;
pub use copies::check_copies;
pub use models::check_models;
pub use premium::{PremiumPlan, measure_premium};
pub use reference::check_reference;
pub use report::Report;
pub use rows::check_rows;
pub use sampling::check_sampling;
pub use speed::{SpeedPlan, measure_speed};
pub use steps::check_steps;

use tiercel_device::{CopyError, StepError};
use tiercel_gpu::OpError;
use tiercel_gpu::cpu::CpuError;
use tiercel_gpu::cuda::CudaError;
use tiercel_model::arch::ConfigError;
use tiercel_model::load::LoadError;
use tiercel_model::weights::WeightError;

/// Why a check could not be carried out.
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
