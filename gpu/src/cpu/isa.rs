//! Detection of the instruction set whose CPU kernels are used.

/// Instruction set, and with it the family of CPU kernels that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// Kernels in plain Rust: they run on any processor, and are the reference for the vector kernels.
    Portable,
    /// Kernels with AVX2, FMA and F16C. Only [`Isa::available`] makes this value, and only if the processor has these
    /// features. So calling the AVX2 kernels is sound.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Kernels with AVX-512 F and VNNI for products with quantized weights, and the AVX2 kernels for all else. Only
    /// [`Isa::available`] makes this value, and only if the processor has AVX-512 F, VNNI and the features of
    /// [`Isa::Avx2`]. So calling the kernels is sound.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Returns the instruction sets with kernels that this processor has, the best one last.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn available() -> Vec<Isa> {
        let mut isas = vec![Isa::Portable];
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            isas.push(Isa::Avx2);
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
                isas.push(Isa::Avx512);
            }
        }
        isas
    }

    /// Returns the instruction sets with kernels that this processor has, the best one last.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn available() -> Vec<Isa> {
        vec![Isa::Portable]
    }

    /// Returns the best instruction set with kernels that this processor has.
    pub(crate) fn detect() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Portable)
    }

    /// Returns the name of the CPU instruction set, for the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }
}
