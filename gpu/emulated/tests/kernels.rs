//! Every kernel against the CPU's op set, over shapes: what a GPU would compute, in bf16, and what the other does in f32.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use half::bf16;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use tiercel_device::{BlockId, StepError};
use tiercel_emulated::{EmulatedDriver, Fault};
use tiercel_gpu::cpu::{CpuDevice, CpuOps, CpuOptions, Tensor};
use tiercel_gpu::cuda::{CudaKv, CudaOps, CudaOptions, CudaTensor, Driver};
use tiercel_gpu::{
    AttentionShape, KvType, MatrixPart, Ops, SeqRows, SourceType, TensorUse, WeightFormat,
};

/// Most that a result may differ, as a share of its norm: bf16 has 8 bits, and what is computed from rounded queries and
/// keys a little less.
const TOLERANCE: f32 = 0.01;
/// Most that one value may differ, as a share of the largest.
const WORST: f32 = 0.02;
const BLOCKS: u32 = 64;
const LAYERS: usize = 2;
const MEMORY_BYTES: usize = 1 << 30;

/// The same on both devices.
struct Pair {
    cuda: CudaOps<EmulatedDriver>,
    cpu: CpuOps,
    rng: SmallRng,
}

struct Both {
    cuda: CudaTensor,
    cpu: Tensor,
}

fn shape(head_dim: usize, queries: usize, kv_heads: usize) -> AttentionShape {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape { heads: kv_heads * queries, kv_heads, head_dim, scale, sliding_window: None }
}

fn kv(driver: &mut EmulatedDriver, shape: &AttentionShape, block_size: usize) -> CudaKv {
    let mut kv = CudaKv {
        at: Default::default(),
        blocks: BLOCKS,
        block_size,
        layers: LAYERS,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
    };
    kv.at = driver.allocate(BLOCKS as usize * kv.block_bytes()).unwrap();
    kv
}

