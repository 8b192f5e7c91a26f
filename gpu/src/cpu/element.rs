//! Element types in which KV blocks store keys and values.

use crate::KvType;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256;

/// Number type in which KV blocks store a component of a key or a value.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Value of the setting `kv.type` (number type of the KV cache) that selects this element type.
    const KV_TYPE: KvType;
    /// Number of elements that take as much memory as one scale; 0 for types without scales.
    const SCALE_LEN: usize = Self::KV_TYPE.scale_bytes() / size_of::<Self>();
    /// Returns the scale of a key or value: the number by which its components are divided before they are stored. 1
    /// for types without scales.
    fn scale(_vector: &[f32]) -> f32 {
        1.0
    }
    /// Reads scales that are stored from the start of `stored` on, [`Element::SCALE_LEN`] elements each, until `scales`
    /// is full. Does nothing for types without scales.
    fn scales(_stored: &[Self], _scales: &mut [f32]) {}
    /// Converts an f32, already divided by its scale, to this element type, rounding to nearest.
    fn narrow(value: f32) -> Self;
    /// Converts a stored element to f32; the conversion is exact.
    fn widen(self) -> f32;
    /// Loads eight stored elements and converts them to a vector of f32. The processor must have AVX2 and F16C. The
    /// only caller, the function `load` of `attention/avx2.rs`, keeps this condition: the kernels that use `load` run
    /// only with an `Avx2` value, which exists only on a processor with AVX2 and F16C. Kernels inline this function.
    #[cfg(target_arch = "x86_64")]
    fn load(from: &[Self; 8]) -> __m256;
}

impl Element for f32 {
    const KV_TYPE: KvType = KvType::F32;

    fn narrow(value: f32) -> f32 {
        value
    }

    fn widen(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[expect(unsafe_code, reason = "a vector load")]
    fn load(from: &[f32; 8]) -> __m256 {
        // SAFETY: the array `from` holds eight floats; the callers are compiled for AVX2.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(from.as_ptr()) }
    }
}

impl Element for f16 {
    const KV_TYPE: KvType = KvType::F16;

    fn narrow(value: f32) -> f16 {
        f16::from_f32(value)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[expect(unsafe_code, reason = "a vector load")]
    fn load(from: &[f16; 8]) -> __m256 {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps};
        // SAFETY: the array `from` holds eight f16 numbers (16 bytes); the callers are compiled for F16C.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())) }
    }
}

impl Element for bf16 {
    const KV_TYPE: KvType = KvType::Bf16;

    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[expect(unsafe_code, reason = "a vector load")]
    fn load(from: &[bf16; 8]) -> __m256 {
        use std::arch::x86_64::{
            _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32,
        };
        // SAFETY: the array `from` holds eight bf16 numbers (16 bytes); the callers are compiled for AVX2.
        unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
    }
}

/// Largest magnitude of an 8-bit element. -128 is not used, so that the range is symmetric.
const Q8_MAX: f32 = 127.0;
/// Smallest scale that is stored; a smaller scale is stored as 0. The inverse of every stored scale but 0 is finite.
const Q8_SCALE_MIN: f32 = 1e-37;

impl Element for i8 {
    const KV_TYPE: KvType = KvType::Q8;

    /// Returns `largest magnitude / 127`; NaN if a component is not finite, so that a fault in a key or value reaches
    /// every row that attends to it.
    fn scale(vector: &[f32]) -> f32 {
        if vector.iter().any(|component| !component.is_finite()) {
            return f32::NAN;
        }
        let largest = vector.iter().fold(0.0_f32, |most, component| most.max(component.abs()));
        let scale = largest / Q8_MAX;
        if scale < Q8_SCALE_MIN { 0.0 } else { scale }
    }

    fn scales(stored: &[i8], scales: &mut [f32]) {
        for (scale, stored) in scales.iter_mut().zip(stored.as_chunks::<4>().0) {
            *scale = f32::from_ne_bytes(stored.map(i8::cast_unsigned));
        }
    }

    fn narrow(value: f32) -> i8 {
        value.round_ties_even() as i8
    }

    fn widen(self) -> f32 {
        f32::from(self)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[expect(unsafe_code, reason = "a vector load")]
    fn load(from: &[i8; 8]) -> __m256 {
        use std::arch::x86_64::{_mm_loadl_epi64, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps};
        // SAFETY: the array `from` holds eight bytes; the callers are compiled for AVX2.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_are_as_close_as_half_a_step_and_faults_stay_faults() {
        let vector = [0.3_f32, -2.54, 0.011, 0.0, 1.27];
        let scale = i8::scale(&vector);
        assert_eq!(scale, 2.54 / 127.0);
        for component in vector {
            let stored = i8::narrow(component / scale);
            assert!((stored.widen() * scale - component).abs() <= scale / 2.0 + 1e-7, "{stored}");
        }
        assert_eq!(i8::narrow(-2.54 / scale), -127);
        for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(i8::scale(&[1.0, fault, 2.0]).is_nan());
        }
        for tiny in [0.0, 1e-45, 1e-36] {
            assert_eq!(i8::scale(&[tiny, -tiny]), 0.0);
        }
        assert!((1.0 / i8::scale(&[1e-34])).is_finite());
    }

    #[test]
    fn scales_are_read_where_they_were_stored() {
        let bytes: Vec<i8> =
            [0.5_f32, 2.0].iter().flat_map(|scale| scale.to_ne_bytes().map(|b| b as i8)).collect();
        let mut scales = [0.0; 2];
        i8::scales(&bytes, &mut scales);
        assert_eq!(scales, [0.5, 2.0]);
    }
}
