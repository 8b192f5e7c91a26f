//! A map with sequence ids as keys. Each step looks up hundreds of sequences several times each, so the hash is made to
//! be cheap.

use crate::SeqId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Map from sequence ids to values of one type. Its order of iteration is arbitrary, so do not iterate it where order
/// matters.
pub type BySeq<T> = HashMap<SeqId, T, BuildHasherDefault<SeqIdHasher>>;

/// Hasher of sequence ids. The ids count up and no client chooses them, so one multiplication spreads them well enough.
#[derive(Debug, Default, Clone, Copy)]
pub struct SeqIdHasher(u64);

impl Hasher for SeqIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, id: u64) {
        // Hashes a sequence id: multiplies it by the bits of the golden ratio (Knuth, volume 3, 6.4), and rotates by 32
        // bits, because the hash map uses both the highest and the lowest bits of a hash.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
}
