//! A map from sequences to anything, looked up several times for each of hundreds of sequences in every step.

use crate::SeqId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Something for each of some sequences. Look it up, but do not iterate it where order matters.
pub type BySeq<T> = HashMap<SeqId, T, BuildHasherDefault<SeqIdHasher>>;

/// Ids count up and nobody outside chooses them: one multiplication spreads them well enough.
#[derive(Debug, Default, Clone, Copy)]
pub struct SeqIdHasher(u64);

impl Hasher for SeqIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, id: u64) {
        // The golden ratio's bits (Knuth, volume 3, 6.4). The map looks at both ends of the hash.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
}
