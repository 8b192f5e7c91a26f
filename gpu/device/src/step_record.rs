//! Records of the work and the duration of steps, to which models of step times are fitted.

use serde::{Deserialize, Serialize};

/// Work and times of one step, as the engine measured them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepRecord {
    /// Number of the step that the record describes.
    pub step: u64,
    /// Number of sequences of the step that decoded one token.
    pub decode_tokens: u32,
    /// Number of tokens whose KV the decodes of the step read, the decoded sequences' newest tokens included.
    pub kv_tokens: u64,
    /// Number of prefill tokens of the step: prompt tokens, and tokens that were recomputed after a preemption.
    pub prefill_tokens: u32,
    /// Number of pairs of a prefill token of the step and a token before it in its sequence.
    pub prefill_context: u64,
    /// Number of slices of the step from which a token was sampled.
    pub sampled: u32,
    /// Engine time at which the engine saw the end of the step, us.
    pub ended_at_us: u64,
    /// Time that the device took for the step, sampling included, us.
    pub device_us: u64,
    /// Time from the submission of the step (or from the end of the step before, if that is later) until the engine saw
    /// the step's end, us.
    pub elapsed_us: u64,
    /// Time from the end of the step before to the submission of the step, us: the host hands out tokens and plans.
    /// `None` if between the two steps the engine was idle or a plan got no blocks, or if another step was in flight.
    pub host_us: Option<u64>,
    /// Time from when the Scheduler began to plan the step until its submission, us: the policy, and the BlockManager's
    /// answer to it.
    #[serde(default)]
    pub planning_us: u64,
}
