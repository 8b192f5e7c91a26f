//! The step budget: how long the next step may be, and which part of its time prompts may use.

pub(crate) mod derived_targets;
pub(crate) mod prefill_demand;
pub(crate) mod prefill_time;
pub(crate) mod slack;
pub(crate) mod slack_reserve;
pub(crate) mod step_budget;

#[cfg(test)]
pub(crate) mod fixtures;
