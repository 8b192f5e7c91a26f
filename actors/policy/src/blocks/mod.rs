//! The block store: the device pool and the host pool of KV blocks, whose full blocks are found by their content.
//!
//! [`BlockStore`] owns every block of both pools. A full block is named by the chained [hash](hash_block) of the tokens
//! up to its end. Sequences share named blocks; every other block belongs to one sequence.
//!
//! | file | one job |
//! |---|---|
//! | `hash` | names of full blocks |
//! | `pool`, `cached` | one pool: holders, names, order of reuse |
//! | `sequence` | one sequence: phase, table, pins |
//! | `transfers` | copies queued and under way |
//! | `store` | the state, progress, release |
//! | `reserve`, `open`, `victims` | a step request: growing, opening, choosing victims |
//! | `preempt` | prepare, commit, abort |
//! | `mirror` | copies ahead of need |
//! | `copies` | copies starting and ending |
//! | `invariants` | invariants of the store |
//! | `map` | numbers of blocks by state and owner's tier, for operators |
//! | `snapshot` | configuration and usage of the store |
//!
//! Phases of a sequence in the store, and its phase after each call. A dash means that the call does nothing or is
//! refused. A sequence is parked after its preemption as long as it has pins, copies or retained blocks, and unknown
//! without them:
//!
//! | phase | Grow | Open | taken as victim | commit | abort | copies end | release |
//! |---|---|---|---|---|---|---|---|
//! | unknown | - | Running or Opening | - | - | - | - | - |
//! | Running | Running | - | Preempting or Parked | - | - | - | unknown |
//! | Preempting | - | - | - | Parked | Running | Preempting, event | unknown |
//! | Parked | - | Running or Opening | Parked (gives retained blocks) | - | - | Parked | unknown |
//! | Opening | - | - | - | - | - | Running, event | unknown |

mod cached;
mod copies;
mod hash;
mod invariants;
mod map;
mod mirror;
mod open;
mod pool;
mod preempt;
mod reserve;
mod sequence;
mod snapshot;
mod store;
mod transfers;
mod victims;

pub use hash::{BlockHash, Salt, hash_block};
pub use map::{BlockMap, OwnedBlocks, PoolMap};
pub use snapshot::{StoreConfig, StoreSnapshot, TierUsage, Violation};
pub use store::BlockStore;
