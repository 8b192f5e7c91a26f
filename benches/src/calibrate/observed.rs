//! What a server says of itself while a load runs: its steps and its own times to the first token.

use crate::http::{Endpoint, HttpError};
use serde::Deserialize;
use std::collections::BTreeMap;
use tiercel_device::{DeviceInfo, DeviceProfile, StepRecord};

/// Steps that are kept of a load, at most.
pub(crate) const MAX_STEPS: usize = 200_000;

/// An answer of `/debug/steps`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StepsPage {
    pub(crate) device: DeviceInfo,
    /// What the device measured of its speed when it was opened.
    pub(crate) measured: DeviceProfile,
    /// The engine's settings, as it serializes them.
    pub(crate) settings: serde_json::Value,
    /// The standard tier's target for the time per token, stated or derived.
    pub(crate) standard_tpot_ms: Option<f64>,
    pub(crate) steps: Vec<StepRecord>,
}

impl StepsPage {
    /// Asks for the steps after this one.
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

/// What a server counted of one tier's requests until now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TierCounts {
    /// Requests that had a first token, and the sum of their times to it, s.
    pub(crate) started: f64,
    pub(crate) ttft_s: f64,
    /// Requests that ended well, and prompt tokens of those that ended.
    pub(crate) completed: f64,
    pub(crate) prompt_tokens: f64,
}

/// The server's counts by tier.
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
