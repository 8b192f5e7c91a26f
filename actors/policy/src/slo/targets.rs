//! The latency targets in effect: stated ones, and ones derived from the device's speed.
//!
//! A target that suits one device is out of reach on another device, or promises next to nothing there. A derived
//! target is the time that the device takes while half of the slots of its steps are in use, times a factor that is
//! larger for lower tiers. These times are:
//!
//! - TPOT: one step that decodes one token for [`PLACES_SHARE`] of the slots (`scheduler.max_num_seqs`), each with as
//!   many tokens of context as a step may hold (`scheduler.max_num_batched_tokens`), because servers with longer steps
//!   serve longer prompts. The context is shorter if the device pool, divided evenly among these slots, or the model's
//!   context length holds fewer tokens.
//! - TTFT: the rest of the step in flight, on average half a step of the batch ([`IN_FLIGHT_STEPS`]), and one step that
//!   holds the prompt beside the batch. If the prompt is longer than a step holds (`scheduler.max_num_batched_tokens`
//!   less one token for each used slot), the time grows by as much as the remaining tokens take in full steps.
//! - E2E: the TTFT of a full step, then [`ANSWER_TOKENS`] tokens.

use tiercel_config::{SloSettings, SloTargets, Target, TierSlo};
use tiercel_device::{DeviceInfo, DeviceProfile, Tier};

/// Share of the slots of a step (places for sequences) that the batch of a busy server takes, in derived targets.
const PLACES_SHARE: f64 = 0.5;
/// Wait of a prompt on a busy server until the step in flight ends, in steps of the batch, for derived TTFT targets:
/// the mean for a request that comes at any time of the step.
const IN_FLIGHT_STEPS: f64 = 0.5;
/// Length of the answer that a derived E2E target covers, tokens.
const ANSWER_TOKENS: f64 = 160.0;
/// Ratio of a derived target to the time that a busy server takes, for the premium, the standard and the background
/// tier.
const SLACK: [f64; 3] = [1.7, 4.5, 18.0];
/// Lower bound of a derived latency target, ms.
const LEAST_MS: f64 = 0.01;

/// Latency targets in effect, for all tiers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Targets {
    /// Latency targets of the premium tier.
    pub premium: SloTargets,
    /// Latency targets of the standard tier.
    pub standard: SloTargets,
    /// Latency targets of the background tier.
    pub background: SloTargets,
    /// Whether requests may state tighter latency targets than those of their tier.
    pub requests_may_tighten: bool,
}

impl Targets {
    /// Returns the latency targets of a tier; the system tier has none.
    pub fn of(&self, tier: Tier) -> SloTargets {
        match tier {
            Tier::System => SloTargets::default(),
            Tier::Premium => self.premium,
            Tier::Standard => self.standard,
            Tier::Background => self.background,
        }
    }
}

/// A change of the latency targets in effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Retargeted {
    /// Targets before the change.
    pub before: Targets,
    /// Targets from now on.
    pub targets: Targets,
    /// Whether an operator changed the settings; otherwise the step times of the device changed.
    pub by_operator: bool,
    /// Stated targets that the device cannot meet even for a request that is alone.
    pub unreachable: Vec<Unreachable>,
}

/// A latency target in the settings that the device misses even for a request alone, so that the derived target is in
/// effect instead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unreachable {
    /// Name of the setting that states the unreachable latency target.
    pub setting: &'static str,
    /// Unreachable latency target as stated, ms.
    pub stated_ms: f64,
    /// Time of the shortest step that can serve one request alone, ms: with a prompt of one token for TTFT and E2E
    /// targets, with one decode for TPOT targets.
    pub alone_ms: f64,
    /// Latency target in effect instead of the stated one, ms.
    pub effective_ms: f64,
}

