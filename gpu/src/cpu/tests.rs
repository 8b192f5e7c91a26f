//! Tests of the CPU device's op set through its public interface, against f64 references.

use super::*;
use crate::{
    AttentionShape, KvType, MatrixPart, OpError, Ops, RowInput, SeqRows, SourceType, TensorUse,
    WeightFormat,
};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use tiercel_device::{
    BlockId, CopyBatch, CopyDirection, CopyError, CopyId, CopyPair, HostBlockId, QueuedCopier,
};

const SHAPE: AttentionShape =
    AttentionShape { heads: 4, kv_heads: 2, head_dim: 32, scale: 0.2, sliding_window: None };

fn options() -> CpuOptions {
    CpuOptions {
        threads: 2,
        kv_type: KvType::F32,
        block_size: 8,
        device_blocks: 6,
        host_blocks: 3,
        layers: 2,
        kv_heads: SHAPE.kv_heads,
        head_dim: SHAPE.head_dim,
    }
}

fn random(ops: &mut CpuOps, rng: &mut SmallRng, rows: usize, cols: usize) -> Tensor {
    let mut x = ops.tensor(rows + 2, cols, TensorUse::Activations).unwrap();
    x.set_rows(rows);
    x.values_mut().iter_mut().for_each(|x| *x = rng.random_range(-3.0..3.0));
    x
}

fn close(actual: f32, expected: f64) -> bool {
    (f64::from(actual) - expected).abs() <= 3e-6 * (1.0 + expected.abs())
}

fn rms_norm(x: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * f64::from(*w)).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn norms_match_a_f64_reference(
        seed in any::<u64>(), rows in 1_usize..70, cols in 1_usize..200, with_delta in any::<bool>(),
    ) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut ops = CpuDevice::open(options()).unwrap().0;
        let mut residual = random(&mut ops, &mut rng, rows, cols);
        let delta = random(&mut ops, &mut rng, rows, cols);
        let weights: Vec<f32> = (0..cols).map(|_| rng.random_range(0.5..1.5)).collect();
        let weight = ops.vector(&weights).unwrap();
        let before = residual.clone();
        let mut out = ops.tensor(rows, cols, TensorUse::Activations).unwrap();
        let given = with_delta.then_some(&delta);
        ops.add_rms_norm(&mut residual, given, &weight, 1e-5, &mut out);
        prop_assert_eq!(out.rows(), rows);
        for row in 0..rows {
            for (i, value) in residual.row(row).iter().enumerate() {
                let added = if with_delta { delta.row(row)[i] } else { 0.0 };
                prop_assert_eq!(*value, before.row(row)[i] + added);
            }
            let expected = rms_norm(&wide(residual.row(row)), &weights, 1e-5);
            for (actual, expected) in out.row(row).iter().zip(expected) {
                prop_assert!(close(*actual, expected), "{actual} {expected}");
            }
        }
    }

    #[test]
    fn head_norms_touch_only_their_heads(
        seed in any::<u64>(), rows in 1_usize..40, first in 0_usize..8, count in 0_usize..8,
    ) {
        let heads = first..(first + count).min(8);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut ops = CpuDevice::open(options()).unwrap().0;
        let mut qkv = random(&mut ops, &mut rng, rows, SHAPE.qkv_cols());
        let before = qkv.clone();
        let weights: Vec<f32> = (0..32).map(|_| rng.random_range(0.5..1.5)).collect();
        let weight = ops.vector(&weights).unwrap();
        ops.head_rms_norm(&mut qkv, heads.clone(), &SHAPE, &weight, 1e-6);
        for row in 0..rows {
            for head in 0..8 {
                let range = head * 32..(head + 1) * 32;
                let (old, new) = (&before.row(row)[range.clone()], &qkv.row(row)[range]);
                if heads.contains(&head) {
                    let expected = rms_norm(&wide(old), &weights, 1e-6);
                    prop_assert!(new.iter().zip(expected).all(|(new, e)| close(*new, e)));
                } else {
                    prop_assert_eq!(old, new);
                }
            }
        }
    }

    #[test]
    fn activations_match_a_f64_reference(seed in any::<u64>(), rows in 1_usize..40, m in 1_usize..90) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut ops, _) = CpuDevice::open(options()).unwrap();
        let mut gate_up = random(&mut ops, &mut rng, rows, 2 * m);
        gate_up.values_mut()[0] = -100.0;
        let mut out = ops.tensor(rows, m, TensorUse::Activations).unwrap();
        ops.silu_mul(&gate_up, &mut out);
        for row in 0..rows {
            for (i, actual) in out.row(row).iter().enumerate() {
                let (gate, up) = (gate_up.row(row)[i], gate_up.row(row)[m + i]);
                let expected = f64::from(gate) / (1.0 + f64::from(-gate).exp()) * f64::from(up);
                prop_assert!(close(*actual, expected), "{gate} {up}: {actual} {expected}");
            }
        }
    }
}

