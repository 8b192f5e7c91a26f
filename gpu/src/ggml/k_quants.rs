//! Decoders of ggml's k-quants: blocks of 256 weights with quantized scales.

use super::{array, half_at};

/// Returns scale and minimum number `j` of a Q4_K or Q5_K block, which packs eight of each into 12 bytes, 6 bits each.
pub(crate) fn scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (low & 15 | (packed[j - 4] >> 6) << 4, low >> 4 | (packed[j] >> 6) << 4)
    }
}

/// Decodes a Q2_K block: 16 scale bytes (nibbles: scale, minimum), 64 bytes of 2-bit weights, then the f16 factors `d`
/// of the scales and `dmin` of the minimums.
pub(super) fn q2k(block: &[u8], out: &mut [f32]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80).to_f32(), half_at(block, 82).to_f32());
    for (i, out) in out.iter_mut().enumerate() {
        let (half, shift, lane) = (i / 128, i % 128 / 32 * 2, i % 32);
        let scale = scales[i / 16];
        let q = quants[half * 32 + lane] >> shift & 3;
        *out = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
    }
}

/// Decodes a Q3_K block: 32 bytes of third bits, 64 bytes of the two lower bits of the weights, 12 bytes of 6-bit
/// scales, then the f16 factor `d` of the scales.
pub(super) fn q3k(block: &[u8], out: &mut [f32]) {
    let (high, quants, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108).to_f32();
    let scale = |j: usize| {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let top = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        f32::from((low | top << 4) as i8 - 32)
    };
    for (i, out) in out.iter_mut().enumerate() {
        let (half, group, lane) = (i / 128, i / 32, i % 32);
        let low = quants[half * 32 + lane] >> (group % 4 * 2) & 3;
        let offset = if high[lane] >> group & 1 == 1 { 0.0 } else { 4.0 };
        *out = d * scale(i / 16) * (f32::from(low) - offset);
    }
}

/// Decodes a Q4_K block: the f16 factors `d` of the scales and `dmin` of the minimums, 12 bytes of 6-bit scales and
/// minimums, then 128 bytes of nibbles.
pub(super) fn q4k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
    let (packed, quants) = (&block[4..16], &block[16..144]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(packed, group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let quants = &quants[group / 2 * 32..][..32];
        for (out, q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(q >> (group % 2 * 4) & 15) - min;
        }
    }
}

/// Decodes a Q5_K block: the f16 factors `d` of the scales and `dmin` of the minimums, 12 bytes of 6-bit scales and
/// minimums, 32 bytes of fifth bits, then 128 bytes of nibbles.
pub(super) fn q5k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
    let (packed, high, quants) = (&block[4..16], &block[16..48], &block[48..176]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(packed, group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let quants = &quants[group / 2 * 32..][..32];
        for ((out, q), high) in out.iter_mut().zip(quants).zip(high) {
            let q = q >> (group % 2 * 4) & 15 | (high >> group & 1) << 4;
            *out = scale * f32::from(q) - min;
        }
    }
}

/// Decodes a Q6_K block: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, then the f16 factor
/// `d` of the scales.
pub(super) fn q6k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208).to_f32();
    for (i, out) in out.iter_mut().enumerate() {
        let (half, group, lane) = (i / 128, i % 128 / 32, i % 32);
        let nibble = low[half * 64 + group % 2 * 32 + lane] >> (group / 2 * 4) & 15;
        let top = high[half * 32 + lane] >> (group * 2) & 3;
        let [scale] = array::<1>(&scales[i / 16..]);
        let q = f32::from(nibble | top << 4) - 32.0;
        *out = d * f32::from(scale as i8) * q;
    }
}
