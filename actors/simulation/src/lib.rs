//! Simulation of an engine with the mock device under simulated time. The production actors and messages run on one
//! arbiter (thread) whose clock is paused. Hours of traffic run in seconds, and a seed replays exactly.
//!
//! ```
//! use tiercel_simulation::{Laboratory, simulate};
//!
//! let tokens = simulate(async |clock| {
//!     let mut laboratory = Laboratory::tiny(clock);
//!     laboratory.device.host_blocks = 64;
//!     let engine = laboratory.start();
//!     let stream = engine.submit(tiercel_simulation::request(&[1, 2, 3], 5)).await.expect("room");
//!     tiercel_simulation::collect(stream).await.tokens.len()
//! });
//! assert_eq!(tokens, 5);
//! ```

mod comparison;
mod experiment;
pub mod fuzz;
mod gaps;
mod laboratory;
mod outcome;
mod page;
mod perfetto;
mod prompt;
mod record;
mod recorded;
mod replay;
mod sizes;
pub mod trace;
mod traffic;
pub mod what_if;

pub use comparison::{Comparison, PolicyRuns};
pub use experiment::{Experiment, ExperimentError};
pub use gaps::GapSummary;
pub use laboratory::{Collected, Laboratory, collect, request, simulate};
pub use outcome::{Outcome, TierOutcome};
pub use page::{MAX_PAGE_POLICIES, Page};
pub use perfetto::{EngineFacts, Named, perfetto};
pub use recorded::{lines, stated};
pub use sizes::Sizes;

/// Compiles and runs the code examples of the developers' page (`docs/developer.md`) as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/developer.md")]
pub struct DeveloperPage;
