//! Attention over paged blocks.
#![expect(unsafe_code, reason = "reads KV blocks in place")]

use super::kv::KvMemory;
use super::pool::Pool;
use super::tensor::Tensor;
use crate::{AttentionShape, KvType, SeqRows};
use half::{bf16, f16};

/// Writes one element.
fn store(kv_type: KvType, base: *mut u8, index: usize, value: f32) {
    // SAFETY: `base` is a head of a block the caller owns and `index` is inside it.
    unsafe {
        match kv_type {
            KvType::F32 => base.cast::<f32>().add(index).write(value),
            KvType::F16 => base.cast::<f16>().add(index).write(f16::from_f32(value)),
            KvType::Bf16 => base.cast::<bf16>().add(index).write(bf16::from_f32(value)),
        }
    }
}

fn load(kv_type: KvType, base: *const u8, index: usize) -> f32 {
    // SAFETY: `base` is a head of a block the caller may read and `index` is inside it.
    unsafe {
        match kv_type {
            KvType::F32 => base.cast::<f32>().add(index).read(),
            KvType::F16 => base.cast::<f16>().add(index).read().to_f32(),
            KvType::Bf16 => base.cast::<bf16>().add(index).read().to_f32(),
        }
    }
}

/// Writes k and v of a row (rotated already) at a position of a sequence.
pub(super) fn write_row(
    kv: &KvMemory,
    layer: usize,
    seq: &SeqRows,
    position: usize,
    keys_values: &[f32],
) {
    let layout = *kv.layout();
    let block = seq.table[position / layout.block_size];
    let slot = position % layout.block_size;
    let (keys, values) = keys_values.split_at(layout.kv_heads * layout.head_dim);
    for head in 0..layout.kv_heads {
        let (to_k, to_v) = (kv.keys(block, layer, head), kv.values(block, layer, head));
        for i in 0..layout.head_dim {
            let from = head * layout.head_dim + i;
            store(layout.kv_type, to_k, i * layout.block_size + slot, keys[from]);
            store(layout.kv_type, to_v, slot * layout.head_dim + i, values[from]);
        }
    }
}

/// Plain attention, one row and head at a time.
pub(super) fn attention(
    pool: &Pool,
    kv: &KvMemory,
    qkv: &Tensor,
    shape: &AttentionShape,
    layer: usize,
    batch: &[SeqRows],
    out: &mut Tensor,
) {
    let layout = *kv.layout();
    let (dim, size, kind) = (layout.head_dim, layout.block_size, layout.kv_type);
    let cols = out.cols();
    pool.rows(out.values_mut(), cols, 1, |row, out| {
        let Some(seq) = batch.iter().find(|seq| seq.rows.contains(&row)) else {
            return out.fill(0.0);
        };
        let end = seq.first_pos as usize + row - seq.rows.start + 1;
        let start = shape.sliding_window.map_or(0, |window| end.saturating_sub(window as usize));
        for head in 0..shape.heads {
            let query = &qkv.row(row)[head * dim..(head + 1) * dim];
            let kv_head = head / (shape.heads / shape.kv_heads);
            let score = |p: usize| {
                let keys = kv.keys(seq.table[p / size], layer, kv_head);
                let dot: f32 =
                    (0..dim).map(|i| query[i] * load(kind, keys, i * size + p % size)).sum();
                dot * shape.scale
            };
            let scores: Vec<f32> = (start..end).map(score).collect();
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let out = &mut out[head * dim..(head + 1) * dim];
            out.fill(0.0);
            let mut total = 0.0;
            for (p, score) in (start..end).zip(scores) {
                let weight = (score - max).exp();
                total += weight;
                let values = kv.values(seq.table[p / size], layer, kv_head);
                for (i, out) in out.iter_mut().enumerate() {
                    *out += weight * load(kind, values, p % size * dim + i);
                }
            }
            out.iter_mut().for_each(|out| *out /= total);
        }
    });
}
