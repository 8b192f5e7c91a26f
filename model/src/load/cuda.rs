//! Opens a model on a GPU. Weights, activations and the KV cache are in GPU memory. If no size is configured, the KV
//! cache takes what the largest step leaves of the usable memory, and the host pool a share of the free host memory.

use super::options::{GpuUse, KvCapacity, LoadOptions};
use super::{LoadError, Parts, decoder_limits, dry_run, memory};
use crate::arch::ModelConfig;
use crate::forward::Decoder;
use crate::weights::{Checkpoint, LoadProgress, Weights};
use tiercel_device::{DeviceInfo, HostGrowth};
use tiercel_gpu::cuda::{
    CudaCopier, CudaKv, CudaOps, CudaOptions, DevicePtr, Driver, HostPlan, HostPool,
};
use tiercel_gpu::{KvType, Ops, WeightFormat};

/// GPU memory that is left free for allocations after the dry run, bytes: CUDA graphs, and kernels of libraries that
/// only steps of other sizes use.
const RESERVE_BYTES: u64 = 512 << 20;

/// GPU memory before the KV cache is allocated: bytes that were free at first, bytes that are needed beside the KV
/// cache (weights, activations, scratch, reserve), and the share of the free bytes that may be used.
struct Budget {
    free: u64,
    taken: u64,
    share: f64,
}

/// Opens a model on a GPU as [`load`](super::load) does, but without the speed measurement and without starting the
/// step thread and the copy thread. The threads of the compute pool are started.
///
/// The largest step is run before the KV cache is allocated. A KV cache of automatic size takes the memory that this
/// step leaves.
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
    let (name, free) = (driver.name(), driver.free_bytes()?);
    let block = one_block(&mut driver, config, options)?;
    let block_bytes = block.block_bytes() as u64;
    // With CUDA graphs, one KV block more is allocated: padding rows of a step write their KV into it.
    let filler_bytes = if usage.graphs { block_bytes } else { 0 };
    let blocks_in = |taken| {
        let budget = Budget { free, taken, share: usage.memory_share };
        budget.kv_blocks(options.kv_capacity, block_bytes, filler_bytes)
    };
    // Refuse a model that does not fit before its weights are loaded, because loading takes long.
    let at_least = checkpoint.cuda_bytes(options.weights)?.saturating_add(RESERVE_BYTES);
    blocks_in(at_least)?;
    let queries = config.heads / config.kv_heads;
    let cuda =
        CudaOptions { exact: usage.exact, threads: options.compute_threads(), scratch: None };
    let mut ops = CudaOps::new(driver, block, queries, cuda)?;
    let longest = asked_len.min(ops.longest());
    let limits = decoder_limits(options, longest);
    let weights = Weights::load(&mut ops, checkpoint, options.weights, progress)?;
    let mut decoder = Decoder::new(&mut ops, config.clone(), weights, limits)?;
    dry_run::run(&mut ops, &mut decoder, options.block_size)?;
    let taken = free.saturating_sub(ops.free_bytes()?).saturating_add(RESERVE_BYTES);
    let blocks = blocks_in(taken)?;
    tracing::info!(free, taken, blocks, block_bytes, "sized the KV cache after a dry run");
    let kv = ops.allocate_kv(blocks, usage.graphs)?;
    let pool_tokens = u64::from(blocks) * options.block_size as u64;
    let max_len = (longest as u64).min(pool_tokens) as usize;
    if max_len < asked_len {
        tracing::warn!(asked_len, max_len, "the KV cache limits sequences to max_len tokens");
    }
    let (copier, host_growth, host_blocks) = host_pool(&mut ops, kv, blocks, options)?;
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
    Ok(Parts { info, ops, decoder, copier, host_growth })
}

/// Allocates a KV cache of one block, for the dry run.
fn one_block<D: Driver>(
    driver: &mut D,
    config: &ModelConfig,
    options: &LoadOptions,
) -> Result<CudaKv, LoadError> {
    let mut kv = CudaKv {
        at: DevicePtr::default(),
        blocks: 1,
        block_size: options.block_size,
        layers: config.layers(),
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        q8: options.kv_type == KvType::Q8,
    };
    kv.at = driver.allocate(kv.block_bytes())?;
    // A free block may hold any numbers, but no NaN.
    driver.clear(kv.at, kv.block_bytes())?;
    Ok(kv)
}

