//! Measurements of one request of the load client.

use crate::request::{Outcome, Record};
use std::fmt;
use tiercel_device::Tier;
use tiercel_workload::Latencies;

/// Measurement by the client of one request that has ended. [`Display`](fmt::Display) writes a measurement as a row of
/// a CSV file with the columns [`Measurement::COLUMNS`]; a latency that does not exist is an empty field.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Tier that the request asked for.
    pub tier: Tier,
    /// Time at which the request was due, s after the start of the run.
    pub due_s: f64,
    /// Whether the request was due in the measured window of the workload, so that the report counts it.
    pub in_window: bool,
    /// How the request ended: `completed`, `refused`, `failed`, `timed-out`, `unfinished` or `not-sent`.
    pub outcome: &'static str,
    /// Number of prompt tokens that the workload planned.
    pub prompt_tokens: u32,
    /// Number of output tokens: as the server reports them, or the number of response events with text if the server
    /// reports none.
    pub output_tokens: u64,
    /// Latencies, ms; defined as in [`TierReport`](crate::TierReport).
    pub latencies: Latencies,
    /// Largest gap between two arrivals of text, ms; defined as in [`TierReport`](crate::TierReport).
    pub max_gap_ms: Option<f64>,
}

impl Measurement {
    /// Head of a CSV file whose rows are measurements.
    pub const COLUMNS: &str = "tier,due_s,in_window,outcome,prompt_tokens,output_tokens,ttft_ms,tpot_ms,e2e_ms,max_gap_ms";

    /// Returns the measurements of a request of tier `tier` that was due `due_s` after the start of the run.
    pub(crate) fn of(record: &Record, tier: Tier, due_s: f64, in_window: bool) -> Measurement {
        let Latency { with_targets: latencies, max_gap_ms } = Latency::of(record);
        Measurement {
            tier,
            due_s,
            in_window,
            outcome: record.outcome.name(),
            prompt_tokens: record.planned.prompt_tokens,
            output_tokens: output_tokens(record) as u64,
            latencies,
            max_gap_ms,
        }
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measurement { due_s, in_window, outcome, prompt_tokens, output_tokens, .. } = self;
        let tier = self.tier.name();
        write!(f, "{tier},{due_s:.6},{in_window},{outcome},{prompt_tokens},{output_tokens}")?;
        let Latencies { ttft_ms, tpot_ms, e2e_ms } = self.latencies;
        [ttft_ms, tpot_ms, e2e_ms, self.max_gap_ms].into_iter().try_for_each(|ms| match ms {
            Some(ms) => write!(f, ",{ms:.3}"),
            None => write!(f, ","),
        })
    }
}

/// Returns the number of output tokens of a request: as the server reports them, or the number of response events with
/// text if the server reports none.
pub(crate) fn output_tokens(record: &Record) -> f64 {
    record.usage.map_or(record.chunks as f64, |usage| f64::from(usage.completion_tokens))
}

/// Latencies of one request, as seen by the client. `with_targets` are those that a workload can state targets for.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    pub(crate) with_targets: Latencies,
    pub(crate) max_gap_ms: Option<f64>,
}

impl Latency {
    /// Computes the latencies of a request. If the request was cut short, the time until the client gave up gives lower
    /// bounds of the latencies that are not known yet. Leaving such requests out would make an overloaded server look
    /// good.
    pub(crate) fn of(record: &Record) -> Latency {
        let completed = record.outcome == Outcome::Completed;
        let cut_short = matches!(record.outcome, Outcome::Unfinished | Outcome::TimedOut(_));
        let total_ms = record.ended.since_ms(record.due);
        let e2e_ms = (completed || cut_short).then_some(total_ms);
        let Some(first) = record.first else {
            let ttft_ms = cut_short.then_some(total_ms);
            let with_targets = Latencies { ttft_ms, tpot_ms: None, e2e_ms };
            return Latency { with_targets, max_gap_ms: None };
        };
        let tokens = output_tokens(record);
        let tpot_ms = if cut_short {
            // TPOT of a request that was cut short: its next token would have come when the client gave up, at the
            // earliest.
            Some(record.ended.since_ms(first) / tokens.max(1.0))
        } else {
            let decode_ms = record.last.since_ms(first);
            (completed && tokens > 1.0).then(|| decode_ms / (tokens - 1.0))
        };
        let max_gap_ms = record.max_gap_us as f64 / 1000.0;
        let ttft_ms = Some(first.since_ms(record.due));
        Latency {
            with_targets: Latencies { ttft_ms, tpot_ms, e2e_ms },
            max_gap_ms: if cut_short {
                Some(max_gap_ms.max(record.ended.since_ms(record.last)))
            } else {
                (record.chunks > 1).then_some(max_gap_ms)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_field_for_each_column_and_leaves_unknown_latencies_empty() {
        let measurement = Measurement {
            tier: Tier::Standard,
            due_s: 1.5,
            in_window: true,
            outcome: "refused",
            prompt_tokens: 10,
            output_tokens: 0,
            latencies: Latencies { ttft_ms: Some(12.3456), tpot_ms: None, e2e_ms: Some(20.0) },
            max_gap_ms: None,
        };
        let row = measurement.to_string();
        assert_eq!(row, "standard,1.500000,true,refused,10,0,12.346,,20.000,");
        assert_eq!(row.split(',').count(), Measurement::COLUMNS.split(',').count());
    }
}
