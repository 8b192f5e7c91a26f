//! Element types in which KV blocks store keys and values.

use crate::KvType;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256;

/// Number type in which KV blocks store a component of a key or a value.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Value of the setting `kv.type` (number type of the KV cache) that selects this element type.
    const KV_TYPE: KvType;
    /// Converts an f32 to this element type, rounding to nearest.
    fn narrow(value: f32) -> Self;
    /// Converts a stored element to f32; the conversion is exact.
    fn widen(self) -> f32;
    /// Loads eight stored elements and converts them to a vector of f32. Kernels compiled for AVX2 and F16C inline this
    /// function.
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
