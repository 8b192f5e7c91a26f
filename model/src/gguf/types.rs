//! ggml's tensor encodings: the number of weights and of bytes in a quantization block of each encoding.

use tiercel_gpu::SourceType;

macro_rules! ggml_types {
    ($($name:ident = $id:literal, $label:literal, $block:literal, $bytes:literal;)*) => {
        /// Encoding in which a GGUF file stores a tensor, such as f16 or a quantized format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the names are ggml's own")]
        pub enum GgmlType { $($name,)* }

        impl GgmlType {
            pub(super) fn from_id(id: u32) -> Option<GgmlType> {
                match id { $($id => Some(GgmlType::$name),)* _ => None }
            }

            /// Returns the number that ggml gives the tensor encoding in files.
            pub fn id(self) -> u32 {
                match self { $(GgmlType::$name => $id,)* }
            }

            /// Returns ggml's name of the tensor encoding, as in file names (`"Q4_K"`).
            pub fn name(self) -> &'static str {
                match self { $(GgmlType::$name => $label,)* }
            }

            /// Returns the number of weights in a quantization block of the encoding; a row of a tensor is a whole
            /// number of blocks.
            pub fn block_weights(self) -> u64 {
                match self { $(GgmlType::$name => $block,)* }
            }

            /// Returns the bytes of a quantization block of the encoding.
            pub fn block_bytes(self) -> u64 {
                match self { $(GgmlType::$name => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2K = 10, "Q2_K", 256, 84;
    Q3K = 11, "Q3_K", 256, 110;
    Q4K = 12, "Q4_K", 256, 144;
    Q5K = 13, "Q5_K", 256, 176;
    Q6K = 14, "Q6_K", 256, 210;
    Q8K = 15, "Q8_K", 256, 292;
    Iq2Xxs = 16, "IQ2_XXS", 256, 66;
    Iq2Xs = 17, "IQ2_XS", 256, 74;
    Iq3Xxs = 18, "IQ3_XXS", 256, 98;
    Iq1S = 19, "IQ1_S", 256, 50;
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    Iq3S = 21, "IQ3_S", 256, 110;
    Iq2S = 22, "IQ2_S", 256, 82;
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    Iq1M = 29, "IQ1_M", 256, 56;
    Bf16 = 30, "BF16", 1, 2;
    Tq1_0 = 34, "TQ1_0", 256, 54;
    Tq2_0 = 35, "TQ2_0", 256, 66;
    Mxfp4 = 39, "MXFP4", 32, 17;
}

impl GgmlType {
    /// Returns the encoding as the op set names it; `None` if no device can load tensors of the encoding.
    pub fn source(self) -> Option<SourceType> {
        Some(match self {
            GgmlType::F32 => SourceType::F32,
            GgmlType::F16 => SourceType::F16,
            GgmlType::Bf16 => SourceType::Bf16,
            GgmlType::Q4_0 => SourceType::Q4_0,
            GgmlType::Q4_1 => SourceType::Q4_1,
            GgmlType::Q5_0 => SourceType::Q5_0,
            GgmlType::Q5_1 => SourceType::Q5_1,
            GgmlType::Q8_0 => SourceType::Q8_0,
            GgmlType::Q2K => SourceType::Q2K,
            GgmlType::Q3K => SourceType::Q3K,
            GgmlType::Q4K => SourceType::Q4K,
            GgmlType::Q5K => SourceType::Q5K,
            GgmlType::Q6K => SourceType::Q6K,
            _ => return None,
        })
    }

    /// Returns the bytes of a tensor of the encoding with the dimensions `dims` (fastest-running first); `None` if rows
    /// are not whole quantization blocks, a dimension is 0, or a product overflows.
    pub(super) fn tensor_bytes(self, dims: &[u64]) -> Option<u64> {
        let (&columns, outer) = dims.split_first()?;
        if columns == 0 || columns % self.block_weights() != 0 {
            return None;
        }
        let row = (columns / self.block_weights()).checked_mul(self.block_bytes())?;
        outer.iter().try_fold(row, |bytes, &dim| bytes.checked_mul(dim)).filter(|&bytes| bytes > 0)
    }
}
