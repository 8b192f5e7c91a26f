//! The block store: two tiers of KV blocks, content-addressed.

mod hash;
mod snapshot;
mod store;

pub use hash::{BlockHash, Salt, hash_block};
pub use snapshot::{StoreConfig, StoreSnapshot, TierUsage, Violation};
pub use store::BlockStore;
