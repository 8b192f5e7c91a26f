//! The scheduler: every live sequence's state, the step plan and the choice of victims.
//!
//! [`Scheduler`] takes events and gives out [`Action`]s. One cycle: a plan asks the block store for the blocks of the
//! next step ([`Action::Reserve`]); the block store answers with grants ([`Scheduler::granted`]), which become a batch
//! ([`Action::Submit`]); the device runs the batch, and [`Scheduler::step_done`] applies its results. Between cycles
//! come requests, cancellations, operators' commands and completed copies. The table in `docs/phases.md` says what each
//! event does in each phase of a sequence.
//!
//! | folder | holds |
//! |---|---|
//! | `sequence` | one sequence: text, KV, service, phase |
//! | `queue` | all sequences in the order of service, fair queues, ageing |
//! | `budget` | how long the next step may be: slack, slack reserve, prefill demand, derived targets |
//! | `lateness` | deadlines of first tokens, late and starving requests |
//! | `memory` | victims, reservations, mirroring |
//! | `plan` | the plan of a step, from candidates to wants (requests for blocks) |
//! | `pipeline` | steps in flight |
//!
//! Outside of tests, no file in these folders names `State`; each takes the parts that it needs as arguments. The files
//! beside the folders put the parts together: `state` owns the parts, `events`, `planning`, `grants` and `completion`
//! hand each event to the parts that it concerns, and `surface` is the interface for the rest of the engine.

mod basis;
mod budget;
mod candidate;
mod completion;
mod cost;
mod counters;
mod events;
mod grants;
mod inspect;
mod invariants;
mod lateness;
mod memory;
mod outbox;
mod outcome;
mod pipeline;
mod plan;
mod planning;
mod queue;
mod rules;
mod sequence;
mod state;
mod surface;
mod suspects;
#[cfg(test)]
mod tests;

pub use cost::{CostError, CostModel, StepWork};
pub use counters::{Census, Counters};
pub use inspect::{HeldBlocks, SequenceState, SequenceView, ServiceOrder};
pub use memory::reservation::Reservations;
pub use outcome::{Effect, EndReport, FinishReason, PreemptDecision, RequestFault, Usage};
pub use queue::length_predictor::PredictionError;
pub use sequence::{Hold, NewSequence, Phase};
#[cfg(test)]
pub(crate) use state::State;
pub use surface::{Action, Scheduler};
