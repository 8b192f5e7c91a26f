//! The flag `tiercel bench --calibrate`: measures a real server, writes a device profile of it and suggests a step size
//! (`max_num_batched_tokens`).

use crate::cli::failure::Failure;
use crate::cli::report_file::ReportFile;
use clap::Args;
use serde::Deserialize;
use std::fmt::Write;
use tiercel_benches::{Calibration, Event, Target, calibrate, calibration_workload};
use tiercel_config::EngineSettings;
use tiercel_device::{HostCosts, MockFaults, MockProfile, StepNoise};
use tiercel_simulation::{Experiment, Outcome};
use tiercel_workload::{Pool, Workload};

/// Step sizes (`max_num_batched_tokens`) that a calibration simulates, tokens. Sizes below `max_num_seqs` are left out,
/// because a step must hold a token of every sequence.
const BUDGETS: [u32; 7] = [32, 64, 128, 256, 512, 1024, 2048];
/// Number of simulated runs, each with its own seed, for each step size.
const SEEDS: u64 = 3;

/// Arguments of a calibration, beside its load.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Limit of the 99th percentile of the time between two tokens, ms, within which a step size is suggested; by
    /// default the server's TPOT target of the standard tier (slo.standard.tpot_ms)
    #[arg(long, value_name = "MS", requires = "calibrate")]
    tbt_ms: Option<f64>,
}

/// Mean result of the simulated runs with one step size.
struct Tried {
    tokens: u32,
    tokens_per_s: f64,
    tbt_p99_ms: f64,
}

