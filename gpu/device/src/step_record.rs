//! What a step held and how long everything about it took: what a model of step times is fitted to.

use serde::{Deserialize, Serialize};

/// One step, as the engine saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its number.
    pub step: u64,
    /// Sequences that decoded one token.
    pub decode_tokens: u32,
    /// Tokens of KV that these read, their own included.
    pub kv_tokens: u64,
    /// Prompt tokens.
    pub prefill_tokens: u32,
    /// Pairs of a prompt token and one before it.
    pub prefill_context: u64,
    /// Tokens it sampled.
    pub sampled: u32,
    /// When its end was seen, engine time, us.
    pub ended_at_us: u64,
    /// What the device took, sampling included, us.
    pub device_us: u64,
    /// From when its end could be expected at the earliest until it was seen, us: since it was submitted, or since the
    /// step before it ended if that was later.
    pub elapsed_us: u64,
    /// From the end of the step before it until it was submitted, us: what the host took to hand out tokens and to plan.
    /// `None` if the engine was idle between the two steps, or another step was in flight.
    pub host_us: Option<u64>,
}
