//! Opens a model on a GPU. Weights, activations and the KV cache are in GPU memory. If no size is configured, the KV
//! cache takes what the others leave of the usable memory.

use super::options::{GpuUse, KvCapacity, LoadOptions};
use super::{LoadError, Parts, decoder_limits};
use crate::forward::Decoder;
use crate::weights::{Checkpoint, LoadProgress, Weights};
use tiercel_device::{BlockId, DeviceInfo};
use tiercel_gpu::cuda::{CudaCopier, CudaKv, CudaOps, CudaOptions, DevicePtr, Driver};
use tiercel_gpu::{Ops, WeightFormat};

/// GPU memory that is left free for later allocations, bytes: machine code of libraries, and inputs of the kernels of
/// long steps.
const RESERVE_BYTES: u64 = 512 << 20;

/// GPU memory before the KV cache is allocated: free bytes, bytes that are needed beside it (weights, activations,
/// scratch, rotary table, reserve), and the share of the free bytes that may be used.
struct Budget {
    free: u64,
    taken: u64,
    share: f64,
}

/// Opens a model on a GPU as [`load`](super::load) does, but without the speed measurement and without starting
/// threads.
///
/// # Errors
/// [`LoadError`].
pub fn open_cuda<D: Driver>(
    mut driver: D,
    usage: GpuUse,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Parts<CudaOps<D>, CudaCopier<D::Copies>>, LoadError> {
    options.check()?;
    check_format(options.weights)?;
    let config = checkpoint.config();
    let asked_len = options.model_len(config.max_positions)?;
    let mut kv = CudaKv {
        at: DevicePtr::default(),
        blocks: 0,
        block_size: options.block_size,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    };
    let block_bytes = kv.block_bytes() as u64;
    let GpuUse { memory_share, exact, graphs } = usage;
    let budget = budget(&mut driver, memory_share, checkpoint, options, asked_len)?;
    // With CUDA graphs, allocate one KV block more: padding rows of a step write their KV into it.
    let filler_bytes = if graphs { block_bytes } else { 0 };
    let bytes = match options.kv_capacity {
        KvCapacity::Auto => budget.left()?.saturating_sub(filler_bytes),
        KvCapacity::Bytes(bytes) => bytes,
        KvCapacity::Blocks(blocks) => u64::from(blocks).saturating_mul(block_bytes),
    };
    let blocks = u32::try_from(bytes / block_bytes).unwrap_or(u32::MAX - 1);
    if blocks == 0 {
        return Err(LoadError::NoBlocks { bytes, block_bytes });
    }
    budget.check(bytes.saturating_add(filler_bytes))?;
    kv.blocks = blocks + u32::from(graphs);
    let scratch = graphs.then_some(BlockId(blocks));
    kv.at = driver.allocate(kv.blocks as usize * kv.block_bytes())?;
    // Clear the KV blocks, so that no earlier content of the memory is ever read. A free block may hold any numbers,
    // but no NaN.
    driver.clear(kv.at, kv.blocks as usize * kv.block_bytes())?;
    let host_blocks = u32::try_from(options.host_bytes / block_bytes).unwrap_or(u32::MAX);
    let copies = driver.copies(host_blocks as usize * kv.block_bytes())?;
    let name = driver.name();
    let threads = options.compute_threads();
    let queries = config.heads / config.kv_heads;
    let mut ops = CudaOps::new(driver, kv, queries, CudaOptions { exact, threads, scratch })?;
    let pool_tokens = u64::from(blocks) * options.block_size as u64;
    let max_len = (asked_len as u64).min(pool_tokens).min(ops.longest() as u64) as usize;
    if max_len < asked_len {
        tracing::warn!(asked_len, max_len, "the KV cache limits sequences to max_len tokens");
    }
    let limits = decoder_limits(options, max_len);
    let weights = Weights::load(&mut ops, checkpoint, options.weights, progress)?;
    let decoder = Decoder::new(&mut ops, config.clone(), weights, limits)?;
    let info = DeviceInfo {
        name,
        block_size: options.block_size as u32,
        device_blocks: blocks,
        host_blocks,
        block_bytes,
        max_steps_in_flight: (CudaOps::<D>::STEPS as u32).min(options.steps_in_flight),
        max_model_len: max_len as u32,
        vocab_size: config.vocab_size as u32,
    };
    Ok(Parts { info, ops, decoder, copier: CudaCopier::new(copies, kv, host_blocks) })
}

fn check_format(format: WeightFormat) -> Result<(), LoadError> {
    match format {
        WeightFormat::Auto | WeightFormat::Bf16 => Ok(()),
        WeightFormat::F32 => Err(LoadError::CudaWeights("f32")),
        WeightFormat::Q8_0 => Err(LoadError::CudaWeights("q8_0")),
        WeightFormat::Native => Err(LoadError::CudaWeights("native")),
    }
}

fn budget<D: Driver>(
    driver: &mut D,
    share: f64,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    max_len: usize,
) -> Result<Budget, LoadError> {
    let config = checkpoint.config();
    // Count the rotary table with one row per position of the longest sequence that the settings allow; a small KV
    // cache may shorten it later, but the size of the cache is not known yet.
    let rope = (max_len * config.head_dim * 4) as u64;
    let taken = [
        checkpoint.packed_bytes(WeightFormat::Bf16)?,
        Decoder::<CudaOps<D>>::activation_bytes(config, &decoder_limits(options, max_len)),
        CudaOps::<D>::scratch_bytes(config.heads, config.head_dim),
        rope,
        RESERVE_BYTES,
    ];
    let taken = taken.into_iter().fold(0, u64::saturating_add);
    Ok(Budget { free: driver.free_bytes()?, taken, share })
}

impl Budget {
    /// Checks that a KV cache of `kv_bytes` bytes fits in the free GPU memory beside the `taken` bytes of weights,
    /// activations and all else.
    fn check(&self, kv_bytes: u64) -> Result<(), LoadError> {
        let Budget { free, taken, .. } = *self;
        match kv_bytes.saturating_add(taken) > free {
            true => Err(LoadError::GpuKv { kv: kv_bytes, free, taken }),
            false => Ok(()),
        }
    }

    /// Returns the bytes of GPU memory that are left for the KV cache: the usable share of the free memory, less the
    /// `taken` bytes of weights, activations and all else. An error if none are left.
    fn left(&self) -> Result<u64, LoadError> {
        let Budget { free, taken, share } = *self;
        let usable = (free as f64 * share) as u64;
        match usable.checked_sub(taken).filter(|left| *left > 0) {
            Some(left) => Ok(left),
            None => Err(LoadError::GpuFull { free, share: share * 100.0, taken }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::start;
    use crate::weights::ModelFiles;
    use std::path::Path;
    use tiercel_emulated::EmulatedDriver;

    fn checkpoint() -> Checkpoint {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/tiny/llama3");
        Checkpoint::open(&ModelFiles::HfDir(tiny)).unwrap()
    }

    fn opened(
        bytes: usize,
        usage: GpuUse,
        options: &LoadOptions,
    ) -> Result<
        Parts<CudaOps<EmulatedDriver>, CudaCopier<tiercel_emulated::EmulatedCopies>>,
        LoadError,
    > {
        let driver = EmulatedDriver::new(bytes);
        open_cuda(driver, usage, &checkpoint(), options, &mut |_| {})
    }

    #[test]
    fn a_fresh_gpu_measures_its_first_steps_on_blocks_that_nobody_wrote() {
        let options = LoadOptions { host_bytes: 1 << 20, ..LoadOptions::default() };
        let parts = opened(600 << 20, GpuUse::default(), &options).unwrap();
        let left = (600 << 20) * 9 / 10 - RESERVE_BYTES;
        let kv_bytes = u64::from(parts.info.device_blocks) * parts.info.block_bytes;
        assert!(kv_bytes < left && kv_bytes > left / 4, "{kv_bytes} of {left}");
        let device = start(parts, &options).expect("numbers, whatever the memory held before");
        let profile = device.profile;
        let step_us = profile.step_base_us + profile.decode_token_us + profile.prefill_token_us;
        assert!(step_us > 0.0 && profile.link_bytes_per_s > 0.0, "{profile:?}");
    }

    #[test]
    fn all_of_the_memory_may_be_used() {
        for graphs in [false, true] {
            let all = GpuUse { memory_share: 1.0, graphs, ..GpuUse::default() };
            let parts = opened(600 << 20, all, &LoadOptions::default()).unwrap();
            assert!(parts.info.device_blocks > 100);
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_the_setting_that_helps() {
        let asked = |bytes, options: LoadOptions| {
            let error = opened(bytes, GpuUse::default(), &options).err().unwrap();
            assert_eq!(error.is_of_device(), options.kv_capacity == KvCapacity::Auto);
            error.to_string()
        };
        let auto = LoadOptions::default();
        let error = asked(560 << 20, auto.clone());
        assert!(error.contains("device.memory_percent"), "{error}");
        let large = LoadOptions { kv_capacity: KvCapacity::Bytes(500 << 20), ..auto.clone() };
        let error = asked(900 << 20, large);
        assert!(error.contains("lower kv.cache_mib"), "{error}");
        let quantized = LoadOptions { weights: WeightFormat::Q8_0, ..auto };
        let error = asked(900 << 20, quantized);
        assert!(error.contains("bf16, not q8_0"), "{error}");
    }
}
