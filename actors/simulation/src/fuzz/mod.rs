//! Fuzzing: random hostile scenarios, played against the production actors, and checks of each run.
//!
//! A [`Scenario`] is a function of its seed: a device with hardly any memory, settings at their limits, clients that
//! leave, stop or read slowly, an operator who interferes, faults and a drain. [`Scenario::run`] plays the scenario
//! under simulated time and returns the first check that failed. Equal seeds give equal runs.
//!
//! | file | one job |
//! |---|---|
//! | `scenario` | the parts of a scenario |
//! | `dice`, `draw`, `knobs`, `crowd` | draw a scenario: choices, device, settings, policy, clients, operator |
//! | `client` | one client, from its request to its last event |
//! | `run` | plays a scenario to its end |
//! | `checks` | checks of each request and of the totals |
//! | `panics` | catches panics and keeps their messages |
//! | `campaign` | plays many seeds and reduces failing scenarios |

mod campaign;
mod checks;
mod client;
mod crowd;
mod dice;
mod draw;
mod knobs;
mod panics;
mod run;
mod scenario;

pub use campaign::{Campaign, Finding, Tally};
pub use run::{Failure, Summary};
pub use scenario::{Act, Client, DrainPlan, Habit, Order, Scenario, Waiting};
