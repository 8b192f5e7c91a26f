//! Benchmarks of the CPU device's operations with the shapes of SmolLM2-135M, and of candle's quantized products for
//! comparison. `cargo bench -p tiercel-gpu` measures; with `--test` every benchmark runs once.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use tiercel_device::BlockId;
use tiercel_gpu::cpu::{CpuDevice, CpuOps, CpuOptions};
use tiercel_gpu::{
    AttentionShape, KvType, MatrixPart, Ops, SeqRows, SourceType, TensorUse, WeightFormat,
};

const THREADS: usize = 2;
const BLOCK_SIZE: usize = 16;
/// Matrix products of SmolLM2-135M: name, number of output features and number of input features of each.
const SHAPES: [(&str, usize, usize); 5] = [
    ("qkv", 960, 576),
    ("attention_out", 576, 576),
    ("gate_up", 3072, 576),
    ("down", 576, 1536),
    ("lm_head", 49152, 576),
];
const ROWS: [usize; 5] = [1, 16, 32, 128, 512];

fn open(device_blocks: u32, kv_type: KvType) -> CpuOps {
    let options = CpuOptions {
        threads: THREADS,
        kv_type,
        block_size: BLOCK_SIZE,
        device_blocks,
        host_blocks: 0,
        layers: 1,
        kv_heads: 3,
        head_dim: 64,
    };
    CpuDevice::open(options).expect("a device of a few MiB").0
}

/// Returns `count` pseudo-random numbers in -0.5..0.5, the same ones in each call.
fn noise(count: usize) -> Vec<f32> {
    (0..count).map(|i| (((i as u64 * 2_654_435_761) >> 7) % 1009) as f32 / 1009.0 - 0.5).collect()
}

fn quantize(kind: GgmlDType, n: usize, k: usize) -> QTensor {
    let tensor = Tensor::from_vec(noise(n * k), (n, k), &Device::Cpu).expect("n * k values");
    QTensor::quantize(&tensor, kind).expect("k is a multiple of 32")
}

fn linear(c: &mut Criterion) {
    let mut ops = open(1, KvType::F32);
    let forms = [
        ("q4", SourceType::Q4_1, GgmlDType::Q4_1, WeightFormat::Auto),
        ("q8", SourceType::Q8_0, GgmlDType::Q8_0, WeightFormat::Auto),
        ("f32", SourceType::F32, GgmlDType::F32, WeightFormat::Auto),
        ("bf16", SourceType::F32, GgmlDType::F32, WeightFormat::Bf16),
    ];
    for (shape, n, k) in SHAPES {
        for (name, source, kind, format) in forms {
            let mut group = c.benchmark_group(format!("linear/{shape}/{name}"));
            let quantized = quantize(kind, n, k);
            let bytes = quantized.data().expect("data on the CPU").to_vec();
            let part = MatrixPart { n, k, source, bytes: &bytes, row_order: None };
            let w = ops.matrix(&[part], format).expect("sizes agree");
            let peer = QMatMul::from_qtensor(quantized).expect("a product on the CPU");
            for rows in ROWS {
                if shape == "lm_head" && rows > 32 {
                    continue;
                }
                let mut x = ops.tensor(rows, k, TensorUse::Activations).expect("memory");
                x.set_rows(rows);
                x.values_mut().copy_from_slice(&noise(rows * k));
                let mut out = ops.tensor(rows, n, TensorUse::Activations).expect("memory");
                group.throughput(Throughput::Elements((2 * n * k * rows) as u64));
                group.bench_function(format!("{rows}"), |b| {
                    b.iter(|| ops.linear(&w, None, &x, &mut out));
                });
                if matches!(name, "q8" | "f32") {
                    let x = Tensor::from_vec(noise(rows * k), (rows, k), &Device::Cpu);
                    let x = x.expect("rows * k values");
                    group.bench_function(format!("{rows}-candle"), |b| {
                        b.iter(|| black_box(peer.forward(&x).expect("shapes agree")));
                    });
                }
            }
        }
    }
}

