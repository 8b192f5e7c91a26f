//! The cost model: predicted times of steps and copies on this device, corrected by each observation. From these times
//! follows the cost of a preemption: copying the victim's blocks out and back (swap), or computing them again
//! (recompute).

use crate::ewma::Ewma;
use crate::protocol::ResumeCosts;
use tiercel_device::{DeviceInfo, DeviceProfile};

/// Work of a step: the sizes from which the duration of the step is predicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Number of sequences that decode one token in the step.
    pub decode_tokens: u32,
    /// KV tokens that the decoding sequences read in the step: the sum of their lengths.
    pub kv_tokens: u64,
    /// Number of prompt tokens that the step computes.
    pub prefill_tokens: u32,
    /// Attention work of prompts: number of pairs of a prompt token that the step computes and an earlier token of its
    /// sequence.
    pub prefill_context: u64,
}

impl StepWork {
    /// Adds to the work of a step the decode of one token of a sequence with `len` known tokens.
    pub fn add_decode(&mut self, len: u32) {
        self.decode_tokens += 1;
        self.kv_tokens += u64::from(len);
    }

    /// Adds to the work of a step a chunk of a prompt: `tokens` tokens that follow the first `computed` tokens.
    pub fn add_prefill(&mut self, tokens: u32, computed: u32) {
        self.prefill_tokens += tokens;
        self.prefill_context += pairs(tokens, computed);
    }
}

/// Returns the attention work of a chunk of a prompt: the number of pairs of one of its `tokens` tokens and an earlier
/// token of the sequence. The chunk follows the first `computed` tokens.
fn pairs(tokens: u32, computed: u32) -> u64 {
    let tokens = u64::from(tokens);
    tokens * u64::from(computed) + tokens * tokens.saturating_sub(1) / 2
}

/// Model that predicts the times of steps and copies on this device. The model starts from the speeds that the device
/// measured of itself. Every observed step and copy corrects the model, because neither the measurements nor the model
/// are exact.
#[derive(Debug, Clone)]
pub struct CostModel {
    /// Speeds that the device reports at its start: measured, or stated by the profile of a mock device.
    profile: DeviceProfile,
    /// Size of a KV block, bytes.
    block_bytes: f64,
    /// Number of tokens in a KV block.
    block_size: u32,
    /// Correction of predicted step times by observed ones.
    steps: Correction,
    /// Correction of predicted copy times by observed ones.
    copies: Correction,
}

/// Errors of predicted times: mean of |predicted / observed - 1| over about the last twenty observations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CostError {
    /// Mean relative error of predicted step times.
    pub step: f64,
    /// Mean relative error of predicted copy times.
    pub copy: f64,
}

/// Weight of a new observation in the correction of predicted times and in the mean of their errors.
const SMOOTHING: f64 = 0.05;
/// Decay towards the device's own measurement: each observation shrinks the logarithm of the correction factor by this
/// share. For a device twice or half as fast as measured, this makes predictions wrong by less than 1 %.
const PULL: f64 = SMOOTHING / 100.0;
/// Relative rounding error that a number of tokens computed from a time may have. Without it, the time that exactly a
/// whole prompt takes would often hold one token less, and the prompt would need another step.
const ROUNDING: f64 = 1e-9;

impl CostModel {
    /// Creates the cost model of a device that measured its own speeds as `profile`.
    pub fn new(profile: DeviceProfile, info: &DeviceInfo) -> CostModel {
        CostModel {
            profile,
            block_bytes: info.block_bytes as f64,
            block_size: info.block_size,
            steps: Correction::new(),
            copies: Correction::new(),
        }
    }

    /// Returns the predicted duration of a step, us.
    pub fn step_us(&self, work: &StepWork) -> f64 {
        let p = &self.profile;
        let model = p.step_base_us
            + p.decode_token_us * f64::from(work.decode_tokens)
            + p.kv_token_us * work.kv_tokens as f64
            + p.prefill_token_us * f64::from(work.prefill_tokens)
            + p.prefill_context_us * work.prefill_context as f64;
        model * self.steps.ratio
    }

    /// Returns the correction factor of step times: observed step time / step time predicted without correction,
    /// smoothed; 1 before the first step.
    pub fn step_correction(&self) -> f64 {
        self.steps.ratio
    }

    /// Returns the speeds that the device reported at its start, with step times multiplied by `correction`.
    pub(crate) fn speed_at(&self, correction: f64) -> DeviceProfile {
        let p = &self.profile;
        let corrected = |us: f64| us * correction;
        DeviceProfile {
            step_base_us: corrected(p.step_base_us),
            decode_token_us: corrected(p.decode_token_us),
            prefill_token_us: corrected(p.prefill_token_us),
            kv_token_us: corrected(p.kv_token_us),
            prefill_context_us: corrected(p.prefill_context_us),
            link_bytes_per_s: p.link_bytes_per_s,
        }
    }

    /// Returns the time that a decode of a sequence with `len` known tokens adds to a step, us.
    pub fn decode_us(&self, len: u32) -> f64 {
        let p = &self.profile;
        (p.decode_token_us + p.kv_token_us * f64::from(len)) * self.steps.ratio
    }