impl CalibrateArgs {
    /// Calibrates a server: runs a load against it (a built-in load unless a workload is given), writes the device
    /// profile to `file` and prints its costs and a table of step sizes, with a suggested one if one meets the target.
    pub(crate) fn run(
        &self,
        workload: Option<Workload>,
        target: &Target,
        file: ReportFile,
        watch: impl FnMut(Event<'_>),
    ) -> Result<Calibration, Failure> {
        let target_ms = self.tbt_ms;
        if target_ms.is_some_and(|ms| !(ms > 0.0 && ms.is_finite())) {
            return Err(Failure::usage("--tbt-ms must be above 0"));
        }
        let workload = workload.unwrap_or_else(calibration_workload);
        let calibrated = calibrate(&workload, target, watch);
        let calibration = actix_rt::System::new().block_on(calibrated).map_err(Failure::new)?;
        let settings = EngineSettings::deserialize(&calibration.settings).map_err(|error| {
            Failure::new(format!(
                "cannot read the server's settings; is it of the same version as this program? {error}"
            ))
        })?;
        let text = format!("{}\n{}", head(&calibration), calibration.profile.to_toml());
        file.write_text(&text)?;
        println!("{}", summary(&calibration));
        let target_ms = target_ms.or(calibration.standard_tpot_ms);
        println!("{}", suggestion(&workload, &calibration.profile, &settings, target_ms)?);
        Ok(calibration)
    }
}

/// Returns the comment line at the top of a device profile's file, which says how the profile was measured.
fn head(calibration: &Calibration) -> String {
    let Calibration { report, steps, error_percent, .. } = calibration;
    format!(
        "# Measured by `tiercel bench --calibrate` with the workload {} on {}: {steps} steps; \
         predicted step times are off by {error_percent:.1} % on average.",
        report.workload.name,
        report.server.as_deref().unwrap_or("a server"),
    )
}

/// Returns the fitted costs of steps, host and noise as text for people.
fn summary(calibration: &Calibration) -> String {
    let Calibration { profile, steps, error_percent, .. } = calibration;
    let MockProfile { step_base_us, decode_token_us, prefill_token_us, kv_token_us, .. } = profile;
    let MockProfile { prefill_context_us, prefill_step_us, .. } = profile;
    let HostCosts { step_us, sequence_us, request_us, prompt_token_us } = profile.host;
    let StepNoise { sigma, tail_share, tail_mean, slow_sigma, slow_s } = profile.noise;
    format!(
        "{steps} steps observed; predicted step times are off by {error_percent:.1} % on average\n\
         a step takes {step_base_us:.0} us, plus {decode_token_us:.0} us for each sequence that decodes, \
         {prefill_token_us:.0} us for each prompt token, {kv_token_us:.3} us for each token of KV read, \
         {prefill_context_us:.3} us for each pair of a prompt token and a token before it, and {prefill_step_us:.0} us if \
         it has any prompt\n\
         the host takes {step_us:.0} us between two steps, plus {sequence_us:.1} us for each sequence that decodes; a request \
         takes it {request_us:.0} us, plus {prompt_token_us:.2} us for each prompt token\n\
         noise of step times: log-normal with sigma {sigma:.3}; a tail of {:.1} % of the steps takes longer, on average by \
         {tail_mean:.2} times the step; slow drift with sigma {slow_sigma:.3} over {slow_s:.1} s",
        100.0 * tail_share,
    )
}

/// Simulates each step size and returns a table of throughput and p99 time between tokens, with a suggestion: the
/// smallest step size that is within 1 % of the highest throughput, among those whose p99 is within the target.
fn suggestion(
    workload: &Workload,
    profile: &MockProfile,
    settings: &EngineSettings,
    target_ms: Option<f64>,
) -> Result<String, Failure> {
    let mut text = "\ntokens a step  tok/s  p99 time between tokens, ms (simulated)\n".to_owned();
    let mut tried = Vec::new();
    for tokens in BUDGETS.into_iter().filter(|tokens| *tokens >= settings.scheduler.max_num_seqs) {
        let row = try_size(workload, profile, settings, tokens)?;
        let mark = if tokens == settings.scheduler.max_num_batched_tokens { "  (now)" } else { "" };
        let Tried { tokens_per_s, tbt_p99_ms, .. } = row;
        let _ = writeln!(text, "{tokens:>13}  {tokens_per_s:>5.0}  {tbt_p99_ms:.1}{mark}");
        tried.push(row);
    }
    let Some(target_ms) = target_ms else {
        text += "no step size is suggested, because the server has no slo.standard.tpot_ms; give --tbt-ms";
        return Ok(text);
    };
    match best(&tried, target_ms) {
        Some(Tried { tokens, .. }) => {
            let _ = write!(
                text,
                "suggested: --max-num-batched-tokens {tokens} (p99 time between tokens at most {target_ms} ms)"
            );
        }
        None => {
            let least = tried.iter().map(|tried| tried.tbt_p99_ms).fold(f64::INFINITY, f64::min);
            let _ = write!(
                text,
                "no step size keeps the p99 time between tokens within {target_ms} ms; the lowest is {least:.1} ms"
            );
        }
    }
    Ok(text)
}

/// Returns the smallest step size whose p99 time between tokens is within the target and whose throughput is at least
/// 99 % of the highest of all sizes within the target.
fn best(tried: &[Tried], target_ms: f64) -> Option<&Tried> {
    let fits = || tried.iter().filter(|tried| tried.tbt_p99_ms <= target_ms);
    let most = fits().map(|tried| tried.tokens_per_s).reduce(f64::max)?;
    fits().find(|tried| tried.tokens_per_s >= 0.99 * most)
}

fn try_size(
    workload: &Workload,
    profile: &MockProfile,
    settings: &EngineSettings,
    tokens: u32,
) -> Result<Tried, Failure> {
    let mut settings = settings.clone();
    settings.scheduler.max_num_batched_tokens = tokens;
    let mut outcomes = Vec::new();
    for seed in 1..=SEEDS {
        let experiment = Experiment {
            workload: Workload { seed, simulation: Pool::default(), ..workload.clone() },
            profile: profile.clone(),
            settings: settings.clone(),
            noise_sigma: 0.0,
            drift: None,
            faults: MockFaults::default(),
            returning: 0.0,
        };
        outcomes.push(experiment.run(|_| {}).map_err(Failure::new)?);
    }
    let mean = |value: fn(&Outcome) -> f64| {
        outcomes.iter().map(value).sum::<f64>() / outcomes.len() as f64
    };
    Ok(Tried {
        tokens,
        tokens_per_s: mean(|outcome| outcome.total.output_tokens_per_s),
        tbt_p99_ms: mean(|outcome| outcome.gaps_ms.map_or(0.0, |gaps| gaps.p99)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suggestion_is_the_smallest_of_the_fastest_within_the_target() {
        let row = |tokens, tokens_per_s, tbt_p99_ms| Tried { tokens, tokens_per_s, tbt_p99_ms };
        let tried = [
            row(64, 400.0, 40.0),
            row(128, 500.0, 60.0),
            row(256, 503.0, 75.0),
            row(512, 600.0, 140.0),
        ];
        let tokens = |ms| best(&tried, ms).map(|tried| tried.tokens);
        assert_eq!((tokens(80.0), tokens(50.0), tokens(10.0)), (Some(128), Some(64), None));
        assert_eq!(tokens(1_000.0), Some(512));
    }
}
