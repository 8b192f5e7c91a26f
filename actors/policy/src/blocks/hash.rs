//! Block names: hashes of the content of full KV blocks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use tiercel_device::{SeqId, TokenId};

/// Name of a full KV block: a salted 128-bit hash of all tokens up to the block's end, chained from block to block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 16]);

impl Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

/// Hash map with block names as keys. It is only looked up, never iterated.
pub(super) type ByName<T> = HashMap<BlockHash, T, BuildHasherDefault<NameHasher>>;

/// Hasher for block names. Names are hashes already, and no client can choose them, so the first half of a name serves
/// as its hash value.
#[derive(Debug, Default)]
pub(super) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

/// Salt (namespace) of block names: separates the blocks of different tenants, or with prefix caching off of different
/// sequences, so that no tenant can probe what others have cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(pub [u8; 16]);

impl Salt {
    /// Returns a salt that no other sequence of the engine has, so that its blocks are never shared.
    pub fn of_sequence(seq: SeqId) -> Salt {
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&seq.0.to_le_bytes());
        Salt(salt)
    }

    /// Returns the salt of a namespace within this one. No client can compute the salt without knowing this salt.
    pub fn within(self, namespace: &str) -> Salt {
        let mut hasher = blake3::Hasher::new_derive_key("tiercel: namespace of a tenant's cache");
        hasher.update(&self.0).update(namespace.as_bytes());
        let mut salt = [0; 16];
        salt.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Salt(salt)
    }

    /// Returns the first digits of the salt in hexadecimal, to identify a tenant in logs and metrics. A tenant has the
    /// same label after a restart if the tenant's salt is the same.
    pub fn label(self) -> String {
        self.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the name (chained hash) of the block that holds `tokens` and follows the block named `parent`; the first
/// block of a sequence has no parent (`None`). Uses BLAKE3, so that a client cannot construct two prompts with the same
/// name.
pub fn hash_block(salt: Salt, parent: Option<BlockHash>, tokens: &[TokenId]) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    match parent {
        Some(parent) => hasher.update(&parent.0),
        None => hasher.update(&salt.0),
    };
    hasher.update(&[u8::from(parent.is_some())]);
    // Hash up to 64 tokens per call of the hasher, because the overhead of a call outweighs the hashing itself.
    for tokens in tokens.chunks(64) {
        let mut bytes = [0; 256];
        for (token, bytes) in tokens.iter().zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..4 * tokens.len()]);
    }
    let mut name = [0; 16];
    name.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    BlockHash(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_token_of_a_block_is_part_of_its_name() {
        for len in [1, 2, 3, 16, 64, 65, 200] {
            let mut tokens: Vec<TokenId> = (0..len).collect();
            let name = |tokens: &[TokenId]| hash_block(Salt([0; 16]), None, tokens);
            let mut names = BTreeSet::from([name(&tokens)]);
            for at in 0..tokens.len() {
                // Change one bit of the highest byte.
                tokens[at] ^= 1 << 24;
                names.insert(name(&tokens));
                tokens[at] ^= 1 << 24;
            }
            assert_eq!(names.len(), len as usize + 1, "{len} tokens");
        }
    }

    #[test]
    fn a_name_depends_on_the_salt_and_on_the_block_before() {
        let (salt, parent) = (Salt([1; 16]), BlockHash([1; 16]));
        let names = [
            hash_block(salt, None, &[1, 2]),
            hash_block(Salt([2; 16]), None, &[1, 2]),
            hash_block(salt, Some(parent), &[1, 2]),
            hash_block(salt, Some(BlockHash([2; 16])), &[1, 2]),
        ];
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>().len(), 4);
    }
}