#[test]
fn rotation_matches_a_f64_reference_and_leaves_values_alone() {
    let mut rng = SmallRng::seed_from_u64(1);
    let (mut ops, _) = CpuDevice::open(options()).unwrap();
    let inv_freq: Vec<f32> = (0..16).map(|i| 10_000_f32.powf(-i as f32 / 16.0)).collect();
    let rope = ops.rope(&inv_freq, 1.25, 24).unwrap();
    let mut qkv = random(&mut ops, &mut rng, 20, SHAPE.qkv_cols());
    let before = qkv.clone();
    let table: Arc<[BlockId]> = [3, 1, 5].map(BlockId).into();
    let batch = vec![SeqRows { rows: 0..20, first_pos: 4, table }];
    ops.rope_kv_write(&mut qkv, &rope, &SHAPE, 1, &batch);
    for row in 0..20 {
        for head in 0..8 {
            let (old, new) = (&before.row(row)[head * 32..], &qkv.row(row)[head * 32..]);
            for i in 0..16 {
                let (a, b) = (f64::from(old[i]), f64::from(old[i + 16]));
                let angle = f64::from((4 + row) as f32 * inv_freq[i]);
                let (sin, cos) = (angle.sin() * 1.25, angle.cos() * 1.25);
                let expected =
                    if head < 6 { (a * cos - b * sin, b * cos + a * sin) } else { (a, b) };
                assert!(
                    close(new[i], expected.0) && close(new[i + 16], expected.1),
                    "{row} {head}"
                );
            }
        }
    }
}

#[test]
fn embedding_gathers_rows_of_every_form() {
    let (mut ops, _) = CpuDevice::open(options()).unwrap();
    let (n, k) = (50, 64);
    let values: Vec<f32> = (0..n * k).map(|i| ((i * 31 % 127) as f32 - 63.0) / 64.0).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Q8_0] {
        let part = MatrixPart { n, k, source: SourceType::F32, bytes: &bytes, row_order: None };
        let table = ops.matrix(&[part], format).unwrap();
        let mut out = ops.tensor(4, k, TensorUse::Activations).unwrap();
        ops.embed(&table, &[49, 0, 7, 7].map(RowInput::Token), &mut out);
        for (row, token) in [49, 0, 7, 7].into_iter().enumerate() {
            let expected = &values[token * k..(token + 1) * k];
            for (actual, expected) in out.row(row).iter().zip(expected) {
                assert!((actual - expected).abs() < 0.005, "{format:?}: {actual} {expected}");
            }
        }
    }
}

#[test]
fn rows_are_gathered_and_visited_in_place() {
    let (mut ops, _) = CpuDevice::open(options()).unwrap();
    let mut x = random(&mut ops, &mut SmallRng::seed_from_u64(2), 30, 5);
    let mut out = ops.tensor(3, 5, TensorUse::Activations).unwrap();
    ops.gather_rows(&x, &[29, 0, 29], &mut out);
    assert_eq!((out.row(0), out.row(1), out.row(2)), (x.row(29), x.row(0), x.row(29)));
    let all: Vec<usize> = (0..30).collect();
    ops.for_each_row(&mut x, &all, &|row, values| values.fill(row as f32));
    assert!((0..30).all(|row| x.row(row) == [row as f32; 5]));
    ops.for_each_row(&mut x, &[3, 29], &|_, values| values.fill(-1.0));
    assert!((0..30).all(|row| (x.row(row)[0] == -1.0) == (row == 3 || row == 29)));
}

#[test]
#[should_panic(expected = "3 rows in a tensor for 2")]
fn too_many_rows_are_a_bug_of_the_caller() {
    let (mut ops, _) = CpuDevice::open(options()).unwrap();
    let x = random(&mut ops, &mut SmallRng::seed_from_u64(2), 3, 8);
    let mut out = ops.tensor(2, 8, TensorUse::Activations).unwrap();
    ops.gather_rows(&x, &[0, 1, 2], &mut out);
}

#[test]
#[should_panic(expected = "9 positions in a table for 8")]
fn a_table_that_is_too_short_is_a_bug_of_the_caller() {
    let (mut ops, _) = CpuDevice::open(options()).unwrap();
    let mut qkv = random(&mut ops, &mut SmallRng::seed_from_u64(2), 1, SHAPE.qkv_cols());
    let rope = ops.rope(&[1.0; 16], 1.0, 100).unwrap();
    let batch = vec![SeqRows { rows: 0..1, first_pos: 8, table: [BlockId(0)].into() }];
    ops.rope_kv_write(&mut qkv, &rope, &SHAPE, 0, &batch);
}

fn copy(direction: CopyDirection, pairs: &[(u32, u32)]) -> CopyBatch {
    let pair = |&(device, host)| CopyPair { device: BlockId(device), host: HostBlockId(host) };
    CopyBatch::needed(CopyId(1), direction, pairs.iter().map(pair).collect())
}

