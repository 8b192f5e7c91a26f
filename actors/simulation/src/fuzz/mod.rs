//! Hostile scenarios from seeds, run against the production actors, and what must hold in each.
//!
//! A [`Scenario`] is a function of one number: a device with hardly any memory, settings at their limits, clients
//! who leave, stop and read slowly, an operator who interferes, faults, a drain. [`Scenario::run`] plays it under
//! simulated time and says what did not hold; the same number always plays the same.
//!
//! | file | one job |
//! |---|---|
//! | `scenario` | what a scenario is made of |
//! | `dice`, `draw`, `crowd` | drawing one: choices, the machine, the people |
//! | `client` | one client, from its request to its last event |
//! | `run` | plays a scenario to its end |
//! | `checks` | what must hold of each request and of the totals |
//! | `panics` | what a panic said |
//! | `campaign` | many seeds, and the fewest requests of one that fails |

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
pub use scenario::{Act, Client, DrainPlan, Habit, Order, Scenario};
