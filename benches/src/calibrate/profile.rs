//! Makes the device profile of a server from the records of its steps.

use crate::calibrate::fit::{fit, fit_near, predicted};
use crate::calibrate::spread;
use serde_json::Value;
use tiercel_device::{
    DeviceInfo, DeviceProfile, HostCosts, MockProfile, ServerSizes, StepNoise, StepRecord,
};

/// Number of cost columns in the linear model of a step's device time: the fixed cost per step, then the costs in the
/// order of `MockProfile`'s fields.
const COSTS: usize = 6;
/// Longest pace, seconds.
const MAX_PACE_S: f64 = 86_400.0;
/// Link speed of a profile whose server has no host pool, bytes per second: such a server copies no blocks, so any
/// positive number would do.
const NO_LINK_BYTES_PER_S: f64 = 1e9;

/// Facts about a server that its profile needs beside its steps.
#[derive(Debug, Clone, Copy)]
pub struct ServerFacts<'a> {
    /// Sizes of the device.
    pub device: &'a DeviceInfo,
    /// Speeds that the device measured of itself at the start.
    pub measured: DeviceProfile,
    /// Engine settings of the server.
    pub settings: &'a Value,
}

/// Profile that was fitted to the steps of a server.
#[derive(Debug, Clone)]
pub struct FittedProfile {
    /// Profile of the server.
    pub profile: MockProfile,
    /// Mean relative error of the fitted step costs, percent: the mean of |observed / predicted - 1| over the device
    /// times of the steps.
    pub error_percent: f64,
    /// For each step the time at which it began, s, and its observed and its predicted time, us.
    steps: Vec<(f64, f64, f64)>,
}

impl ServerFacts<'_> {
    /// Returns the profile by the speeds that the device measured of itself at the start, for a server with too few
    /// steps.
    pub fn as_measured(&self, name: String) -> MockProfile {
        self.profile(name, self.measured_costs(), HostCosts::default(), StepNoise::default())
    }

    /// Returns the costs of the columns of [`work`] by the speeds that the device measured of itself at the start.
    fn measured_costs(&self) -> [f64; COSTS] {
        let DeviceProfile { step_base_us, decode_token_us, prefill_token_us, kv_token_us, .. } =
            self.measured;
        let prefill_context_us = self.measured.prefill_context_us;
        [step_base_us, decode_token_us, prefill_token_us, kv_token_us, prefill_context_us, 0.0]
    }

    /// Fits a profile to the steps of the server; `None` if there are fewer steps than costs. `outside` is the time
    /// that requests spend outside the engine.
    pub fn fitted(
        &self,
        name: String,
        steps: &[StepRecord],
        outside: HostCosts,
    ) -> Option<FittedProfile> {
        let cpu = self.device.is_cpu();
        let rows: Vec<_> =
            steps.iter().map(|step| (work(step, cpu), step.device_us as f64)).collect();
        // Under one load, the numbers of decode tokens and of KV tokens in a step rise and fall together. The step
        // times then tell only the sum of the two costs, and the speeds that a CPU measured at its start divide the
        // sum.
        let costs = if cpu { fit_near(&rows, &self.measured_costs())? } else { fit(&rows)? };
        let when =
            steps.iter().map(|step| step.ended_at_us.saturating_sub(step.elapsed_us) as f64 / 1e6);
        let timed: Vec<_> = when
            .zip(&rows)
            .map(|(at_s, (columns, us))| (at_s, *us, predicted(&costs, columns).max(1.0)))
            .collect();
        let ratios: Vec<spread::Ratio> =
            timed.iter().map(|(at_s, us, predicted_us)| (*at_s, us / predicted_us)).collect();
        let off = ratios.iter().map(|(_, ratio)| (ratio - 1.0).abs()).sum::<f64>();
        let error_percent = 100.0 * off / rows.len() as f64;
        let [step_us, sequence_us] = between_steps(steps);
        let host = HostCosts { step_us, sequence_us, ..outside };
        let profile = self.profile(name, costs, host, spread::spread(&ratios));
        Some(FittedProfile { profile, error_percent, steps: timed })
    }

    fn profile(
        &self,
        name: String,
        costs: [f64; COSTS],
        host: HostCosts,
        noise: StepNoise,
    ) -> MockProfile {
        let [
            step_base_us,
            decode_token_us,
            prefill_token_us,
            kv_token_us,
            prefill_context_us,
            prefill_step_us,
        ] = costs;
        let ServerFacts { device, measured, settings } = *self;
        let link = measured.link_bytes_per_s;
        MockProfile {
            name,
            step_base_us,
            decode_token_us,
            prefill_token_us,
            kv_token_us,
            prefill_context_us,
            prefill_step_us,
            link_bytes_per_s: if link > 0.0 { link } else { NO_LINK_BYTES_PER_S },
            kv_bytes_per_token: (device.block_bytes / u64::from(device.block_size.max(1))).max(1),
            block_size: device.block_size,
            device_blocks: device.device_blocks,
            host_blocks: device.host_blocks,
            vocab_size: device.vocab_size,
            max_model_len: device.max_model_len,
            max_steps_in_flight: device.max_steps_in_flight,
            pace: Vec::new(),
            server: sizes(settings),
            told: Some(measured),
            host,
            noise,
        }
    }
}

