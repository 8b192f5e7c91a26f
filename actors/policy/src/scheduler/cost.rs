//! What preempting a sequence costs: copy its blocks out and back, or compute them again.

use crate::ewma::Ewma;
use crate::protocol::ResumeCosts;
use tiercel_device::{DeviceInfo, DeviceProfile};

/// What a step computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Sequences that decode one token.
    pub decode_tokens: u32,
    /// Tokens of KV that these read.
    pub kv_tokens: u64,
    /// Prompt tokens.
    pub prefill_tokens: u32,
    /// Pairs of a prompt token and one before it.
    pub prefill_context: u64,
}

impl StepWork {
    /// Adds a decode of a sequence of `len` known tokens.
    pub fn add_decode(&mut self, len: u32) {
        self.decode_tokens += 1;
        self.kv_tokens += u64::from(len);
    }

    /// Adds `tokens` of a prompt after the first `computed`.
    pub fn add_prefill(&mut self, tokens: u32, computed: u32) {
        self.prefill_tokens += tokens;
        self.prefill_context += pairs(tokens, computed);
    }
}

/// Pairs of one of `tokens` after the first `computed` and a token before it.
fn pairs(tokens: u32, computed: u32) -> u64 {
    let tokens = u64::from(tokens);
    tokens * u64::from(computed) + tokens * tokens.saturating_sub(1) / 2
}

/// Predicts step and copy times of this device. Starts from what the device measured of itself and is
/// corrected by every step, because neither is exact.
#[derive(Debug, Clone)]
pub struct CostModel {
    profile: DeviceProfile,
    block_bytes: f64,
    block_size: u32,
    /// Correction of step times.
    steps: Correction,
    /// Correction of copy times.
    copies: Correction,
}

/// How far predictions are off: mean of |predicted / observed - 1| over about the last twenty
/// observations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CostError {
    /// Of step times.
    pub step: f64,
    /// Of copy times.
    pub copy: f64,
}

/// Weight of a new observation.
const SMOOTHING: f64 = 0.05;
/// How strongly a correction is drawn back to what the device measured of itself, for each observation: its logarithm
/// becomes less by this share. A device twice or half as fast as it said is mistaken by less than one percent.
const PULL: f64 = SMOOTHING / 100.0;

impl CostModel {
    /// A model of a device that measured itself as `profile`.
    pub fn new(profile: DeviceProfile, info: &DeviceInfo) -> CostModel {
        CostModel {
            profile,
            block_bytes: info.block_bytes as f64,
            block_size: info.block_size,
            steps: Correction::new(),
            copies: Correction::new(),
        }
    }

    /// Predicted duration of a step, us.
    pub fn step_us(&self, work: &StepWork) -> f64 {
        let p = &self.profile;
        let model = p.step_base_us
            + p.decode_token_us * f64::from(work.decode_tokens)
            + p.kv_token_us * work.kv_tokens as f64
            + p.prefill_token_us * f64::from(work.prefill_tokens)
            + p.prefill_context_us * work.prefill_context as f64;
        model * self.steps.ratio
    }

    /// Observed over predicted step time, smoothed; 1 before the first step.
    pub fn step_correction(&self) -> f64 {
        self.steps.ratio
    }

    /// The speed of the device as its steps showed it.
    pub fn speed(&self) -> DeviceProfile {
        let p = &self.profile;
        let corrected = |us: f64| us * self.steps.ratio;
        DeviceProfile {
            step_base_us: corrected(p.step_base_us),
            decode_token_us: corrected(p.decode_token_us),
            prefill_token_us: corrected(p.prefill_token_us),
            kv_token_us: corrected(p.kv_token_us),
            prefill_context_us: corrected(p.prefill_context_us),
            link_bytes_per_s: p.link_bytes_per_s,
        }
    }

    /// What a decode of a sequence of `len` known tokens adds to a step, us.
    pub fn decode_us(&self, len: u32) -> f64 {
        let p = &self.profile;
        (p.decode_token_us + p.kv_token_us * f64::from(len)) * self.steps.ratio
    }

    /// What `tokens` of a prompt after the first `computed` add to a step, us.
    pub fn prefill_us(&self, tokens: u32, computed: u32) -> f64 {
        let p = &self.profile;
        let model = p.prefill_token_us * f64::from(tokens)
            + p.prefill_context_us * pairs(tokens, computed) as f64;
        model * self.steps.ratio
    }

