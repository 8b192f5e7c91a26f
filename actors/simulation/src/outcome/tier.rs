//! Counts and latencies of the requests of one tier, or of one class of a workload.

use crate::record::{Ending, Record};
use serde::{Deserialize, Serialize};
use tiercel_device::Timestamp;
use tiercel_workload::{Compliance, Summary, Workload};

/// Counts and latencies of the requests of one tier, or of one class of the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierOutcome {
    /// Name of the tier; `total` for all tiers together.
    pub tier: String,
    /// Number of requests due in the measured window.
    pub requests: u64,
    /// Number of requests whose output is complete.
    pub completed: u64,
    /// Number of requests that were refused on arrival or turned away later.
    pub refused: u64,
    /// Number of requests that were accepted first and then turned away; a part of `refused`.
    pub turned_away: u64,
    /// Number of requests that ended with an error.
    pub failed: u64,
    /// Number of requests whose clients left before their output was complete. The time until the client left counts as
    /// the latency of such a request.
    #[serde(default)]
    pub left: u64,
    /// Number of requests that were still running at the end of the run. The time until the end of the run counts as
    /// the latency of such a request (a lower bound), and the TPOT of such a request is an estimate.
    pub unfinished: u64,
    /// Number of completed requests that were preempted at least once.
    pub preempted: u64,
    /// TTFT (time to first token) of the requests, ms.
    pub ttft_ms: Option<Summary>,
    /// TPOT of the requests (mean time per token after the first), ms.
    pub tpot_ms: Option<Summary>,
    /// E2E time of the requests (from arrival to last token), ms.
    pub e2e_ms: Option<Summary>,
    /// Largest gap between two consecutive tokens of each request, ms.
    pub max_gap_ms: Option<Summary>,
    /// Output tokens per second of simulated time that came within the measured window.
    pub output_tokens_per_s: f64,
    /// Counts of the requests that met their target of each latency (TTFT, TPOT, end-to-end time), and of the requests
    /// that met all of their targets. Present if the workload states targets for the tier or class.
    pub compliance: Option<Compliance>,
}

impl TierOutcome {
    /// Returns the share of requests that met all their targets, percent.
    pub fn compliant_percent(&self) -> Option<f64> {
        let compliance = self.compliance?;
        Some(percent(compliance.all_met as f64, compliance.requests as f64))
    }
}

/// Returns `part` as a percentage of `whole`; 0 if `whole` is 0.
pub(super) fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Counts and lists of latencies of the requests of one tier or class.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    completed: u64,
    refused: u64,
    turned_away: u64,
    failed: u64,
    left: u64,
    unfinished: u64,
    preempted: u64,
    ttft_ms: Vec<f64>,
    tpot_ms: Vec<f64>,
    e2e_ms: Vec<f64>,
    max_gap_ms: Vec<f64>,
    compliance: Option<Compliance>,
}

impl Tally {
    /// Adds a request of the workload with the request's state at `end`, the end of the run.
    pub(super) fn add(&mut self, workload: &Workload, record: &Record, end: Timestamp) {
        self.requests += 1;
        match record.ending {
            Ending::Completed => self.completed += 1,
            Ending::Refused => self.refused += 1,
            Ending::TurnedAway => {
                self.refused += 1;
                self.turned_away += 1;
            }
            Ending::Failed => self.failed += 1,
            Ending::Left(_) => self.left += 1,
            Ending::Unfinished => self.unfinished += 1,
        }
        self.preempted += u64::from(record.preemptions > 0);
        let latencies = record.latencies(end);
        self.ttft_ms.extend(latencies.ttft_ms);
        self.tpot_ms.extend(latencies.tpot_ms);
        self.e2e_ms.extend(latencies.e2e_ms);
        self.max_gap_ms.extend(record.max_gap_ms(end));
        if let Some(targets) = &workload.classes[record.planned.class].targets {
            let targets = targets.of_prompt(record.planned.prompt_tokens);
            let completed = record.ending == Ending::Completed;
            self.compliance.get_or_insert_default().add(completed, &latencies, &targets);
        }
    }

    /// Adds the counts and latencies of another tier.
    pub(super) fn merge(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.completed += other.completed;
        self.refused += other.refused;
        self.turned_away += other.turned_away;
        self.failed += other.failed;
        self.left += other.left;
        self.unfinished += other.unfinished;
        self.preempted += other.preempted;
        self.ttft_ms.extend(&other.ttft_ms);
        self.tpot_ms.extend(&other.tpot_ms);
        self.e2e_ms.extend(&other.e2e_ms);
        self.max_gap_ms.extend(&other.max_gap_ms);
        if let Some(compliance) = other.compliance {
            self.compliance.get_or_insert_default().merge(compliance);
        }
    }

    /// Converts the tally to the outcome of the tier or class with the name `tier`.
    pub(super) fn outcome(self, tier: &str, output_tokens_per_s: f64) -> TierOutcome {
        TierOutcome {
            tier: tier.to_owned(),
            requests: self.requests,
            completed: self.completed,
            refused: self.refused,
            turned_away: self.turned_away,
            failed: self.failed,
            left: self.left,
            unfinished: self.unfinished,
            preempted: self.preempted,
            ttft_ms: Summary::of(self.ttft_ms),
            tpot_ms: Summary::of(self.tpot_ms),
            e2e_ms: Summary::of(self.e2e_ms),
            max_gap_ms: Summary::of(self.max_gap_ms),
            output_tokens_per_s,
            compliance: self.compliance,
        }
    }
}
