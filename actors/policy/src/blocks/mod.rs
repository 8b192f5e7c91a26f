//! The block store: two tiers of KV blocks, content-addressed.
//!
//! [`BlockStore`] is the owner of every block of both tiers. A full block is named by the chained
//! [hash](hash_block) of the tokens up to its end; sequences share named blocks and own the rest.
//!
//! | file | one job |
//! |---|---|
//! | `hash` | names of full blocks |
//! | `pool`, `cached` | one tier: holders, names, order of reuse |
//! | `sequence` | one sequence: phase, table, pins |
//! | `transfers` | copies queued and under way |
//! | `store` | the state, progress, release |
//! | `reserve`, `open`, `victims` | a step request: growing, opening, who gives way |
//! | `preempt` | prepare, commit, abort |
//! | `mirror` | copies ahead of need |
//! | `copies` | copies starting and ending |
//! | `invariants` | what must always hold |
//! | `snapshot` | sizes in, usage out |
//!
//! Phases of a sequence, and what each call does to it (a dash: nothing, or refused):
//!
//! | phase | Grow | Open | prepare | commit | abort | copies end | release |
//! |---|---|---|---|---|---|---|---|
//! | unknown | - | Running or Opening | - | - | - | - | - |
//! | Running | Running | - | Preempting or Parked | - | - | - | unknown |
//! | Preempting | - | - | - | Parked | Running | Preempting, event | unknown |
//! | Parked | - | Running or Opening | - (a step request may take what it keeps) | - | - | Parked | unknown |
//! | Opening | - | - | - | - | - | Running, event | unknown |

mod cached;
mod copies;
mod hash;
mod invariants;
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
pub use snapshot::{StoreConfig, StoreSnapshot, TierUsage, Violation};
pub use store::BlockStore;
