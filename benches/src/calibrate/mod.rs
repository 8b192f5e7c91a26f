//! Calibration: runs a short load on a real server and fits a device profile to the times of its steps and requests.
//! With the profile, the simulator's mock device imitates the server as its clients see it.
//!
//! | file | what it does |
//! |---|---|
//! | `observed.rs` | asks the server for the records of its steps and for its request counts and TTFT sums by tier |
//! | `fit.rs` | least squares without negative costs |
//! | `profile.rs` | makes the profile of a server from its steps |
//! | `spread.rs` | estimates the noise around the fitted costs |

mod fit;
mod observed;
mod profile;
mod spread;

pub use profile::{FittedProfile, ServerFacts};

use crate::http::{Endpoint, HttpError};
use crate::report::Report;
use crate::run::{BenchError, Event, Target, run};
use fit::fit;
use futures_util::future::{Either, select};
use observed::{MAX_STEPS, StepsPage, TierCounts, counts};
use serde_json::Value;
use std::collections::BTreeMap;
use std::pin::pin;
use tiercel_device::{Clock, HostCosts, MockProfile, StepRecord};
use tiercel_workload::Workload;

/// Default workload of a calibration.
const WORKLOAD: &str = include_str!("../../workloads/calibrate.toml");
/// Workload that is sent to the idle server before the main load: short requests of two lengths, each length in its own
/// tier. Comparing the client's TTFT with the server's TTFT of the same tier gives the time that requests spend outside
/// the engine.
const PROBE: &str = r#"
name = "probe"
seed = 2
duration_s = 5
drain_s = 30
[[class]]
tier = "premium"
arrival = { closed = { streams = 1 } }
prompt_tokens = { fixed = 16 }
output_tokens = { fixed = 4 }
ignore_eos = true
[[class]]
tier = "standard"
arrival = { closed = { streams = 1 } }
prompt_tokens = { fixed = 256 }
output_tokens = { fixed = 4 }
ignore_eos = true
"#;
/// Interval at which a calibration polls the server for its step records, us. The server keeps only the last few
/// thousand records.
const LOOK_US: u64 = 1_000_000;
/// Minimum number of step records that a calibration needs to fit a device profile.
const LEAST_STEPS: usize = 200;

/// Result of a calibration: a device profile fitted to a running server, and facts about that server.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Device profile that was fitted to the server, for the simulator's mock device.
    pub profile: MockProfile,
    /// Engine settings of the calibrated server, as the server reported them.
    pub settings: Value,
    /// TPOT target of the standard tier on the server, ms: either set in its configuration or derived from the speed of
    /// its device.
    pub standard_tpot_ms: Option<f64>,
    /// Number of observed steps that the device profile was fitted to.
    pub steps: usize,
    /// Mean relative error of the fitted step costs, percent: the mean of |observed / predicted - 1| over the device
    /// times of the steps.
    pub error_percent: f64,
    /// Latencies and throughput that the load client measured while it sent the calibration load.
    pub report: Report,
}

/// Reason why a server could not be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The load client could not run the calibration load against the server.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The server does not report the times of its steps; only Tiercel servers do.
    #[error("{url} does not report the times of its steps ({problem}); only Tiercel servers do")]
    Steps {
        /// Base URL of the server.
        url: String,
        /// What went wrong when the client asked the server for its step records.
        problem: String,
    },
    /// The server ran too few steps under the calibration load to fit a device profile.
    #[error("only {0} steps were seen, at least {LEAST_STEPS} are needed; use a longer load")]
    TooFew(usize),
}

/// Returns the default workload of a calibration.
///
/// # Panics
/// If the built-in workload does not parse.
pub fn calibration_workload() -> Workload {
    toml::from_str(WORKLOAD).expect("the built-in workload is read in a test")
}

