//! The scheduling policy: decisions as pure functions, `(state, event, now) -> decisions`, without clock, channel or
//! I/O. The invariants are functions that tests, the simulator and debug builds all call.

pub mod accounting;
pub mod admission;
pub mod blocks;
mod by_id;
mod ewma;
pub mod pressure;
mod protocol;
pub mod scheduler;
pub mod slo;
mod weight;

pub use protocol::{
    Grant, GrantOutcome, PreemptOutcome, Preempted, Progress, Release, ResumeCosts, StepGrant,
    StepRequest, StoreEvent, Victim, Want, WantKind,
};
pub use weight::Weight;
