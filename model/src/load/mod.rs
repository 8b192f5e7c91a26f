//! Loads a model from files onto a device that is then ready to serve: [`load`].
//!
//! | file | what it does |
//! |---|---|
//! | `options.rs` | settings and their ranges |
//! | `cuda.rs` | opening a model on a GPU |
//! | `dry_run.rs` | the largest steps, run to see how much of a GPU's memory they leave |
//! | `memory.rs` | sizes of KV memory on the host if no setting states them |
//! | `profile.rs` | the first measurement of the device's speed |
//! | `error.rs` | errors |

mod cuda;
mod dry_run;
mod error;
mod memory;
mod options;
mod profile;

pub use cuda::open_cuda;
pub use error::LoadError;
pub use options::{DeviceChoice, GpuUse, KvCapacity, LoadOptions};

use crate::forward::{Decoder, DecoderLimits};
use crate::runner::{ModelRunner, RunnerLimits};
use crate::weights::{Checkpoint, LoadProgress, ModelFiles, Weights};
use profile::StepLimits;
use tiercel_device::{
    CopyThread, Device, DeviceInfo, HostGrowth, MASK_WAIT_US, QueuedCopier, StepThread,
};
use tiercel_gpu::cpu::{CpuCopier, CpuDevice, CpuOps, CpuOptions};
use tiercel_gpu::cuda::{CudaDriver, KernelCache};
use tiercel_gpu::{Ops, available_bytes};

/// A loaded model that is ready to serve.
pub struct Loaded {
    /// Device that runs the model: its properties, its measured speed, its compute side and its copy side.
    pub device: Device,
    /// Opened files of the model, from which tokenizer and chat template are read.
    pub checkpoint: Checkpoint,
}

/// Parts of an opened device whose step thread and copy thread are not started yet, for benchmarks and tests that call
/// the parts directly. The threads of the device's compute pool run already.
pub struct Parts<O: Ops = CpuOps, C = CpuCopier> {
    /// Properties of the device, such as its number of KV blocks.
    pub info: DeviceInfo,
    /// Op set: the operations of the forward pass, implemented for the device.
    pub ops: O,
    /// Decoder with the model's weights, which runs the forward pass.
    pub decoder: Decoder<O>,
    /// Copier of KV blocks between the device pool and the host pool.
    pub copier: C,
    /// Growth of the host pool after the model was opened; `None` if the pool is complete.
    pub host_growth: Option<Box<dyn HostGrowth>>,
}

impl<O: Ops, C> Parts<O, C> {
    /// Joins the op set and the decoder into a runner of steps, and returns it with the copier of KV blocks. At most
    /// `max_sequences` sequences have sampler state at once. The host pool stays at its present size.
    pub fn into_runner(self, max_sequences: usize) -> (ModelRunner<O>, C) {
        let limits = RunnerLimits {
            block_size: self.info.block_size as usize,
            device_blocks: self.info.device_blocks,
            max_sequences,
        };
        (ModelRunner::new(self.ops, self.decoder, limits), self.copier)
    }
}

/// Opens a model: maps and checks its files, allocates KV memory, packs the weights, measures a few steps, and starts
/// the step thread and the copy thread. Calls `progress` while weights are packed.
///
/// # Errors
/// [`LoadError`]. After an error, no thread keeps running.
pub fn load(
    files: &ModelFiles,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, LoadError> {
    let checkpoint = Checkpoint::open(files)?;
    let device = match &options.device {
        DeviceChoice::Cpu => start(open(&checkpoint, options, progress)?, options)?,
        DeviceChoice::Cuda { ordinal, usage, kernels } => {
            let cache = KernelCache::new(kernels.clone());
            let driver = CudaDriver::open(*ordinal, cache)?;
            start(open_cuda(driver, *usage, &checkpoint, options, progress)?, options)?
        }
    };
    Ok(Loaded { device, checkpoint })
}

/// Measures the speed of an opened device with a few steps and copies, and starts its step thread and its copy thread.
///
/// # Errors
/// [`LoadError`]: the first steps failed, or the operating system could not start a thread.
pub fn start<O: Ops + 'static, C: QueuedCopier>(
    mut parts: Parts<O, C>,
    options: &LoadOptions,
) -> Result<Device, LoadError> {
    let (info, host_growth) = (parts.info.clone(), parts.host_growth.take());
    let usable = host_growth.as_ref().map_or(info.host_blocks, |growth| growth.usable_blocks());
    let (mut runner, mut copier) = parts.into_runner(options.max_sequences);
    let limits = StepLimits {
        known_seqs: options.max_sequences as u32,
        seqs: options.max_num_seqs as u32,
        tokens: options.max_num_batched_tokens as u32,
    };
    let mut profile = profile::measure_steps(&mut runner, &info, limits)
        .map_err(|error| LoadError::FirstSteps(error.to_string()))?;
    profile.link_bytes_per_s = profile::measure_link(&mut copier, &info, usable);
    runner.bound_mask_wait(MASK_WAIT_US);
    tracing::info!(?info, ?profile, "device ready");
    let runner = Box::new(StepThread::start(info.max_steps_in_flight as usize, runner)?);
    let copier = Box::new(CopyThread::start(copier)?);
    Ok(Device { info, profile, runner, copier, host_growth })
}