/// Sends the load to a server and fits a device profile to the observed step times. Needs a tokio runtime with I/O and
/// time.
///
/// # Errors
/// [`CalibrateError`] if the load cannot be run, the server does not report its steps, or there are too few steps.
pub async fn calibrate(
    workload: &Workload,
    target: &Target,
    watch: impl FnMut(Event<'_>),
) -> Result<Calibration, CalibrateError> {
    let url = target.url.clone();
    let endpoint = Endpoint::parse(&url, target.api_key.as_deref(), target.ca_file.as_deref())
        .map_err(|problem| BenchError::Url { url: url.clone(), problem })?;
    let silent =
        |error: HttpError| CalibrateError::Steps { url: url.clone(), problem: error.to_string() };
    let before = counts(&endpoint).await.map_err(silent)?;
    let probe = toml::from_str(PROBE).expect("the built-in probe is read in a test");
    let probed = run(&probe, target, |_| ()).await?;
    let outside = outside(&probed, &before, &counts(&endpoint).await.map_err(silent)?);
    let mut page = StepsPage::fetch(&endpoint, 0).await.map_err(silent)?;
    let first = page.steps.last().map_or(0, |last| last.step);
    page.steps.clear();
    let report = {
        let load = pin!(run(workload, target, watch));
        let looking = pin!(look(&endpoint, first, &mut page.steps));
        match select(load, looking).await {
            Either::Left((report, _)) => report?,
            Either::Right(((), load)) => load.await?,
        }
    };
    let last = page.steps.last().map_or(first, |last| last.step);
    page.steps.extend(StepsPage::fetch(&endpoint, last).await.map_err(silent)?.steps);
    if page.steps.len() < LEAST_STEPS {
        return Err(CalibrateError::TooFew(page.steps.len()));
    }
    Ok(conclude(page, outside, report))
}

/// Fetches the server's new step records once a second until at least `MAX_STEPS` are kept. If a fetch fails, the next
/// fetch also returns the missed records that the server still keeps.
async fn look(endpoint: &Endpoint, first: u64, steps: &mut Vec<StepRecord>) {
    let clock = Clock::wall();
    while steps.len() < MAX_STEPS {
        clock.sleep_us(LOOK_US).await;
        let after = steps.last().map_or(first, |last| last.step);
        if let Ok(page) = StepsPage::fetch(endpoint, after).await {
            steps.extend(page.steps);
        }
    }
}

/// Computes the time that requests wait outside the engine: for each tier, mean TTFT at the client minus mean TTFT in
/// the engine. A fit splits that time into a fixed part per request and a part per prompt token.
fn outside(
    report: &Report,
    before: &BTreeMap<String, TierCounts>,
    after: &BTreeMap<String, TierCounts>,
) -> HostCosts {
    let of_tier = |tier: &crate::report::TierReport| {
        let (now, then) =
            (after.get(&tier.tier)?, before.get(&tier.tier).copied().unwrap_or_default());
        let seen = tier.ttft_ms?;
        let (started, completed) = (now.started - then.started, now.completed - then.completed);
        if started < 1.0 || completed < 1.0 {
            return None;
        }
        let inside_us = 1e6 * (now.ttft_s - then.ttft_s) / started;
        let prompt = (now.prompt_tokens - then.prompt_tokens) / completed;
        Some(([1.0, prompt], (1000.0 * seen.mean - inside_us).max(0.0)))
    };
    let rows: Vec<_> = report.tiers.iter().filter_map(of_tier).collect();
    let [request_us, prompt_token_us] = match rows.as_slice() {
        [] => [0.0, 0.0],
        [(_, only)] => [*only, 0.0],
        rows => fit(rows).unwrap_or_default(),
    };
    HostCosts { request_us, prompt_token_us, ..HostCosts::default() }
}

fn conclude(page: StepsPage, outside: HostCosts, report: Report) -> Calibration {
    let StepsPage { device, measured, settings, standard_tpot_ms, steps } = page;
    let server = ServerFacts { device: &device, measured, settings: &settings };
    let name = format!("calibrated-{}", report.model);
    let fitted = server.fitted(name, &steps, outside).expect("there are more steps than costs");
    let FittedProfile { profile, error_percent, .. } = fitted;
    let steps = steps.len();
    Calibration { profile, settings, standard_tpot_ms, steps, error_percent, report }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_loads_are_usable() {
        assert_eq!(calibration_workload().problem(), None);
        let probe: Workload = toml::from_str(PROBE).unwrap();
        assert_eq!(probe.problem(), None);
    }
}