    /// Most tokens of a prompt after the first `computed` that add no more than `us` to a step.
    pub fn prefill_tokens_in(&self, us: f64, computed: u32) -> u32 {
        let p = &self.profile;
        let us = us / self.steps.ratio;
        // The root of pair/2 * n^2 + linear * n = us; the casts saturate.
        let half = p.prefill_context_us / 2.0;
        let linear = p.prefill_token_us + p.prefill_context_us * (f64::from(computed) - 0.5);
        if us <= 0.0 {
            return 0;
        }
        if us.is_infinite() {
            return u32::MAX;
        }
        let root = (linear * linear + 4.0 * half * us).sqrt();
        (2.0 * us / (linear + root).max(1e-6)) as u32
    }

    /// Time to copy `blocks` one way, us; infinite without a host tier.
    pub fn copy_us(&self, blocks: u32) -> f64 {
        if self.profile.link_bytes_per_s <= 0.0 {
            return f64::INFINITY;
        }
        let bytes = f64::from(blocks) * self.block_bytes;
        bytes / self.profile.link_bytes_per_s * 1e6 * self.copies.ratio
    }

    /// Device time to compute the first `tokens` of a sequence again, us. Prefill shares steps with
    /// others, so the base cost of a step is not charged.
    pub fn recompute_us(&self, tokens: u32) -> f64 {
        self.prefill_us(tokens, 0)
    }

    /// Time that a request adds to steps, us: `computed` tokens of its prompt of `prompt` tokens, and `output` tokens.
    pub(crate) fn request_us(&self, computed: u32, output: f64, prompt: u32) -> f64 {
        self.prefill_us(computed, 0) + output * self.decode_us(prompt)
    }

    /// What the store needs to weigh copying against computing, and one victim against another.
    pub(crate) fn resume_costs(&self) -> ResumeCosts {
        let first_block_us = self.prefill_us(self.block_size, 0);
        ResumeCosts {
            copy_us: self.copy_us(1),
            first_block_us,
            block_before_us: self.prefill_us(self.block_size, self.block_size) - first_block_us,
        }
    }

    /// Whether copying the full blocks of a sequence of `computed` tokens out and back is cheaper than
    /// computing them again.
    pub fn swap_is_cheaper(&self, computed: u32) -> bool {
        let blocks = computed / self.block_size;
        if blocks == 0 {
            return false;
        }
        2.0 * self.copy_us(blocks) < self.recompute_us(blocks * self.block_size)
    }

    /// How far its predictions are off.
    pub fn error(&self) -> CostError {
        CostError { step: self.steps.error.mean(), copy: self.copies.error.mean() }
    }

    /// Corrects step times by an observation.
    pub fn observe_step(&mut self, work: &StepWork, observed_us: u64) {
        let predicted_us = self.step_us(work);
        self.steps.observe(predicted_us, observed_us);
    }

    /// Corrects copy times by an observation.
    pub fn observe_copy(&mut self, blocks: u32, observed_us: u64) {
        let predicted_us = self.copy_us(blocks);
        if predicted_us.is_finite() {
            self.copies.observe(predicted_us, observed_us);
        }
    }
}

/// Correction of predicted times by observed ones, and the error of the predictions.
#[derive(Debug, Clone)]
struct Correction {
    /// Observed divided by predicted time, smoothed; predictions are multiplied with it.
    ratio: f64,
    /// Mean of |predicted / observed - 1|: of all observations while they are few, then of about the last twenty.
    error: Ewma,
    /// Observations so far.
    seen: u32,
}

impl Correction {
    fn new() -> Correction {
        Correction { ratio: 1.0, error: Ewma::starting_at(0.0, SMOOTHING), seen: 0 }
    }

    /// Learns from a time that was predicted and observed. One outlier moves the ratio by at most four times the smoothing,
    /// so that a hiccup of the machine is not taken for its speed.
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
mod tests {
    use super::*;

    fn a100() -> CostModel {
        let profile = DeviceProfile {
            step_base_us: 16_000.0,
            decode_token_us: 25.0,
            prefill_token_us: 100.0,
            kv_token_us: 0.025,
            prefill_context_us: 0.0026,
            link_bytes_per_s: 25e9,
        };
        CostModel::new(profile, &info())
    }

