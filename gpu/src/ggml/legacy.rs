//! Decoders of ggml's encodings in blocks of 32 weights. In the encodings of 4 and 5 bits, weight `j` and weight
//! `j + 16` share a byte of nibbles.

use super::{array, half_at};

pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0).to_f32();
    for (j, q) in block[2..].iter().enumerate() {
        out[j] = d * (f32::from(q & 15) - 8.0);
        out[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, min) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
    for (j, q) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(q & 15) + min;
        out[j + 16] = d * f32::from(q >> 4) + min;
    }
}

pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0).to_f32();
    five_bits(&block[2..], |j, q| out[j] = d * (f32::from(q) - 16.0));
}

pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, min) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
    five_bits(&block[4..], |j, q| out[j] = d * f32::from(q) + min);
}

/// Decodes 32 weights of 5 bits (four bytes of fifth bits, then 16 bytes of nibbles) and calls `each(index, weight)`
/// for each.
fn five_bits(bytes: &[u8], mut each: impl FnMut(usize, u8)) {
    let high = u32::from_le_bytes(array(bytes));
    let fifth = |j: usize| ((high >> j & 1) << 4) as u8;
    for (j, q) in bytes[4..].iter().enumerate() {
        each(j, q & 15 | fifth(j));
        each(j + 16, q >> 4 | fifth(j + 16));
    }
}

pub(super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0).to_f32();
    for (out, q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(*q as i8);
    }
}
