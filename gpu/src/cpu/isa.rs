//! Which instruction set the kernels use.

/// A family of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// Plain Rust: runs anywhere, and is what the others are tested against.
    Portable,
    /// AVX2 with FMA and F16C. Only [`Isa::detect`] makes this value, after asking the processor: that
    /// is what makes calling the kernels sound.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The best this processor has.
    pub(crate) fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Isa::Avx2;
        }
        Isa::Portable
    }

    /// What the log calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
        }
    }
}