    fn info() -> DeviceInfo {
        DeviceInfo {
            name: "test".into(),
            block_size: 16,
            device_blocks: 100,
            host_blocks: 100,
            block_bytes: 16 * 320 * 1024,
            max_steps_in_flight: 1,
            max_model_len: 8192,
            vocab_size: 1000,
        }
    }

    #[test]
    fn on_an_a100_a_round_trip_beats_a_prefill() {
        // 2048 tokens of 320 KiB at 25 GB/s take 27 ms each way; 10,000 tok/s of prefill 205 ms.
        let model = a100();
        let one_way_ms = model.copy_us(128) / 1000.0;
        assert!((one_way_ms - 26.8).abs() < 0.1, "{one_way_ms}");
        assert!(model.swap_is_cheaper(2048));
    }

    #[test]
    fn the_tokens_that_fit_a_time_are_as_many_as_take_it() {
        let model = a100();
        for computed in [0, 100, 16_000] {
            for us in [0.0, 50.0, 1_000.0, 90_000.0] {
                let tokens = model.prefill_tokens_in(us, computed);
                assert!(model.prefill_us(tokens, computed) <= us + 1e-6, "{computed} {us}");
                assert!(model.prefill_us(tokens + 1, computed) > us, "{computed} {us}");
            }
        }
        assert_eq!(model.prefill_tokens_in(f64::INFINITY, 7), u32::MAX);
        // 100 us a token, and 2.6 ns for each pair.
        assert!((model.prefill_us(1000, 8000) - (100_000.0 + 0.0026 * 8_499_500.0)).abs() < 1e-6);
    }

    #[test]
    fn blocks_are_recomputed_at_the_price_of_their_depth() {
        let model = a100();
        let costs = model.resume_costs();
        // 4,096 tokens, then all 8,192: each attends to all before it.
        for (depths, tokens) in [(0..256, 4096), (0..512, 8192)] {
            let priced_us = costs.recompute_us(depths);
            assert!((priced_us / model.recompute_us(tokens) - 1.0).abs() < 1e-9, "{priced_us}");
        }
        let halves = [costs.recompute_us(0..256), costs.recompute_us(256..512)];
        assert!(halves[1] > halves[0] + 40_000.0, "{halves:?}");
    }

    #[test]
    fn without_a_host_tier_nothing_is_swapped() {
        let profile = DeviceProfile { link_bytes_per_s: 0.0, ..a100().profile };
        assert!(!CostModel::new(profile, &info()).swap_is_cheaper(2048));
    }

    #[test]
    fn observations_converge_on_the_real_speed() {
        let mut model = a100();
        let decodes = StepWork { decode_tokens: 10, kv_tokens: 1000, ..StepWork::default() };
        for _ in 0..200 {
            model.observe_step(&decodes, 2 * 16_275);
        }
        let predicted = model.step_us(&decodes);
        assert!((predicted / (2.0 * 16_275.0) - 1.0).abs() < 0.02, "{predicted}");
        assert!(model.error().step < 0.02, "{:?}", model.error());
    }

    #[test]
    fn the_error_is_that_of_the_predictions() {
        let mut model = a100();
        // Every other step takes a tenth longer: predictions settle between the two.
        for step in 0..1000 {
            model.observe_step(&StepWork::default(), if step % 2 == 0 { 16_000 } else { 17_600 });
        }
        let error = model.error().step;
        assert!((0.04..0.06).contains(&error), "{error}");
        assert_eq!(model.error().copy, 0.0, "nothing was copied");
        model.observe_copy(100, (2.0 * model.copy_us(100)) as u64);
        assert!((model.error().copy - 0.5).abs() < 0.01, "of one");
    }

    #[test]
    fn a_device_far_from_what_it_said_is_learned_too() {
        for factor in [0.1, 10.0] {
            let mut model = a100();
            for _ in 0..2000 {
                model.observe_step(&StepWork::default(), (16_000.0 * factor) as u64);
            }
            let off = model.step_us(&StepWork::default()) / (16_000.0 * factor) - 1.0;
            assert!(off.abs() < 0.03, "{factor}: {off}");
        }
    }

    #[test]
    fn corrections_are_bounded() {
        let mut model = a100();
        for _ in 0..10_000 {
            model.observe_copy(1, 1);
        }
        let slow = a100().copy_us(1000);
        assert!(model.copy_us(1000) >= slow / 100.0 && model.copy_us(1000) < slow);
    }
}
