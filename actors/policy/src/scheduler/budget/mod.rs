//! The step budget: how long the next step may be, and which part of its time prompts may use.

pub(crate) mod prefill_demand;
pub(crate) mod prefill_time;
pub(crate) mod slack;
pub(crate) mod slack_reserve;
pub(crate) mod step_budget;
pub(crate) mod target_source;

#[cfg(test)]
pub(crate) mod fixtures;
