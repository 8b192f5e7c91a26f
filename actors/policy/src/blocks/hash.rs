//! Names of full blocks.

use tiercel_device::{SeqId, TokenId};

/// Name of a full block: the hash of all tokens up to its end, chained and salted, 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 16]);

/// Separates the names of different tenants (or, with prefix caching off, of every sequence), so that
/// nobody can probe what others have cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Salt(pub [u8; 16]);

impl Salt {
    /// A salt that no other sequence of the engine has.
    pub fn of_sequence(seq: SeqId) -> Salt {
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&seq.0.to_le_bytes());
        Salt(salt)
    }
}

/// Name of the block holding `tokens`, which follows the block named `parent` (`None`: it is the
/// first). BLAKE3, so that a client cannot construct two prompts with one name.
pub fn hash_block(salt: Salt, parent: Option<BlockHash>, tokens: &[TokenId]) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    match parent {
        Some(parent) => hasher.update(&parent.0),
        None => hasher.update(&salt.0),
    };
    hasher.update(&[u8::from(parent.is_some())]);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    let mut name = [0; 16];
    name.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    BlockHash(name)
}