/// Growth of a host pool; `None` if the pool is complete.
type Growth = Option<Box<dyn HostGrowth>>;

/// Makes the copy side of the GPU and pins the first pieces of its host pool. Returns the copier, the growth of the
/// pool, and the number of blocks that the complete pool will have.
fn host_pool<D: Driver>(
    ops: &mut CudaOps<D>,
    kv: CudaKv,
    blocks: u32,
    options: &LoadOptions,
) -> Result<(CudaCopier<D::Copies>, Growth, u32), LoadError> {
    let block_bytes = kv.block_bytes();
    let kv_bytes = u64::from(blocks) * block_bytes as u64;
    let bytes = options.host_bytes.unwrap_or_else(|| memory::host_pool_bytes(kv_bytes));
    let host_blocks = u32::try_from(bytes / block_bytes as u64).unwrap_or(u32::MAX);
    let plan = HostPlan::new(block_bytes, host_blocks);
    let (copies, memory) = ops.host_pool(plan)?;
    let pool = HostPool::start(memory, plan)?;
    let complete = pool.usable_blocks() == host_blocks;
    let growth = (!complete).then(|| Box::new(pool) as Box<dyn HostGrowth>);
    Ok((CudaCopier::new(copies, kv, host_blocks), growth, host_blocks))
}

fn check_format(format: WeightFormat) -> Result<(), LoadError> {
    match format {
        WeightFormat::Auto | WeightFormat::Bf16 => Ok(()),
        WeightFormat::F32 => Err(LoadError::CudaWeights("f32")),
        WeightFormat::Q8_0 => Err(LoadError::CudaWeights("q8_0")),
        WeightFormat::Native => Err(LoadError::CudaWeights("native")),
    }
}

impl Budget {
    /// Returns the number of blocks of a KV cache of the given size in the memory that is left beside the `taken`
    /// bytes. Beside the cache, `filler_bytes` bytes are needed.
    fn kv_blocks(
        &self,
        capacity: KvCapacity,
        block_bytes: u64,
        filler_bytes: u64,
    ) -> Result<u32, LoadError> {
        let bytes = match capacity {
            KvCapacity::Auto => self.left()?.saturating_sub(filler_bytes),
            KvCapacity::Bytes(bytes) => bytes,
            KvCapacity::Blocks(blocks) => u64::from(blocks).saturating_mul(block_bytes),
        };
        let blocks = u32::try_from(bytes / block_bytes).unwrap_or(u32::MAX - 1);
        if blocks == 0 {
            return Err(LoadError::NoBlocks { bytes, block_bytes });
        }
        self.check(bytes.saturating_add(filler_bytes))?;
        Ok(blocks)
    }

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
    use tiercel_device::{
        BlockId, CopyBatch, CopyDirection, CopyId, CopyPair, HostBlockId, QueuedCopier,
    };
    use tiercel_emulated::{EmulatedDriver, Fault};

    fn checkpoint() -> Checkpoint {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/tiny/llama3");
        Checkpoint::open(&ModelFiles::HfDir(tiny)).unwrap()
    }

    type Opened = Parts<CudaOps<EmulatedDriver>, CudaCopier<tiercel_emulated::EmulatedCopies>>;

    fn opened(bytes: usize, usage: GpuUse, options: &LoadOptions) -> Result<Opened, LoadError> {
        opened_with(EmulatedDriver::new(bytes), usage, options)
    }

    fn opened_with(
        driver: EmulatedDriver,
        usage: GpuUse,
        options: &LoadOptions,
    ) -> Result<Opened, LoadError> {
        open_cuda(driver, usage, &checkpoint(), options, &mut |_| {})
    }