impl Pair {
    fn new(shape: &AttentionShape, block_size: usize, exact: bool, seed: u64) -> Pair {
        let mut driver = EmulatedDriver::new(MEMORY_BYTES);
        let kv = kv(&mut driver, shape, block_size);
        let options = CpuOptions {
            threads: 1,
            kv_type: KvType::F32,
            block_size,
            device_blocks: BLOCKS,
            host_blocks: 0,
            layers: LAYERS,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        };
        let queries = shape.heads / shape.kv_heads;
        Pair {
            cuda: CudaOps::new(driver, kv, queries, CudaOptions { exact, threads: 1 }).unwrap(),
            cpu: CpuDevice::open(options).unwrap().0,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    fn plain(seed: u64) -> Pair {
        Pair::new(&shape(16, 2, 2), 16, false, seed)
    }

    fn numbers(&mut self, len: usize, size: f32) -> Vec<f32> {
        // What both can hold exactly.
        let number = |_| bf16::from_f32(self.rng.random_range(-size..size)).to_f32();
        (0..len).map(number).collect()
    }

    fn empty(&mut self, rows: usize, cols: usize, holds: TensorUse) -> Both {
        Both {
            cuda: self.cuda.tensor(rows, cols, holds).unwrap(),
            cpu: self.cpu.tensor(rows, cols, holds).unwrap(),
        }
    }

    fn random(&mut self, rows: usize, cols: usize, holds: TensorUse) -> Both {
        let values = self.numbers(rows * cols, 2.0);
        let mut both = self.empty(rows, cols, holds);
        self.cuda.write(&mut both.cuda, &values).unwrap();
        both.cpu.set_rows(rows);
        both.cpu.values_mut().copy_from_slice(&values);
        both
    }

    fn assert_close(&mut self, both: &Both, what: &str) {
        let cuda = self.cuda.read(&both.cuda).unwrap();
        assert_eq!(both.cuda.rows(), both.cpu.rows(), "{what}: rows");
        assert_close(&cuda, both.cpu.values(), what);
        self.cuda.finish().unwrap();
    }
}

fn assert_close(cuda: &[f32], cpu: &[f32], what: &str) {
    assert_eq!(cuda.len(), cpu.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    let size = cpu.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
    let error =
        norm(&mut cuda.iter().zip(cpu).map(|(a, b)| a - b)) / norm(&mut cpu.iter().copied());
    let worst = cuda.iter().zip(cpu).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / size;
    // Not `>`: whatever is no number is far from all. (`f32::max` would pass over it, the norm does not.)
    assert!(error <= TOLERANCE, "{what}: differs by {error} of its size");
    assert!(worst <= WORST, "{what}: one differs by {worst} of the largest");
}

fn matrix(values: &[f32], n: usize, k: usize, pair: &mut Pair) -> (Matrix, CpuMatrix) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let part = || MatrixPart { n, k, source: SourceType::Bf16, bytes: &bytes, row_order: None };
    (
        pair.cuda.matrix(&[part()], WeightFormat::Auto).unwrap(),
        pair.cpu.matrix(&[part()], WeightFormat::F32).unwrap(),
    )
}

type Matrix = tiercel_gpu::cuda::CudaMatrix;
type CpuMatrix = tiercel_gpu::cpu::Matrix;

#[test]
fn embedding_norms_and_the_activation_function() {
    for (seed, (rows, cols)) in (1..).zip([(1, 8), (3, 64), (5, 576), (2, 2056), (9, 248)]) {
        let mut pair = Pair::plain(seed);
        let values = pair.numbers(20 * cols, 2.0);
        let (table, cpu_table) = matrix(&values, 20, cols, &mut pair);
        let mut residual = pair.empty(rows, cols, TensorUse::Residual);
        let tokens: Vec<u32> = (0..rows as u32).map(|row| row * 7 % 20).collect();
        pair.cuda.embed(&table, &tokens, &mut residual.cuda);
        pair.cpu.embed(&cpu_table, &tokens, &mut residual.cpu);
        pair.assert_close(&residual, "embedding");

        let delta = pair.random(rows, cols, TensorUse::Activations);
        let weights = pair.numbers(cols, 1.5);
        let weight = pair.cuda.vector(&weights).unwrap();
        let cpu_weight = pair.cpu.vector(&weights).unwrap();
        let mut out = pair.empty(rows, cols, TensorUse::Activations);
        for with in [true, false] {
            let (cuda, cpu) = (with.then_some(&delta.cuda), with.then_some(&delta.cpu));
            pair.cuda.add_rms_norm(&mut residual.cuda, cuda, &weight, 1e-5, &mut out.cuda);
            pair.cpu.add_rms_norm(&mut residual.cpu, cpu, &cpu_weight, 1e-5, &mut out.cpu);
            pair.assert_close(&residual, "residual");
            pair.assert_close(&out, "norm");
        }

        let gate_up = pair.random(rows, 2 * cols, TensorUse::Activations);
        pair.cuda.silu_mul(&gate_up.cuda, &mut out.cuda);
        pair.cpu.silu_mul(&gate_up.cpu, &mut out.cpu);
        pair.assert_close(&out, "silu");

        let which: Vec<usize> = (0..rows).rev().collect();
        let mut picked = pair.empty(rows, cols, TensorUse::Residual);
        pair.cuda.gather_rows(&residual.cuda, &which, &mut picked.cuda);
        pair.cpu.gather_rows(&residual.cpu, &which, &mut picked.cpu);
        pair.assert_close(&picked, "gather");
    }
}

#[test]
fn products_with_and_without_a_bias() {
    for (seed, (rows, n, k)) in (1..).zip([(1, 8, 16), (5, 96, 64), (17, 64, 104)]) {
        let mut pair = Pair::plain(seed);
        let values = pair.numbers(n * k, 1.0);
        let (w, cpu_w) = matrix(&values, n, k, &mut pair);
        let bias = pair.numbers(n, 3.0);
        let cuda_bias = pair.cuda.vector(&bias).unwrap();
        let cpu_bias = pair.cpu.vector(&bias).unwrap();
        let x = pair.random(rows, k, TensorUse::Activations);
        let mut out = pair.empty(rows, n, TensorUse::Activations);
        for with in [false, true] {
            pair.cuda.linear(&w, with.then_some(&cuda_bias), &x.cuda, &mut out.cuda);
            pair.cpu.linear(&cpu_w, with.then_some(&cpu_bias), &x.cpu, &mut out.cpu);
            pair.assert_close(&out, "product");
        }
        let mut logits = pair.empty(rows, n, TensorUse::Logits);
        pair.cuda.linear(&w, None, &x.cuda, &mut logits.cuda);
        pair.cpu.linear(&cpu_w, None, &x.cpu, &mut logits.cpu);
        pair.assert_close(&logits, "logits");
        let seen = std::sync::Mutex::new(vec![0; rows]);
        pair.cuda.for_each_row(&mut logits.cuda, &|row, values| {
            assert_eq!(values.len(), n);
            seen.lock().unwrap()[row] += 1;
        });
        assert!(seen.into_inner().unwrap().iter().all(|times| *times == 1));
    }
}

#[test]
fn head_norms_touch_only_their_heads() {
    for (head_dim, queries, kv_heads) in [(16, 2, 2), (64, 3, 3), (80, 1, 4), (128, 8, 1)] {
        let shape = shape(head_dim, queries, kv_heads);
        let mut pair = Pair::new(&shape, 16, false, head_dim as u64);
        let mut qkv = pair.random(5, shape.qkv_cols(), TensorUse::Activations);
        let weights = pair.numbers(head_dim, 1.5);
        let weight = pair.cuda.vector(&weights).unwrap();
        let cpu_weight = pair.cpu.vector(&weights).unwrap();
        for heads in [0..shape.heads, shape.heads..shape.heads + kv_heads, 1..1] {
            pair.cuda.head_rms_norm(&mut qkv.cuda, heads.clone(), &shape, &weight, 1e-6);
            pair.cpu.head_rms_norm(&mut qkv.cpu, heads, &shape, &cpu_weight, 1e-6);
        }
        pair.assert_close(&qkv, "head norms");
    }
}

/// Sequences of a step: `(rows, positions before them)`; their blocks are anywhere.
fn sequences(pair: &mut Pair, block_size: usize, parts: &[(usize, usize)]) -> Vec<SeqRows> {
    let mut blocks: Vec<u32> = (0..BLOCKS).collect();
    blocks.shuffle(&mut pair.rng);
    let mut first = 0;
    let mut seqs = Vec::new();
    for &(rows, before) in parts {
        let table: Arc<[BlockId]> =
            blocks.drain(..(before + rows).div_ceil(block_size)).map(BlockId).collect();
        seqs.push(SeqRows { rows: first..first + rows, first_pos: before as u32, table });
        first += rows;
    }
    seqs
}

/// Writes what came before, then runs the step on both devices.
fn attend(shape: &AttentionShape, block_size: usize, exact: bool, parts: &[(usize, usize)]) {
    let what = format!("{shape:?}, blocks of {block_size}, exact: {exact}, {parts:?}");
    let mut pair = Pair::new(shape, block_size, exact, 5);
    let seqs = sequences(&mut pair, block_size, parts);
    let inv_freq: Vec<f32> = (0..shape.head_dim / 2)
        .map(|i| 1e4_f32.powf(-2.0 * i as f32 / shape.head_dim as f32))
        .collect();
    let rope = pair.cuda.rope(&inv_freq, 1.0, 300).unwrap();
    let cpu_rope = pair.cpu.rope(&inv_freq, 1.0, 300).unwrap();
    let shapes = [*shape];
    for layer in 0..LAYERS {
        for (seq, (_, before)) in seqs.iter().zip(parts).filter(|(_, (_, before))| *before > 0) {
            let earlier = [SeqRows { rows: 0..*before, first_pos: 0, table: seq.table.clone() }];
            let mut qkv = pair.random(*before, shape.qkv_cols(), TensorUse::Activations);
            let batch = pair.cuda.batch(&earlier, &shapes);
            pair.cuda.rope_kv_write(&mut qkv.cuda, &rope, shape, layer, &batch);
            pair.cpu.rope_kv_write(&mut qkv.cpu, &cpu_rope, shape, layer, &earlier.to_vec());
        }
    }
    for layer in 0..LAYERS {
        let rows = parts.iter().map(|(rows, _)| rows).sum();
        let mut qkv = pair.random(rows, shape.qkv_cols(), TensorUse::Activations);
        let batch = pair.cuda.batch(&seqs, &shapes);
        pair.cuda.rope_kv_write(&mut qkv.cuda, &rope, shape, layer, &batch);
        pair.cpu.rope_kv_write(&mut qkv.cpu, &cpu_rope, shape, layer, &seqs);
        let mut out = pair.empty(rows, shape.heads * shape.head_dim, TensorUse::Activations);
        pair.cuda.attention(&qkv.cuda, shape, layer, &batch, &mut out.cuda);
        pair.cpu.attention(&qkv.cpu, shape, layer, &seqs, &mut out.cpu);
        pair.assert_close(&out, &what);
    }
}

const SHAPES: [(usize, usize); 14] = [
    (16, 1),
    (16, 2),
    (32, 2),
    (64, 1),
    (64, 3),
    (64, 8),
    (80, 1),
    (80, 4),
    (96, 2),
    (96, 5),
    (128, 1),
    (128, 4),
    (128, 7),
    (128, 8),
];

#[test]
fn decode_attends_over_ragged_lengths() {
    for (head_dim, queries) in SHAPES {
        let lengths = [(1, 0), (1, 31), (1, 32), (1, 100), (1, 63), (1, 7)];
        attend(&shape(head_dim, queries, 2), 16, false, &lengths);
    }
}

#[test]
fn prompts_attend_on_tiles() {
    for (head_dim, queries) in SHAPES {
        // A chunk that starts a prompt, one that goes on in the middle of a block, one beside a decode.
        attend(&shape(head_dim, queries, 2), 16, false, &[(70, 0), (33, 21), (1, 40), (2, 63)]);
    }
}

#[test]
fn prompts_attend_row_by_row_where_that_is_asked_for() {
    for (head_dim, queries) in [(16, 2), (64, 3), (80, 4), (128, 8)] {
        attend(&shape(head_dim, queries, 2), 16, true, &[(35, 0), (9, 30), (1, 40)]);
    }
}

#[test]
fn windows_and_block_sizes() {
    for (window, block_size) in [(1, 16), (24, 16), (40, 8), (64, 32), (1000, 64)] {
        let windowed = AttentionShape { sliding_window: Some(window), ..shape(64, 3, 1) };
        for exact in [false, true] {
            attend(&windowed, block_size, exact, &[(90, 0), (1, 120), (20, 50)]);
        }
    }
}

#[test]
fn a_row_does_not_depend_on_how_its_prompt_was_cut_where_that_is_asked_for() {
    let shape = shape(64, 3, 2);
    let mut pair = Pair::new(&shape, 16, true, 9);
    let rope = pair.cuda.rope(&[0.3; 32], 1.0, 300).unwrap();
    let values = pair.numbers(80 * shape.qkv_cols(), 2.0);
    let mut run = |chunks: &[usize]| {
        let table: Arc<[BlockId]> = (0..5).map(BlockId).collect();
        let (mut done, mut outputs) = (0, Vec::new());
        for &rows in chunks {
            let seqs = [SeqRows { rows: 0..rows, first_pos: done as u32, table: table.clone() }];
            let mut qkv = pair.cuda.tensor(rows, shape.qkv_cols(), TensorUse::Activations).unwrap();
            let cols = shape.qkv_cols();
            pair.cuda.write(&mut qkv, &values[done * cols..(done + rows) * cols]).unwrap();
            let batch = pair.cuda.batch(&seqs, &[shape]);
            pair.cuda.rope_kv_write(&mut qkv, &rope, &shape, 0, &batch);
            let width = shape.heads * shape.head_dim;
            let mut out = pair.cuda.tensor(rows, width, TensorUse::Activations).unwrap();
            pair.cuda.attention(&qkv, &shape, 0, &batch, &mut out);
            outputs.extend(pair.cuda.read(&out).unwrap().into_iter().map(f32::to_bits));
            pair.cuda.finish().unwrap();
            done += rows;
        }
        outputs
    };
    let whole = run(&[80]);
    assert_eq!(whole, run(&[33, 1, 1, 45]));
    assert_eq!(whole, run(&[16, 64]));
}

#[test]
fn a_launch_that_is_not_accepted_fails_the_step_and_no_other() {
    let mut driver = EmulatedDriver::new(MEMORY_BYTES).with_fault(Fault::Launch(0));
    let kv = kv(&mut driver, &shape(16, 2, 2), 16);
    let mut ops = CudaOps::new(driver, kv, 2, CudaOptions { exact: false, threads: 1 }).unwrap();
    let mut gate_up = ops.tensor(2, 16, TensorUse::Activations).unwrap();
    let mut out = ops.tensor(2, 8, TensorUse::Activations).unwrap();
    ops.write(&mut gate_up, &[1.0; 32]).unwrap();
    ops.silu_mul(&gate_up, &mut out);
    assert!(ops.read(&out).is_err());
    let failed = ops.finish();
    assert!(
        matches!(&failed, Err(StepError::Failed(why)) if why.contains("silu_mul")),
        "{failed:?}"
    );
    ops.silu_mul(&gate_up, &mut out);
    assert_eq!(ops.finish(), Ok(()));
    assert_eq!(ops.read(&out).unwrap()[0], 0.73046875, "of 1: 0.7311 in bf16");
}

#[test]
fn a_device_that_is_lost_is_told_as_such() {
    let mut driver = EmulatedDriver::new(MEMORY_BYTES).with_fault(Fault::Lost(0));
    let kv = kv(&mut driver, &shape(16, 2, 2), 16);
    let mut ops = CudaOps::new(driver, kv, 2, CudaOptions { exact: false, threads: 1 }).unwrap();
    let mut gate_up = ops.tensor(2, 16, TensorUse::Activations).unwrap();
    let mut out = ops.tensor(2, 8, TensorUse::Activations).unwrap();
    ops.write(&mut gate_up, &[1.0; 32]).unwrap();
    ops.silu_mul(&gate_up, &mut out);
    assert!(matches!(ops.finish(), Err(StepError::DeviceLost(_))));
}

#[test]
fn too_little_memory_and_shapes_without_kernels_are_told_before_anything_runs() {
    let mut driver = EmulatedDriver::new(1 << 20);
    let kv_16 = kv(&mut driver, &shape(16, 2, 2), 16);
    let options = CudaOptions { exact: false, threads: 1 };
    let error = CudaOps::new(driver, kv_16, 2, options).err().unwrap().to_string();
    assert!(error.contains("device memory"), "{error}");
    let mut driver = EmulatedDriver::new(MEMORY_BYTES);
    let odd = CudaKv { head_dim: 20, ..kv(&mut driver, &shape(16, 2, 2), 16) };
    let error = CudaOps::new(driver, odd, 2, options).err().unwrap().to_string();
    assert!(error.contains("heads of 20") && error.contains("--device cpu"), "{error}");
}