/// Times of a busy and of an idle server on one device, from which latency targets are derived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerTimes {
    /// Time of a step that decodes one token of a single sequence, ms.
    decode_alone_ms: f64,
    /// Time of a step that computes a prompt of one token, ms.
    prompt_alone_ms: f64,
    /// Time of a step that decodes one token of each sequence in a busy server's batch, ms.
    batch_ms: f64,
    /// Time to first token of a prompt of `prompt_tokens` tokens on a busy server, ms: the rest of the step in flight,
    /// and a full step.
    first_token_ms: f64,
    /// Time that each prompt token beyond `prompt_tokens` adds to the TTFT on a busy server, ms.
    prompt_token_ms: f64,
    /// Number of tokens of one prompt that fit into a step of a busy server beside its batch of decodes.
    prompt_tokens: u32,
}

impl ServerTimes {
    /// Computes the times of a device with the speeds `speed` whose steps hold `seqs` sequences and `tokens` tokens.
    pub fn new(speed: &DeviceProfile, info: &DeviceInfo, seqs: u32, tokens: u32) -> ServerTimes {
        let seqs = ((f64::from(seqs) * PLACES_SHARE).ceil() as u32).max(1);
        let capacity = u64::from(info.device_blocks) * u64::from(info.block_size);
        let held = (capacity / u64::from(seqs)).min(u64::from(info.max_model_len)) as u32;
        let context = f64::from(tokens.min(held));
        let decode_us = |context: f64| speed.decode_token_us + speed.kv_token_us * context;
        let prompt_us = |tokens: f64| {
            let pairs = tokens * (tokens - 1.0) / 2.0;
            speed.prefill_token_us * tokens + speed.prefill_context_us * pairs
        };
        let batch_us = speed.step_base_us + f64::from(seqs) * decode_us(context);
        // Prompt tokens that a step holds beside a busy server's batch: what the decodes and the context length leave.
        let prompt_tokens =
            tokens.saturating_sub(seqs).min(info.max_model_len.saturating_sub(1)).max(1);
        let full_step_us = batch_us + prompt_us(f64::from(prompt_tokens));
        ServerTimes {
            decode_alone_ms: (speed.step_base_us + decode_us(1.0)) / 1000.0,
            prompt_alone_ms: (speed.step_base_us + prompt_us(1.0)) / 1000.0,
            batch_ms: batch_us / 1000.0,
            first_token_ms: (IN_FLIGHT_STEPS * batch_us + full_step_us) / 1000.0,
            prompt_token_ms: full_step_us / f64::from(prompt_tokens) / 1000.0,
            prompt_tokens,
        }
    }

    /// Replaces the times of an idle server by those of `idle`.
    pub(crate) fn with_idle_times(self, idle: &ServerTimes) -> ServerTimes {
        let ServerTimes { decode_alone_ms, prompt_alone_ms, .. } = *idle;
        ServerTimes { decode_alone_ms, prompt_alone_ms, ..self }
    }

    /// Returns the latency targets in effect, stated or derived, and the stated targets that the device cannot meet.
    pub fn targets(&self, settings: &SloSettings) -> (Targets, Vec<Unreachable>) {
        let mut unreachable = Vec::new();
        let mut of = |names: [&'static str; 3], tier: &TierSlo, slack| {
            self.of_tier(names, tier, slack, &mut unreachable)
        };
        let premium = ["slo.premium.ttft_ms", "slo.premium.tpot_ms", "slo.premium.e2e_ms"];
        let standard = ["slo.standard.ttft_ms", "slo.standard.tpot_ms", "slo.standard.e2e_ms"];
        let background =
            ["slo.background.ttft_ms", "slo.background.tpot_ms", "slo.background.e2e_ms"];
        let targets = Targets {
            premium: of(premium, &settings.premium, SLACK[0]),
            standard: of(standard, &settings.standard, SLACK[1]),
            background: of(background, &settings.background, SLACK[2]),
            requests_may_tighten: settings.requests_may_tighten,
        };
        (targets, unreachable)
    }