impl FittedProfile {
    /// Returns the profile with the pace that the server had: for each second after `from_s`, the observed times of the
    /// steps that began in the second, divided by their predicted times (sums of both). Steps that began before
    /// `from_s` count in the first second. A second without steps has the pace of the second before it, or 1 if there
    /// is none. The pace takes the place of all random spread, because the pace of a second contains the spread of its
    /// steps.
    #[must_use]
    pub fn with_pace(self, from_s: f64) -> MockProfile {
        let mut pace: Vec<f64> = Vec::new();
        let mut sums: Vec<(f64, f64)> = Vec::new();
        for (at_s, us, predicted_us) in &self.steps {
            let second = (at_s - from_s).clamp(0.0, MAX_PACE_S) as usize;
            sums.resize(sums.len().max(second + 1), (0.0, 0.0));
            sums[second].0 += us;
            sums[second].1 += predicted_us;
        }
        for (us, predicted_us) in sums {
            let last = pace.last().copied().unwrap_or(1.0);
            let mean = if predicted_us > 0.0 { us / predicted_us } else { last };
            // Three digits are more than a second's steps tell.
            pace.push((mean.clamp(0.01, 100.0) * 1000.0).round() / 1000.0);
        }
        MockProfile { pace, noise: StepNoise::default(), ..self.profile }
    }
}

/// Returns the amounts of work in a step that its device time is fitted to, such as decode tokens, prefill tokens and
/// KV tokens read; one column per cost.
///
/// The last column says whether the step has a prompt; its cost is a fixed cost of steps with prompts. A GPU has such a
/// cost, because only steps without prompts replay a recorded graph. A CPU has no such cost, so the column is 0 if
/// `cpu` is true. Otherwise the fit would find a cost on a CPU too: the scheduler makes all steps with prompts about
/// equally long, however many decodes and prompt tokens a step has, so a fixed cost explains the durations as well as a
/// cost for each prompt token (docs/performance.md, "Real and simulated").
fn work(step: &StepRecord, cpu: bool) -> [f64; COSTS] {
    [
        1.0,
        f64::from(step.decode_tokens),
        f64::from(step.prefill_tokens),
        step.kv_tokens as f64,
        step.prefill_context as f64,
        f64::from(u8::from(!cpu && step.prefill_tokens > 0)),
    ]
}

/// Fits the host's part of the time between the ends of two consecutive steps: of the record of the later step,
/// `host_us + elapsed_us - device_us`, us. The fit has a fixed part, and a part for each sequence that decodes in the
/// later step.
fn between_steps(steps: &[StepRecord]) -> [f64; 2] {
    let row = |step: &StepRecord| {
        let around = step.elapsed_us.saturating_sub(step.device_us) + step.host_us?;
        Some(([1.0, f64::from(step.decode_tokens)], around as f64))
    };
    let rows: Vec<_> = steps.iter().filter_map(row).collect();
    fit(&rows).unwrap_or_default()
}