    /// Returns the time that a chunk of a prompt adds to a step, us: `tokens` tokens that follow the first `computed`.
    pub fn prefill_us(&self, tokens: u32, computed: u32) -> f64 {
        let p = &self.profile;
        let model = p.prefill_token_us * f64::from(tokens)
            + p.prefill_context_us * pairs(tokens, computed) as f64;
        model * self.steps.ratio
    }

    /// Returns the largest chunk of a prompt, in tokens, that adds at most `us` microseconds to a step. The chunk
    /// follows the first `computed` tokens.
    pub fn prefill_tokens_in(&self, us: f64, computed: u32) -> u32 {
        let p = &self.profile;
        let us = us / self.steps.ratio;
        // Solve `half * n^2 + linear * n = us` for the number of prompt tokens n. The cast to `u32` saturates.
        let half = p.prefill_context_us / 2.0;
        let linear = p.prefill_token_us + p.prefill_context_us * (f64::from(computed) - 0.5);
        if us <= 0.0 {
            return 0;
        }
        if us.is_infinite() {
            return u32::MAX;
        }
        let root = (linear * linear + 4.0 * half * us).sqrt();
        let tokens = 2.0 * us / (linear + root).max(1e-6);
        (tokens * (1.0 + ROUNDING)) as u32
    }

    /// Returns the time to copy `blocks` KV blocks in one direction between device and host, us; infinite without a
    /// host pool.
    pub fn copy_us(&self, blocks: u32) -> f64 {
        if self.profile.link_bytes_per_s <= 0.0 {
            return f64::INFINITY;
        }
        let bytes = f64::from(blocks) * self.block_bytes;
        bytes / self.profile.link_bytes_per_s * 1e6 * self.copies.ratio
    }

    /// Returns the device time to recompute the first `tokens` tokens of a sequence, us, without the fixed cost of a
    /// step, which other sequences share.
    pub fn recompute_us(&self, tokens: u32) -> f64 {
        self.prefill_us(tokens, 0)
    }

    /// Returns the device time that a request adds to its steps, us: prefill of `computed` prompt tokens, and decode of
    /// `output` tokens after a prompt of `prompt` tokens.
    pub(crate) fn request_us(&self, computed: u32, output: f64, prompt: u32) -> f64 {
        self.prefill_us(computed, 0) + output * self.decode_us(prompt)
    }

    /// Returns the costs of copying and of recomputing a block, by which the block store decides how to resume
    /// sequences and which to preempt.
    pub(crate) fn resume_costs(&self) -> ResumeCosts {
        let first_block_us = self.prefill_us(self.block_size, 0);
        ResumeCosts {
            copy_us: self.copy_us(1),
            first_block_us,
            block_before_us: self.prefill_us(self.block_size, self.block_size) - first_block_us,
        }
    }

    /// Whether a swap is cheaper than a recompute for a sequence with `computed` valid tokens: copying its full blocks
    /// to the host and back takes less time than computing them again.
    pub fn swap_is_cheaper(&self, computed: u32) -> bool {
        let blocks = computed / self.block_size;
        if blocks == 0 {
            return false;
        }
        2.0 * self.copy_us(blocks) < self.recompute_us(blocks * self.block_size)
    }

    /// Returns the errors of predicted step and copy times.
    pub fn error(&self) -> CostError {
        CostError { step: self.steps.error.mean(), copy: self.copies.error.mean() }
    }

    /// Corrects predicted step times by a step with the work `work` that took `observed_us`.
    pub fn observe_step(&mut self, work: &StepWork, observed_us: u64) {
        let predicted_us = self.step_us(work);
        self.steps.observe(predicted_us, observed_us);
    }

    /// Corrects predicted copy times by a copy of `blocks` blocks that took `observed_us`.
    pub fn observe_copy(&mut self, blocks: u32, observed_us: u64) {
        let predicted_us = self.copy_us(blocks);
        if predicted_us.is_finite() {
            self.copies.observe(predicted_us, observed_us);
        }
    }
}

/// Correction factor of predicted times, learned from observed times, and the mean error of the predictions.
#[derive(Debug, Clone)]
struct Correction {
    /// Smoothed ratio of the observed time to the time that the model predicts without correction. Predictions are
    /// multiplied by this ratio.
    ratio: f64,
    /// Mean of |predicted / observed - 1|: a plain mean while there are few observations, then over about the last
    /// twenty.
    error: Ewma,
    /// Number of observed times so far.
    seen: u32,
}

impl Correction {
    fn new() -> Correction {
        Correction { ratio: 1.0, error: Ewma::starting_at(0.0, SMOOTHING), seen: 0 }
    }

    /// Updates the correction factor and the mean error by one predicted and observed time. One outlier changes the
    /// factor by at most four times the smoothing (20 %), so that a hiccup of the machine does not count as its speed.
    fn observe(&mut self, predicted_us: f64, observed_us: u64) {
        if observed_us == 0 {
            return;
        }
        self.seen = self.seen.saturating_add(1);
        let off = (predicted_us / observed_us as f64 - 1.0).abs();
        self.error.observe_as(1.0 / f64::from(self.seen), off);
        if predicted_us > 0.0 {
            let ratio = (observed_us as f64 / predicted_us).clamp(0.2, 5.0);
            let learned = self.ratio * (1.0 + SMOOTHING * (ratio - 1.0));
            self.ratio = (learned * self.ratio.powf(-PULL)).clamp(0.01, 100.0);
        }
    }
}

#[cfg(test)]
mod tests;