/// Opens a model on the CPU as [`load`] does, but without the speed measurement and without starting the step thread
/// and the copy thread. The threads of the compute pool are started.
///
/// # Errors
/// [`LoadError`].
pub fn open(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Parts, LoadError> {
    options.check()?;
    let config = checkpoint.config();
    let asked_len = options.model_len(config.max_positions)?;
    let cpu = cpu_options(checkpoint, options, asked_len)?;
    let block_bytes = cpu.block_bytes();
    let pool_tokens = u64::from(cpu.device_blocks) * options.block_size as u64;
    let max_len = (asked_len as u64).min(pool_tokens) as usize;
    if max_len < asked_len {
        tracing::warn!(asked_len, max_len, "the KV cache limits sequences to max_len tokens");
    }
    let limits = decoder_limits(options, max_len);
    let activations = Decoder::<CpuOps>::activation_bytes(config, &limits);
    let (mut ops, copier) = CpuDevice::open(cpu)?;
    let blocks = u64::from(cpu.device_blocks) + u64::from(cpu.host_blocks);
    check_activations(activations, blocks.saturating_mul(block_bytes), &limits)?;
    ops.promise(activations);
    if ops.attention_misses_vectors() {
        let (head_dim, block_size) = (cpu.head_dim, cpu.block_size);
        tracing::warn!(
            head_dim,
            block_size,
            "attention runs on portable kernels, several times slower: the vector kernels need a head \
             width that is a multiple of 8 and blocks of 8, 16, 32, 64, 128 or 256 tokens"
        );
    }
    let weights = Weights::load(&mut ops, checkpoint, options.weights, progress)?;
    let decoder = Decoder::new(&mut ops, config.clone(), weights, limits)?;
    let info = DeviceInfo {
        name: format!("{}{} threads, {}", DeviceInfo::CPU, cpu.threads, ops.instruction_set()),
        block_size: options.block_size as u32,
        device_blocks: cpu.device_blocks,
        host_blocks: cpu.host_blocks,
        block_bytes,
        max_steps_in_flight: CpuOps::STEPS as u32,
        max_model_len: max_len as u32,
        vocab_size: config.vocab_size as u32,
    };
    Ok(Parts { info, ops, decoder, copier, host_growth: None })
}

fn decoder_limits(options: &LoadOptions, max_positions: usize) -> DecoderLimits {
    DecoderLimits {
        max_batched_tokens: options.max_num_batched_tokens,
        max_sampled_rows: options.max_num_seqs.min(options.max_num_batched_tokens),
        max_positions,
    }
}

/// Returns the options of the CPU device, with the sizes of the device pool and the host pool.
fn cpu_options(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    max_len: usize,
) -> Result<CpuOptions, LoadError> {
    let config = checkpoint.config();
    let mut cpu = CpuOptions {
        threads: options.compute_threads(),
        kv_type: options.kv_type,
        block_size: options.block_size,
        device_blocks: 0,
        host_blocks: 0,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    };
    let block_bytes = cpu.block_bytes();
    let host_bytes = options.host_bytes.unwrap_or(0);
    let blocks = |bytes: u64| u32::try_from(bytes / block_bytes).unwrap_or(u32::MAX);
    let auto = || {
        let wanted = memory::tokens_wanted(config, max_len, options.max_num_seqs);
        let wanted = wanted.div_ceil(options.block_size as u64).saturating_mul(block_bytes);
        let limits = decoder_limits(options, max_len);
        let activations = Decoder::<CpuOps>::activation_bytes(config, &limits);
        let taken = [checkpoint.packed_bytes(options.weights)?, activations, host_bytes];
        Ok::<_, LoadError>(memory::kv_bytes(taken.into_iter().fold(0, u64::saturating_add), wanted))
    };
    let bytes = match options.kv_capacity {
        KvCapacity::Auto => auto()?,
        KvCapacity::Bytes(bytes) => bytes,
        KvCapacity::Blocks(count) => block_bytes.saturating_mul(u64::from(count)),
    };
    cpu.device_blocks = blocks(bytes);
    cpu.host_blocks = blocks(host_bytes);
    if cpu.device_blocks == 0 {
        return Err(LoadError::NoBlocks { bytes, block_bytes });
    }
    Ok(cpu)
}

/// Checks that `bytes` bytes of activations fit in free memory beside `promised` bytes of KV blocks. The KV memory has
/// not been touched yet, so the operating system still counts it as free.
fn check_activations(bytes: u64, promised: u64, limits: &DecoderLimits) -> Result<(), LoadError> {
    match available_bytes().map(|available| available.saturating_sub(promised)) {
        Some(available) if bytes > available => {
            let tokens = limits.max_batched_tokens;
            Err(LoadError::Activations { tokens, bytes, available })
        }
        _ => Ok(()),
    }
}