/// Reads the server's limits that the simulator shall copy, such as `max_num_seqs`, from the engine settings; `None`
/// for a setting that is missing.
fn sizes(settings: &Value) -> ServerSizes {
    let number = |pointer: &str| settings.pointer(pointer).and_then(Value::as_u64);
    let count = |pointer: &str| number(pointer).and_then(|number| u32::try_from(number).ok());
    ServerSizes {
        max_num_seqs: count("/scheduler/max_num_seqs"),
        max_num_batched_tokens: count("/scheduler/max_num_batched_tokens"),
        max_requests: count("/admission/max_requests"),
        max_queued_requests_per_tier: count("/admission/max_queued_requests_per_tier"),
        max_queued_tokens_per_tier: number("/admission/max_queued_tokens_per_tier"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceInfo {
        MockProfile::named("tiny").unwrap().info()
    }

    #[test]
    fn the_pace_is_how_much_longer_the_steps_of_a_second_took() {
        let settings = Value::Null;
        let measured = MockProfile::named("tiny").unwrap().device_profile();
        let server = ServerFacts { device: &device(), measured, settings: &settings };
        // Steps of 10 ms that take twice as long in the third second; the fourth has none.
        let step = |i: u32| {
            let second = i / 50;
            let (elapsed_us, pause_us) = (20_000, if second < 3 { 0 } else { 1_000_000 });
            let ended_at_us = u64::from(i + 1) * 20_000 + pause_us;
            let device_us = if second == 2 { 20_000 } else { 10_000 };
            StepRecord {
                decode_tokens: i % 8,
                device_us,
                ended_at_us,
                elapsed_us,
                ..StepRecord::default()
            }
        };
        let steps: Vec<StepRecord> = (0..400).map(step).collect();
        let fitted = server.fitted("p".into(), &steps, HostCosts::default()).unwrap();
        let profile = fitted.with_pace(0.0);
        assert_eq!(profile.noise, StepNoise::default());
        let pace = profile.pace;
        assert_eq!(pace.len(), 9);
        assert!((pace[2] / pace[1] - 2.0).abs() < 0.01, "{pace:?}");
        assert_eq!(pace[3], pace[2], "a second without steps has the pace of the one before");
        assert!((pace[4] / pace[1] - 1.0).abs() < 0.01, "{pace:?}");
        assert!(server.fitted("p".into(), &steps[..5], HostCosts::default()).is_none());
    }

    #[test]
    fn every_device_but_the_cpu_has_a_cost_for_any_prompt() {
        // 2 ms for each step, 1 ms for each decode token and 5 ms for any prompt.
        let step = |i: u32| {
            let (decode_tokens, prefill_tokens) =
                (1 + i % 7, if i.is_multiple_of(3) { 0 } else { i % 5 + 1 });
            let prompt_us = if prefill_tokens > 0 { 5_000 } else { 0 };
            let device_us = u64::from(2_000 + 1_000 * decode_tokens + prompt_us);
            StepRecord { decode_tokens, prefill_tokens, device_us, ..StepRecord::default() }
        };
        let steps: Vec<StepRecord> = (0..400).map(step).collect();
        let measured = MockProfile::named("tiny").unwrap().device_profile();
        let cost_us = |name: &str| {
            let device = DeviceInfo { name: name.into(), ..device() };
            let server = ServerFacts { device: &device, measured, settings: &Value::Null };
            let fitted = server.fitted("p".into(), &steps, HostCosts::default()).unwrap();
            fitted.profile.prefill_step_us
        };
        let gpu_us = cost_us("cuda:0, NVIDIA H100");
        assert!((gpu_us - 5_000.0).abs() < 1.0, "{gpu_us}");
        assert_eq!(cost_us("cpu, 2 threads, avx2"), 0.0);
    }

    #[test]
    fn on_a_cpu_costs_that_the_load_does_not_tell_apart_stay_in_their_measured_ratio() {
        // Each sequence has 100 tokens of context. A sequence and its context cost 1 ms together.
        let step = |i: u32| {
            let decode_tokens = i % 9;
            let (kv_tokens, device_us) =
                (100 * u64::from(decode_tokens), u64::from(2_000 + 1_000 * decode_tokens));
            StepRecord { decode_tokens, kv_tokens, device_us, ..StepRecord::default() }
        };
        let steps: Vec<StepRecord> = (0..400).map(step).collect();
        let measured = DeviceProfile {
            step_base_us: 1_500.0,
            decode_token_us: 300.0,
            kv_token_us: 2.0,
            ..MockProfile::named("tiny").unwrap().device_profile()
        };
        let device = DeviceInfo { name: "cpu, 2 threads, avx2".into(), ..device() };
        let server = ServerFacts { device: &device, measured, settings: &Value::Null };
        let profile = server.fitted("p".into(), &steps, HostCosts::default()).unwrap().profile;
        let ratio = profile.decode_token_us / profile.kv_token_us;
        assert!((ratio - 150.0).abs() < 1.0, "{profile:?}");
        let sequence_us = profile.decode_token_us + 100.0 * profile.kv_token_us;
        assert!((sequence_us - 1_000.0).abs() < 50.0, "{profile:?}");
    }

    #[test]
    fn a_server_with_few_steps_has_the_speeds_that_it_measured() {
        let tiny = MockProfile::named("tiny").unwrap().device_profile();
        let measured = DeviceProfile { step_base_us: 7.0, ..tiny };
        let server = ServerFacts { device: &device(), measured, settings: &Value::Null };
        let profile = server.as_measured("p".into());
        assert_eq!((profile.step_base_us, profile.device_blocks), (7.0, device().device_blocks));
        profile.check().unwrap();
    }

    #[test]
    fn what_is_between_two_steps_is_split_into_a_fixed_part_and_one_for_each_sequence() {
        let step = |i: u32| StepRecord {
            decode_tokens: i % 32,
            device_us: 5_000,
            elapsed_us: 5_100,
            host_us: (!i.is_multiple_of(10)).then_some(u64::from(200 + 10 * (i % 32))),
            ..StepRecord::default()
        };
        let steps: Vec<StepRecord> = (0..400).map(step).collect();
        let [fixed, each] = between_steps(&steps);
        assert!((fixed - 300.0).abs() < 1.0 && (each - 10.0).abs() < 0.1, "{fixed} {each}");
        assert_eq!(between_steps(&[]), [0.0, 0.0]);
    }

    #[test]
    fn the_servers_sizes_are_those_of_its_settings() {
        let settings = serde_json::json!({
            "scheduler": {"max_num_seqs": 7, "max_num_batched_tokens": 99},
            "admission": {"max_queued_tokens_per_tier": 1_u64 << 40},
        });
        let sizes = sizes(&settings);
        assert_eq!((sizes.max_num_seqs, sizes.max_num_batched_tokens), (Some(7), Some(99)));
        assert_eq!((sizes.max_requests, sizes.max_queued_tokens_per_tier), (None, Some(1 << 40)));
    }
}
