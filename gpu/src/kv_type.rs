//! Number types of the KV cache (setting `kv.type`).

use std::fmt;

/// Number type in which KV blocks store keys and values (the `--kv-type` setting). The CPU computes attention in f32
/// whatever the stored type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 32-bit IEEE float: keys and values are stored exactly.
    F32,
    /// 16-bit IEEE float (half): 11 bits of precision, values up to 65504.
    F16,
    /// bfloat16: 8 bits of precision, the range of f32.
    Bf16,
    /// 8-bit integers from -127 to 127, with one f32 scale for the key and one for the value of each token and kv head
    /// in each layer. A scale belongs to one token alone, so that a token written later never changes what is stored
    /// of earlier tokens.
    Q8,
}

impl KvType {
    /// Returns the size of one stored element of the KV cache, bytes.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
            KvType::Q8 => 1,
        }
    }

    /// Returns the size of the scale that is stored with each key and each value of a kv head, bytes; 0 for types
    /// without scales.
    pub const fn scale_bytes(self) -> usize {
        match self {
            KvType::F32 | KvType::F16 | KvType::Bf16 => 0,
            KvType::Q8 => size_of::<f32>(),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8 => "q8",
        })
    }
}
