//! A GPU and the CPU that get equal inputs, so that a check can compare their results.

use crate::CheckError;
use half::bf16;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use tiercel_device::BlockId;
use tiercel_gpu::cpu::{CpuDevice, CpuOps, CpuOptions, Matrix, Tensor};
use tiercel_gpu::cuda::{CudaKv, CudaMatrix, CudaOps, CudaOptions, CudaTensor, DevicePtr, Driver};
use tiercel_gpu::{
    AttentionShape, KvType, MatrixPart, Ops, SeqRows, SourceType, TensorUse, WeightFormat,
};

/// Number of layers of the test's KV cache: more than one, so that the check fails if a kernel uses the wrong layer.
pub(crate) const LAYERS: usize = 2;

/// The op sets of a GPU and of the CPU, set up for the same attention shape and KV cache.
pub(crate) struct Pair<D: Driver> {
    pub(crate) cuda: CudaOps<D>,
    pub(crate) cpu: CpuOps,
    rng: SmallRng,
    blocks: u32,
    block_size: usize,
}

pub(crate) struct Both {
    pub(crate) cuda: CudaTensor,
    pub(crate) cpu: Tensor,
}

/// Attention shape, number of KV blocks and settings with which GPU and CPU are compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) shape: AttentionShape,
    pub(crate) blocks: u32,
    pub(crate) options: PairOptions,
}

/// Tokens per KV block, option `exact` and format of the KV cache with which GPU and CPU are compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairOptions {
    pub(crate) block_size: usize,
    pub(crate) exact: bool,
    /// Whether the KV caches of the GPU and the CPU are in 8 bits; otherwise they are in bf16 and f32.
    pub(crate) q8: bool,
}

impl Default for PairOptions {
    fn default() -> PairOptions {
        PairOptions { block_size: 16, exact: false, q8: false }
    }
}

pub(crate) fn shape(head_dim: usize, queries: usize, kv_heads: usize) -> AttentionShape {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape { heads: kv_heads * queries, kv_heads, head_dim, scale, sliding_window: None }
}

impl<D: Driver> Pair<D> {
    pub(crate) fn new(mut driver: D, setting: Setting, seed: u64) -> Result<Self, CheckError> {
        let Setting { shape, blocks, options: PairOptions { block_size, exact, q8 } } = setting;
        let (kv_heads, head_dim) = (shape.kv_heads, shape.head_dim);
        let at = DevicePtr::default();
        let mut kv = CudaKv { at, blocks, block_size, layers: LAYERS, kv_heads, head_dim, q8 };
        kv.at = driver.allocate(blocks as usize * kv.block_bytes())?;
        let options = CpuOptions {
            threads: 2,
            kv_type: if q8 { KvType::Q8 } else { KvType::F32 },
            block_size,
            device_blocks: blocks,
            host_blocks: 0,
            layers: LAYERS,
            kv_heads,
            head_dim,
        };
        let queries = shape.heads / kv_heads;
        Ok(Pair {
            cuda: CudaOps::new(
                driver,
                kv,
                queries,
                CudaOptions { exact, threads: 1, scratch: None },
            )?,
            cpu: CpuDevice::open(options)?.0,
            rng: SmallRng::seed_from_u64(seed),
            blocks,
            block_size,
        })
    }

    /// Returns random numbers of magnitude up to `size` that bf16 represents exactly, so that GPU and CPU get equal
    /// inputs.
    pub(crate) fn numbers(&mut self, len: usize, size: f32) -> Vec<f32> {
        let number = |_| bf16::from_f32(self.rng.random_range(-size..size)).to_f32();
        (0..len).map(number).collect()
    }

    pub(crate) fn empty(
        &mut self,
        rows: usize,
        cols: usize,
        holds: TensorUse,
    ) -> Result<Both, CheckError> {
        Ok(Both {
            cuda: self.cuda.tensor(rows, cols, holds)?,
            cpu: self.cpu.tensor(rows, cols, holds)?,
        })
    }

    pub(crate) fn random(
        &mut self,
        rows: usize,
        cols: usize,
        holds: TensorUse,
    ) -> Result<Both, CheckError> {
        let values = self.numbers(rows * cols, 2.0);
        let mut both = self.empty(rows, cols, holds)?;
        self.cuda.write(&mut both.cuda, &values)?;
        both.cpu.set_rows(rows);
        both.cpu.values_mut().copy_from_slice(&values);
        Ok(both)
    }

    pub(crate) fn matrix(
        &mut self,
        n: usize,
        k: usize,
    ) -> Result<(CudaMatrix, Matrix), CheckError> {
        let values = self.numbers(n * k, 1.0);
        let bytes: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let part = || MatrixPart { n, k, source: SourceType::Bf16, bytes: &bytes, row_order: None };
        Ok((
            self.cuda.matrix(&[part()], WeightFormat::Auto)?,
            self.cpu.matrix(&[part()], WeightFormat::F32)?,
        ))
    }

    /// Makes the sequences of a step from `(tokens to compute, earlier positions)` each; their KV blocks are scattered
    /// at random.
    pub(crate) fn sequences(&mut self, parts: &[(usize, usize)]) -> Vec<SeqRows> {
        let mut blocks: Vec<u32> = (0..self.blocks).collect();
        blocks.shuffle(&mut self.rng);
        let mut first = 0;
        let mut seqs = Vec::new();
        for &(rows, before) in parts {
            let count = (before + rows).div_ceil(self.block_size);
            let table: Arc<[BlockId]> = blocks.drain(..count).map(BlockId).collect();
            seqs.push(SeqRows { rows: first..first + rows, first_pos: before as u32, table });
            first += rows;
        }
        seqs
    }
}