    fn of_tier(
        &self,
        names: [&'static str; 3],
        tier: &TierSlo,
        slack: f64,
        unreachable: &mut Vec<Unreachable>,
    ) -> SloTargets {
        let whole_ms = self.first_token_ms + ANSWER_TOKENS * self.batch_ms;
        let derived_ms = [self.first_token_ms, self.batch_ms, whole_ms].map(|ms| slack * ms);
        let alone_ms = [self.prompt_alone_ms, self.decode_alone_ms, self.prompt_alone_ms];
        let stated = [tier.ttft_ms, tier.tpot_ms, tier.e2e_ms];
        let mut in_effect = [None; 3];
        let mut derives_first = false;
        for metric in 0..stated.len() {
            let effective_ms = rounded(derived_ms[metric].max(LEAST_MS));
            in_effect[metric] = match stated[metric] {
                Target::None => None,
                Target::Ms(stated_ms) if stated_ms >= alone_ms[metric] => Some(stated_ms),
                other => {
                    derives_first |= metric == 0;
                    unreachable.extend(other.stated_ms().map(|stated_ms| Unreachable {
                        setting: names[metric],
                        stated_ms,
                        alone_ms: alone_ms[metric],
                        effective_ms,
                    }));
                    Some(effective_ms)
                }
            };
        }
        let [ttft_ms, tpot_ms, e2e_ms] = in_effect;
        let SloTargets { ttft_ms_per_token, ttft_ms_per_token_fewer, ttft_prompt_tokens, .. } =
            match derives_first {
                true => self.derived_growth(ttft_ms, slack),
                false => self.stated_growth(ttft_ms, tier),
            };
        SloTargets {
            ttft_ms,
            tpot_ms,
            e2e_ms,
            ttft_ms_per_token,
            ttft_prompt_tokens,
            ttft_ms_per_token_fewer,
        }
    }

    /// Returns how a derived TTFT target of `ttft_ms` depends on the length of the prompt.
    fn derived_growth(&self, ttft_ms: Option<f64>, slack: f64) -> SloTargets {
        // Round down, so that a prompt of one token has time for a step of the batch.
        let batch_ms = slack * (IN_FLIGHT_STEPS + 1.0) * self.batch_ms;
        let prompt_ms = ttft_ms.map_or(0.0, |ms| (ms - batch_ms).max(0.0));
        let fewer_ms = to_three_digits(prompt_ms / f64::from(self.prompt_tokens), f64::floor);
        SloTargets {
            ttft_ms_per_token: rounded(slack * self.prompt_token_ms),
            ttft_prompt_tokens: self.prompt_tokens,
            ttft_ms_per_token_fewer: fewer_ms,
            ..SloTargets::default()
        }
    }

    /// Returns how a stated TTFT target of `ttft_ms` depends on the length of the prompt: as the settings state, but a
    /// prompt of one token keeps the time that it takes on an idle device.
    fn stated_growth(&self, ttft_ms: Option<f64>, tier: &TierSlo) -> SloTargets {
        let spare_ms = ttft_ms.map_or(0.0, |ms| (ms - self.prompt_alone_ms).max(0.0));
        let fewer = tier.ttft_prompt_tokens.saturating_sub(1).max(1);
        SloTargets {
            ttft_ms_per_token: tier.ttft_ms_per_token,
            ttft_prompt_tokens: tier.ttft_prompt_tokens,
            ttft_ms_per_token_fewer: tier.ttft_ms_per_token_fewer.min(spare_ms / f64::from(fewer)),
            ..SloTargets::default()
        }
    }
}

/// Rounds a target to three significant digits. More would pretend to a precision that no measurement has.
fn rounded(ms: f64) -> f64 {
    to_three_digits(ms, f64::round)
}

/// Rounds a time to three significant digits by the function `round`, such as `f64::floor`, ms; returns 0 for times up
/// to 0.
fn to_three_digits(ms: f64, round: fn(f64) -> f64) -> f64 {
    if ms <= 0.0 {
        return 0.0;
    }
    let digits = 2 - ms.log10().floor() as i32;
    // Rounding multiplies or divides by a power of ten that is never below 1: as `f64` such a power is exact, a power
    // below 1 would not be. So the result is the `f64` nearest to the rounded decimal number.
    let power = 10f64.powi(digits.abs());
    if digits >= 0 { round(ms * power) / power } else { round(ms / power) * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DeviceInfo {
        DeviceInfo {
            name: "test".into(),
            block_size: 16,
            device_blocks: 11_000,
            host_blocks: 0,
            block_bytes: 1,
            max_steps_in_flight: 1,
            max_model_len: 8192,
            vocab_size: 1000,
        }
    }

    /// Device speeds for tests: a 70B model on eight A100 GPUs.
    fn a100() -> DeviceProfile {
        DeviceProfile {
            step_base_us: 16_000.0,
            decode_token_us: 25.0,
            prefill_token_us: 100.0,
            kv_token_us: 0.025,
            prefill_context_us: 0.0026,
            link_bytes_per_s: 25e9,
        }
    }

    /// Device speeds for tests: SmolLM2-135M on two CPU cores.
    fn cpu() -> DeviceProfile {
        DeviceProfile {
            step_base_us: 2_500.0,
            decode_token_us: 1_100.0,
            prefill_token_us: 600.0,
            kv_token_us: 0.3,
            prefill_context_us: 0.2,
            link_bytes_per_s: 5e9,
        }
    }

    fn near(found: Option<f64>, expected: f64) {
        let found = found.expect("there is a target");
        assert!((found / expected - 1.0).abs() < 0.1, "{found} ms, not about {expected}");
    }

    #[test]
    fn derived_targets_of_a_large_gpu_are_near_those_stated_for_it() {
        let (targets, unreachable) =
            ServerTimes::new(&a100(), &info(), 256, 1024).targets(&SloSettings::default());
        near(targets.premium.ttft_ms, 200.0);
        near(targets.premium.tpot_ms, 38.0);
        near(targets.premium.e2e_ms, 6_300.0);
        near(targets.standard.ttft_ms, 550.0);
        near(targets.standard.tpot_ms, 100.0);
        assert_eq!((targets.background.ttft_ms, targets.background.tpot_ms), (None, None));
        near(targets.background.e2e_ms, 67_000.0);
        assert_eq!(unreachable, []);
    }

    #[test]
    fn a_busy_server_of_any_device_meets_its_derived_targets() {
        for speed in [a100(), cpu()] {
            let times = ServerTimes::new(&speed, &info(), 64, 256);
            let (targets, _) = times.targets(&SloSettings::default());
            let batch_ms = 1e-3
                * (speed.step_base_us + 32.0 * (speed.decode_token_us + 256.0 * speed.kv_token_us));
            assert!(targets.premium.tpot_ms.expect("a target") > batch_ms);
            let of_long = targets.premium.of_prompt(4096).ttft_ms.expect("a target");
            // Expected TTFT of a prompt of 4096 tokens at 224 tokens per step beside the batch: nearly 20 steps of the
            // batch, and the prefill itself.
            let long_ms = 20.0 * batch_ms + 4.096 * speed.prefill_token_us;
            assert!(of_long > long_ms, "{of_long} {long_ms}");
        }
    }

    #[test]
    fn contexts_in_a_busy_batch_are_as_long_as_a_step_or_as_the_memory_allows() {
        let batch_ms = |tokens| ServerTimes::new(&cpu(), &info(), 64, tokens).batch_ms;
        // 32 sequences read 256 more tokens of KV each, for 0.3 us.
        assert!((batch_ms(512) - batch_ms(256) - 32.0 * 256.0 * 0.3e-3).abs() < 1e-9);
        let small = DeviceInfo { device_blocks: 32 * 10, ..info() };
        let in_memory_ms = ServerTimes::new(&cpu(), &small, 64, 256).batch_ms;
        assert_eq!(in_memory_ms, batch_ms(160), "32 contexts of 160 tokens fill 320 blocks");
    }

    #[test]
    fn a_stated_target_beyond_the_device_is_named_and_replaced() {
        let mut settings = SloSettings::default();
        settings.premium.tpot_ms = Target::Ms(2.0);
        settings.premium.ttft_ms = Target::Ms(50.0);
        settings.standard.ttft_ms = Target::None;
        let times = ServerTimes::new(&cpu(), &info(), 64, 256);
        let (targets, unreachable) = times.targets(&settings);
        let (derived, _) = times.targets(&SloSettings::default());
        assert_eq!(targets.premium.ttft_ms, Some(50.0));
        assert_eq!(targets.premium.ttft_ms_per_token, 0.0, "a stated target grows as stated");
        assert_eq!(targets.premium.tpot_ms, derived.premium.tpot_ms);
        assert_eq!(targets.standard.ttft_ms, None);
        let [Unreachable { setting, stated_ms, alone_ms, effective_ms }] = unreachable[..] else {
            panic!("{unreachable:?}");
        };
        assert_eq!((setting, stated_ms), ("slo.premium.tpot_ms", 2.0));
        assert!((3.5..3.7).contains(&alone_ms), "{alone_ms}");
        assert_eq!(Some(effective_ms), derived.premium.tpot_ms);
    }

    #[test]
    fn a_stated_target_of_a_short_prompt_can_be_met_on_an_idle_device() {
        let times = ServerTimes::new(&cpu(), &info(), 64, 256);
        let fewer_ms = |stated_ms| {
            let mut settings = SloSettings::default();
            settings.premium.ttft_ms = Target::Ms(50.0);
            settings.premium.ttft_prompt_tokens = 100;
            settings.premium.ttft_ms_per_token_fewer = stated_ms;
            times.targets(&settings).0.premium.ttft_ms_per_token_fewer
        };
        assert_eq!(fewer_ms(0.1), 0.1);
        let left_ms = 50.0 - 99.0 * fewer_ms(0.499);
        assert!((left_ms - times.prompt_alone_ms).abs() < 1e-9, "{left_ms}");
    }

    #[test]
    fn a_device_without_a_measured_speed_has_targets_too() {
        let speed = DeviceProfile {
            step_base_us: 0.0,
            decode_token_us: 0.0,
            prefill_token_us: 0.0,
            kv_token_us: 0.0,
            prefill_context_us: 0.0,
            link_bytes_per_s: 0.0,
        };
        let (targets, _) =
            ServerTimes::new(&speed, &info(), 64, 256).targets(&SloSettings::default());
        assert_eq!(targets.premium.tpot_ms, Some(LEAST_MS));
    }

    #[test]
    fn a_derived_ttft_target_grows_by_a_multiple_of_the_time_of_a_prompt_token() {
        let speed = DeviceProfile {
            step_base_us: 1_000.0,
            decode_token_us: 100.0,
            prefill_token_us: 50.0,
            kv_token_us: 0.0,
            prefill_context_us: 0.0,
            link_bytes_per_s: 1e9,
        };
        let mut settings = SloSettings::default();
        settings.background.ttft_ms = Target::Auto;
        let (targets, _) = ServerTimes::new(&speed, &info(), 8, 32).targets(&settings);
        // A busy step decodes one token for 4 of 8 places, 1,400 us, and holds 28 prompt tokens, another 1,400 us: 0.1
        // ms per prompt token. A first token takes half a step of the batch and such a step: 3.5 ms. Of these, 50 us
        // are for each token of the prompt, and 2.1 ms for the batch.
        let of_tier = |tier: SloTargets| {
            let per_token = (tier.ttft_ms_per_token, tier.ttft_ms_per_token_fewer);
            (tier.ttft_ms, per_token, tier.ttft_prompt_tokens)
        };
        assert_eq!(of_tier(targets.premium), (Some(5.95), (0.17, 0.085), 28), "1.7 times");
        assert_eq!(of_tier(targets.standard), (Some(15.8), (0.45, 0.226), 28), "4.5 times");
        assert_eq!(of_tier(targets.background), (Some(63.0), (1.8, 0.9), 28), "18 times");
        let of_one_token = targets.premium.of_prompt(1).ttft_ms.expect("a target");
        assert!((3.65..3.66).contains(&of_one_token), "{of_one_token}");
    }
}