/// Benchmarks attention over a batch. `sequences` has, for each sequence, its number of query rows and of KV positions
/// before them.
fn attend(c: &mut Criterion, name: &str, kv_type: KvType, sequences: &[(usize, usize)]) {
    let shape =
        AttentionShape { heads: 9, kv_heads: 3, head_dim: 64, scale: 0.125, sliding_window: None };
    let mut ops = open(8192, kv_type);
    let rows: usize = sequences.iter().map(|(rows, _)| rows).sum();
    let (mut first, mut block) = (0, 0);
    let mut multiply_adds = 0;
    let mut batch = Vec::new();
    for &(rows, before) in sequences {
        let blocks = (before + rows).div_ceil(BLOCK_SIZE) as u32;
        // Scatters the KV blocks of each sequence over the pool, as in the block tables of a busy server.
        let table: Arc<[BlockId]> =
            (block..block + blocks).map(|i| BlockId(i * 4099 % 8192)).collect();
        batch.push(SeqRows { rows: first..first + rows, first_pos: before as u32, table });
        multiply_adds += 2 * (0..rows).map(|i| before + i + 1).sum::<usize>() * shape.heads * 64;
        first += rows;
        block += blocks;
    }
    let mut qkv = ops.tensor(rows, shape.qkv_cols(), TensorUse::Activations).expect("memory");
    qkv.set_rows(rows);
    qkv.values_mut().copy_from_slice(&noise(rows * shape.qkv_cols()));
    let mut out =
        ops.tensor(rows, shape.heads * shape.head_dim, TensorUse::Activations).expect("memory");
    let mut group = c.benchmark_group(format!("attention/{name}"));
    group.throughput(Throughput::Elements(2 * multiply_adds as u64));
    group.bench_function(format!("{kv_type}"), |b| {
        b.iter(|| ops.attention(&qkv, &shape, 0, &batch, &mut out));
    });
}

fn attention(c: &mut Criterion) {
    for kv_type in [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8] {
        attend(c, "decode-1x300", kv_type, &[(1, 300)]);
        attend(c, "decode-1x4000", kv_type, &[(1, 4000)]);
        attend(c, "decode-32x500", kv_type, &[(1, 500); 32]);
        attend(c, "prefill-512", kv_type, &[(512, 0)]);
        attend(c, "prefill-256-after-2000", kv_type, &[(256, 2000)]);
    }
}

fn rows(c: &mut Criterion) {
    let mut ops = open(64, KvType::F32);
    let shape =
        AttentionShape { heads: 9, kv_heads: 3, head_dim: 64, scale: 0.125, sliding_window: None };
    let rope = ops.rope(&[0.5; 32], 1.0, 64).expect("memory");
    let weight = ops.vector(&[1.0; 576]).expect("memory");
    for rows in [1, 32] {
        let mut tensor = |cols: usize| {
            let mut x = ops.tensor(rows, cols, TensorUse::Activations).expect("memory");
            x.set_rows(rows);
            x.values_mut().copy_from_slice(&noise(rows * cols));
            x
        };
        let (mut residual, delta, mut out) = (tensor(576), tensor(576), tensor(576));
        let (gate_up, mut activated, mut qkv) = (tensor(3072), tensor(1536), tensor(960));
        let batch: Vec<SeqRows> = (0..rows)
            .map(|row| SeqRows {
                rows: row..row + 1,
                first_pos: 3,
                table: Arc::from([BlockId(row as u32)]),
            })
            .collect();
        let mut group = c.benchmark_group(format!("rows/{rows}"));
        group.bench_function("add_rms_norm", |b| {
            b.iter(|| ops.add_rms_norm(&mut residual, Some(&delta), &weight, 1e-5, &mut out));
        });
        group.bench_function("silu_mul", |b| b.iter(|| ops.silu_mul(&gate_up, &mut activated)));
        group.bench_function("rope_kv_write", |b| {
            b.iter(|| ops.rope_kv_write(&mut qkv, &rope, &shape, 0, &batch));
        });
        let all: Vec<usize> = (0..rows).collect();
        group.bench_function("dispatch", |b| {
            b.iter(|| ops.for_each_row(&mut residual, &all, &|_, _| {}));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(500));
    targets = linear, attention, rows
}
criterion_main!(benches);
