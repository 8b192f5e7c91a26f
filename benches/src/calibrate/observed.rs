//! Fetches what a server measures of itself while a load runs: the time of each step, and by tier the sum of TTFTs and
//! counts of requests and prompt tokens.

use crate::http::{Endpoint, HttpError};
use serde::Deserialize;
use std::collections::BTreeMap;
use tiercel_device::{DeviceInfo, DeviceProfile, StepRecord};

/// Number of step records from which on a calibration no longer polls the server for more.
pub(crate) const MAX_STEPS: usize = 200_000;

/// Response of the server's endpoint `/debug/steps`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StepsPage {
    pub(crate) device: DeviceInfo,
    /// Speeds that the server knew of its device at startup: measured, or stated by the profile of a mock device.
    pub(crate) measured: DeviceProfile,
    /// Engine settings of the server, as it serializes them.
    pub(crate) settings: serde_json::Value,
    /// TPOT target of the standard tier, ms: either set in the server's configuration or derived from the speed of its
    /// device.
    pub(crate) standard_tpot_ms: Option<f64>,
    pub(crate) steps: Vec<StepRecord>,
}

impl StepsPage {
    /// Fetches from `/debug/steps` the records of the steps whose step number is above `after`.
    pub(crate) async fn fetch(endpoint: &Endpoint, after: u64) -> Result<StepsPage, HttpError> {
        let path = format!("/debug/steps?after={after}");
        let (status, _, body) = endpoint.exchange(&path, None).await?;
        if !status.is_success() {
            return Err(HttpError::Answer(format!("/debug/steps answered {status}")));
        }
        let read = serde_json::from_slice(&body);
        read.map_err(|error| HttpError::Answer(format!("/debug/steps can't be read: {error}")))
    }
}

/// Prometheus counters of a server for the requests of one tier, summed since the server's start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TierCounts {
    /// Number of requests that got a first token. `ttft_s` is the sum of their TTFTs, s.
    pub(crate) started: f64,
    pub(crate) ttft_s: f64,
    /// Number of requests that ended with outcome `stop` or `length`. `prompt_tokens` counts the prompt tokens of ended
    /// requests.
    pub(crate) completed: f64,
    pub(crate) prompt_tokens: f64,
}

/// Fetches the server's request counts by tier from `/metrics`.
pub(crate) async fn counts(endpoint: &Endpoint) -> Result<BTreeMap<String, TierCounts>, HttpError> {
    let (status, _, body) = endpoint.exchange("/metrics", None).await?;
    if !status.is_success() {
        return Err(HttpError::Answer(format!("/metrics answered {status}")));
    }
    Ok(read_counts(&String::from_utf8_lossy(&body)))
}

fn read_counts(text: &str) -> BTreeMap<String, TierCounts> {
    let mut counts = BTreeMap::<String, TierCounts>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Some((name, labels)) = series.split_once('{') else { continue };
        let label = |wanted: &str| {
            let found = labels.split_once(&format!("{wanted}=\""))?.1.split_once('"')?;
            Some(found.0)
        };
        let (Some(tier), Ok(value)) = (label("tier"), value.parse::<f64>()) else { continue };
        let tier = counts.entry(tier.to_owned()).or_default();
        match name {
            "tiercel_ttft_seconds_count" => tier.started = value,
            "tiercel_ttft_seconds_sum" => tier.ttft_s = value,
            "tiercel_prompt_tokens_total" => tier.prompt_tokens = value,
            "tiercel_requests_total" if matches!(label("outcome"), Some("stop" | "length")) => {
                tier.completed += value;
            }
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_prometheus_text() {
        let text = "# TYPE tiercel_ttft_seconds histogram\n\
            tiercel_ttft_seconds_bucket{tier=\"premium\",le=\"0.1\"} 3\n\
            tiercel_ttft_seconds_sum{tier=\"premium\"} 1.5\n\
            tiercel_ttft_seconds_count{tier=\"premium\"} 4\n\
            tiercel_requests_total{tier=\"premium\",outcome=\"length\"} 3\n\
            tiercel_requests_total{tier=\"premium\",outcome=\"stop\"} 1\n\
            tiercel_requests_total{tier=\"premium\",outcome=\"refused\"} 9\n\
            tiercel_prompt_tokens_total{tier=\"premium\"} 400\n\
            tiercel_steps_total 12\n";
        let premium =
            TierCounts { started: 4.0, ttft_s: 1.5, completed: 4.0, prompt_tokens: 400.0 };
        assert_eq!(read_counts(text), BTreeMap::from([("premium".to_owned(), premium)]));
    }
}
