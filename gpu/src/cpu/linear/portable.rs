//! Products of one activation row and one weight panel in plain Rust: the reference of the vector kernels.

use super::activations::ActBlock;
use crate::cpu::weights::{
    Bf16Column, DENSE_ROWS, F32Column, Q4Block, Q8Block, QUANT_LEN, QUANT_ROWS,
};

pub(super) fn f32_row(panel: &[F32Column], x: &[f32]) -> [f32; DENSE_ROWS] {
    dense_row(panel.iter().map(|column| column.0), x)
}

pub(super) fn bf16_row(panel: &[Bf16Column], x: &[f32]) -> [f32; DENSE_ROWS] {
    dense_row(panel.iter().map(|column| column.0.map(f32::from)), x)
}

fn dense_row(panel: impl Iterator<Item = [f32; DENSE_ROWS]>, x: &[f32]) -> [f32; DENSE_ROWS] {
    let mut sums = [0.0; DENSE_ROWS];
    for (column, x) in panel.zip(x) {
        for (sum, w) in sums.iter_mut().zip(column) {
            *sum += w * x;
        }
    }
    sums
}

pub(super) fn q8_row(panel: &[Q8Block], acts: &[ActBlock]) -> [f32; QUANT_ROWS] {
    let mut sums = [0.0; QUANT_ROWS];
    for (block, act) in panel.iter().zip(acts) {
        for (row, sum) in sums.iter_mut().enumerate() {
            let weight = |i: usize| i32::from(block.weights[i / 4][4 * row + i % 4]);
            let dot: i32 = (0..QUANT_LEN).map(|i| weight(i) * i32::from(act.values[i])).sum();
            *sum += dot as f32 * (block.scales[row].to_f32() * act.scale);
        }
    }
    sums
}

pub(super) fn q4_row(panel: &[Q4Block], acts: &[ActBlock]) -> [f32; QUANT_ROWS] {
    let mut sums = [0.0; QUANT_ROWS];
    for (block, act) in panel.iter().zip(acts) {
        for (row, sum) in sums.iter_mut().enumerate() {
            let byte = |i: usize| {
                let (vector, lane) = Q4Block::place(row, i / 4);
                i32::from(block.nibbles[vector][4 * lane + i % 4])
            };
            let pair = |i: usize| {
                let (low, high) = (i32::from(act.values[i]), i32::from(act.values[i + 16]));
                (byte(i) & 15) * low + (byte(i) >> 4) * high
            };
            let dot: i32 = (0..16).map(pair).sum();
            *sum += block.mins[row].to_f32() * act.sum;
            *sum += dot as f32 * (block.scales[row].to_f32() * act.scale);
        }
    }
    sums
}
