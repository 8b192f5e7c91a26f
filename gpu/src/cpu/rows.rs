//! Operations of the CPU on single rows of activations (norms, RoPE, activation function). Reductions run in eight
//! fixed lanes, so that the result depends on the row alone.

use super::exp::exp;
use super::isa::Isa;
use super::tensor::Rope;
use crate::AttentionShape;

/// Returns the sum of the squares of `values`: eight partial sums, which are then added in pairs.
fn sum_of_squares(values: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 8];
    let chunks = values.chunks_exact(8);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane += x * x;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

fn inverse_rms(values: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(values) / values.len() as f32 + eps).sqrt()
}

/// Computes the RMS norm `out = x / rms(x) * weight`.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// Computes the RMS norm in place: `x = x / rms(x) * weight`.
pub(super) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = inverse_rms(x, eps);
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// Applies RoPE for `position` to the query and key heads of a row of fused q, k, v.
pub(super) fn rotate(row: &mut [f32], shape: &AttentionShape, rope: &Rope, position: usize) {
    let (cos, sin) = rope.at(position);
    let rotated = (shape.heads + shape.kv_heads) * shape.head_dim;
    for head in row[..rotated].chunks_exact_mut(shape.head_dim) {
        let (first, second) = head.split_at_mut(rope.half);
        for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// Computes the gated activation `out[i] = silu(row[i]) * row[m + i]`, where `m` is the length of `out`.
pub(super) fn silu_mul(isa: Isa, row: &[f32], out: &mut [f32]) {
    match isa {
        Isa::Portable => silu_mul_body(row, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => {
            #[expect(unsafe_code, reason = "calls a function compiled for AVX2")]
            // SAFETY: these values of `Isa` exist only where the processor has AVX2, which the called function needs.
            unsafe {
                silu_mul_avx2(row, out)
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn silu_mul_avx2(row: &[f32], out: &mut [f32]) {
    silu_mul_body(row, out);
}

#[inline(always)]
fn silu_mul_body(row: &[f32], out: &mut [f32]) {
    let (gate, up) = row.split_at(out.len());
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}
