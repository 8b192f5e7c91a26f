//! The scheduler: every live sequence's state, the step plan and the choice of victims.
//!
//! One cycle: [`Scheduler::plan`] says what the next step would like; the block store answers with
//! grants; [`Scheduler::granted`] turns them into a [`StepBatch`](tiercel_device::StepBatch); the device
//! runs it; [`Scheduler::step_done`] believes its results. Between cycles arrive requests, cancels,
//! operator commands and completions of copies. What each event does in each phase of a sequence is the
//! table in `docs/phases.md`.

mod ahead;
mod batch;
mod capacity;
mod cost;
mod deadlines;
mod derivation;
mod events;
mod invariants;
#[cfg(test)]
mod keeping_tests;
#[cfg(test)]
mod knob_tests;
mod order;
mod outcome;
mod pace;
#[cfg(test)]
mod pace_tests;
#[cfg(test)]
mod phase_table;
mod pipeline;
#[cfg(test)]
mod pipeline_tests;
mod placing;
mod plan;
mod prompts;
mod rank;
mod reservation;
mod reserve;
mod roster;
mod sequence;
#[cfg(test)]
mod share_tests;
mod shares;
#[cfg(test)]
mod shortage_tests;
mod starvation;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod turn_tests;
mod turns;
mod victims;

pub use cost::{CostError, CostModel, StepWork};
pub use order::PredictionError;
pub use outcome::{Effect, EndReport, FinishReason, PreemptDecision, RequestFault, Usage};
pub use reservation::Kept;
pub use sequence::{Hold, NewSequence, Phase};
pub use state::{Census, Counters, Scheduler};