    #[test]
    fn a_fresh_gpu_measures_its_first_steps_on_blocks_that_nobody_wrote() {
        let options = LoadOptions { host_bytes: Some(1 << 20), ..LoadOptions::default() };
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
    fn memory_that_is_taken_only_while_steps_run_is_left_out_of_the_kv_cache() {
        let (limit, late) = (700 << 20, 40 << 20);
        let blocks = |driver| {
            let options = LoadOptions::default();
            let mut parts = opened_with(driver, GpuUse::default(), &options).unwrap();
            (parts.info, parts.ops.free_bytes().unwrap())
        };
        let (info, free) = blocks(EmulatedDriver::new(limit));
        let late_driver = EmulatedDriver::new(limit).with_fault(Fault::LateMemory(late));
        let (less, less_free) = blocks(late_driver);
        let missing = u64::from(info.device_blocks - less.device_blocks) * info.block_bytes;
        assert!(missing.abs_diff(late as u64) <= info.block_bytes, "{missing} of {late}");
        for free in [free, less_free] {
            let unused = (limit / 10) as u64 + RESERVE_BYTES;
            assert!(free.abs_diff(unused) <= 2 * info.block_bytes, "{free} bytes are free");
        }
    }

    #[test]
    fn the_host_pool_grows_piece_by_piece_and_keeps_what_it_has_if_pinning_fails() {
        let (piece_bytes, first) = (32 << 20, 8);
        let options = LoadOptions { host_bytes: Some(10 * piece_bytes), ..LoadOptions::default() };
        let driver = EmulatedDriver::new(600 << 20).with_fault(Fault::Pinning(first + 1));
        let parts = opened_with(driver, GpuUse::default(), &options).unwrap();
        let (all, block_bytes) = (parts.info.host_blocks, parts.info.block_bytes);
        assert_eq!(u64::from(all), 10 * piece_bytes / block_bytes);
        let mut growth =
            parts.host_growth.expect("ten pieces, of which eight are pinned at the start");
        let piece = (piece_bytes / block_bytes) as u32;
        assert_eq!(growth.usable_blocks(), first as u32 * piece);
        assert_eq!(growth.grow(), Ok(piece));
        assert!(growth.grow().is_err_and(|why| why.contains("a made-up fault")));
        assert_eq!(growth.usable_blocks(), (first as u32 + 1) * piece);
        // The copier reaches all pinned blocks, and a copy across two pieces is whole.
        let mut copier = parts.copier;
        let pair = |host| CopyPair { device: BlockId(host % 7), host: HostBlockId(host) };
        for direction in [CopyDirection::Out, CopyDirection::In] {
            let pairs = (piece - 1..=piece).map(pair).collect();
            let batch = CopyBatch::needed(CopyId(1), direction, pairs);
            assert!(copier.copy(&batch).is_ok(), "{direction:?}");
        }
    }

    #[test]
    fn without_a_stated_size_the_host_pool_is_at_most_twice_the_kv_cache() {
        let options = LoadOptions { host_bytes: None, ..LoadOptions::default() };
        let parts = opened(600 << 20, GpuUse::default(), &options).unwrap();
        let info = parts.info;
        assert!(info.host_blocks <= 2 * info.device_blocks, "{info:?}");
        let free = tiercel_gpu::available_bytes().unwrap_or(0);
        assert!(info.host_blocks > 0 || free < 2 * info.block_bytes, "{info:?} of {free}");
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
    fn a_gpu_holds_more_blocks_of_8_bit_kv_in_the_same_memory() {
        let [wide, narrow] = [KvType::F16, KvType::Q8].map(|kv_type| {
            let kv_capacity = KvCapacity::Bytes(50 << 20);
            let options = LoadOptions { kv_type, kv_capacity, ..LoadOptions::default() };
            opened(900 << 20, GpuUse::default(), &options).unwrap().info
        });
        // A token of a head has 16 elements: in bf16 32 bytes; in 8 bits 16 bytes, and 4 bytes for the scale.
        assert_eq!(narrow.block_bytes * 32, wide.block_bytes * 20);
        assert!(narrow.device_blocks * 10 > wide.device_blocks * 15, "{narrow:?} {wide:?}");
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
