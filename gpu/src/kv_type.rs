//! Element type of the KV cache.

use std::fmt;

/// How keys and values are stored in KV blocks (the `--kv-type` setting). Arithmetic is f32 in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvType {
    /// IEEE single: exact.
    F32,
    /// IEEE half: 11 bits of precision, values up to 65504.
    F16,
    /// bfloat16: 8 bits of precision, the range of f32.
    Bf16,
}

impl KvType {
    /// Size of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
        })
    }
}