#[test]
fn blocks_survive_a_trip_to_the_host_tier_and_back_to_other_places() {
    for kv_type in [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8] {
        let (mut ops, mut copier) = CpuDevice::open(CpuOptions { kv_type, ..options() }).unwrap();
        let mut rng = SmallRng::seed_from_u64(3);
        let rope = ops.rope(&[0.3; 16], 1.0, 100).unwrap();
        let mut out = ops.tensor(22, 128, TensorUse::Activations).unwrap();
        let mut layers = Vec::new();
        let seq = |table: [u32; 3]| {
            vec![SeqRows { rows: 0..20, first_pos: 0, table: table.map(BlockId).into() }]
        };
        for layer in 0..2 {
            let mut qkv = random(&mut ops, &mut rng, 20, SHAPE.qkv_cols());
            ops.rope_kv_write(&mut qkv, &rope, &SHAPE, layer, &seq([4, 0, 2]));
            ops.attention(&qkv, &SHAPE, layer, &seq([4, 0, 2]), &mut out);
            layers.push((qkv, out.clone()));
        }
        copier.copy(&copy(CopyDirection::Out, &[(4, 2), (0, 1), (2, 0)])).unwrap();
        for layer in 0..2 {
            let mut other = random(&mut ops, &mut rng, 20, SHAPE.qkv_cols());
            ops.rope_kv_write(&mut other, &rope, &SHAPE, layer, &seq([0, 2, 4]));
        }
        copier.copy(&copy(CopyDirection::In, &[(1, 2), (5, 1), (3, 0)])).unwrap();
        for (layer, (qkv, expected)) in layers.iter().enumerate() {
            ops.attention(qkv, &SHAPE, layer, &seq([1, 5, 3]), &mut out);
            assert_eq!(out.values(), expected.values(), "{kv_type} layer {layer}");
        }
    }
}

#[test]
fn a_copy_of_a_block_that_does_not_exist_fails_and_copies_nothing() {
    let (_, mut copier) = CpuDevice::open(options()).unwrap();
    for pairs in [[(0, 0), (6, 0)], [(0, 0), (0, 3)]] {
        let result = copier.copy(&copy(CopyDirection::Out, &pairs));
        assert!(matches!(result, Err(CopyError::Failed(why)) if why.contains("no such block")));
    }
}

#[test]
fn impossible_devices_are_refused_with_a_reason() {
    let open = |options| CpuDevice::open(options).map(|_| ()).expect_err("impossible");
    assert!(open(CpuOptions { threads: 0, ..options() }).to_string().contains("0 threads"));
    assert!(open(CpuOptions { head_dim: 0, ..options() }).to_string().contains("width 0"));
    for huge in [
        CpuOptions { device_blocks: u32::MAX, layers: 1 << 16, ..options() },
        CpuOptions { host_blocks: u32::MAX, layers: 1 << 16, ..options() },
        CpuOptions { head_dim: usize::MAX / 2, ..options() },
    ] {
        let error = open(huge);
        assert!(matches!(error, CpuError::Memory { .. }), "{error}");
        assert!(error.to_string().contains("choose fewer blocks"));
    }
}

#[test]
fn shapes_that_miss_the_vector_kernels_are_told() {
    let misses = |options| CpuDevice::open(options).unwrap().0.attention_misses_vectors();
    assert!(!misses(options()));
    let fits = |options| misses(options) == (crate::cpu::isa::Isa::detect().name() != "portable");
    assert!(fits(CpuOptions { head_dim: 12, ..options() }));
    assert!(fits(CpuOptions { block_size: 24, ..options() }));
}

#[test]
fn weights_leave_room_for_what_comes_later() {
    let values = [0; 64];
    let part = |source| MatrixPart { n: 1, k: 16, source, bytes: &values, row_order: None };
    let (mut ops, _) = CpuDevice::open(options()).unwrap();
    ops.promise(u64::MAX);
    let refused = ops.matrix(&[part(SourceType::F32)], WeightFormat::F32);
    assert!(matches!(refused, Err(OpError::Memory { .. })) || cfg!(not(target_os = "linux")));
}

#[test]
fn a_block_is_one_run_of_whole_cache_lines() {
    assert_eq!(options().block_bytes(), 2 * 2 * 2 * 8 * 32 * 4);
    let odd = CpuOptions { block_size: 3, head_dim: 5, kv_type: KvType::F16, ..options() };
    assert_eq!(odd.block_bytes(), (2 * 2 * 2 * 3 * 5 * 2_u64).next_multiple_of(64));
    let q8 = CpuOptions { kv_type: KvType::Q8, ..odd };
    assert_eq!(q8.block_bytes(), (2 * 2 * 2 * 3 * (5 + 4_u64)).next_multiple_of(64));
}
