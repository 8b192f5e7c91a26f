//! The block store: two tiers of KV blocks, content-addressed.

mod hash;

pub use hash::{BlockHash, Salt, hash_block};
