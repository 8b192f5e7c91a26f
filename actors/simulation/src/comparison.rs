//! Comparison of scheduling policies in simulation: one workload, simulated under each policy with several seeds.

use crate::outcome::{Outcome, TierOutcome};
use crate::sizes::Sizes;
use serde::{Deserialize, Serialize};
use std::fmt;
use tiercel_config::EngineSettings;
use tiercel_device::{MockFaults, Tier};
use tiercel_workload::Workload;

/// Result of a comparison of scheduling policies: simulation runs of one workload on one device under each policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Version of the program that made the comparison.
    pub version: String,
    /// Workload of all runs, with request rates that are already multiplied by `load`. Each run uses its own seed
    /// instead of the workload's.
    pub workload: Workload,
    /// Factor by which the request rates of the open-loop classes of the workload, recorded traffic included, were
    /// multiplied.
    pub load: f64,
    /// Name of the device profile.
    pub profile: String,
    /// Random noise of the simulated step times: sigma of the log-normal factor that multiplies each.
    pub noise_sigma: f64,
    /// Whether the simulated device was slower than its profile at times: in every other minute, or in the span that
    /// `--drift` gives.
    #[serde(default)]
    pub drift: bool,
    /// Faults that the simulated device injected (failed or slow steps and copies).
    #[serde(default)]
    pub faults: MockFaults,
    /// Share of the refused and turned-away requests that their clients send once again after the retry time, percent.
    #[serde(default)]
    pub returning_percent: f64,
    /// Simulation runs, grouped by policy, in the order in which the user named the policies.
    pub policies: Vec<PolicyRuns>,
}

/// Simulation runs of one scheduling policy, one run for each seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyRuns {
    /// Name of the policy.
    pub policy: String,
    /// Engine settings under the policy. In the runs, latency targets that the workload states replaced those in these
    /// settings.
    pub settings: EngineSettings,
    /// Sizes of the engine under the policy: of steps, queues and block pools.
    pub sizes: Sizes,
    /// Measured outcomes of the policy's simulation runs, one for each seed.
    pub runs: Vec<Outcome>,
}

impl Comparison {
    /// Returns the length of each simulation run, seconds of simulated time.
    pub fn simulated_s(&self) -> f64 {
        self.workload.duration_s + self.workload.drain_s
    }

    /// Describes the engine's sizes (of steps, queues and block pools): one line if all policies have the same sizes,
    /// else one line per policy.
    pub(crate) fn sizes(&self) -> Vec<String> {
        let Some(first) = self.policies.first() else { return Vec::new() };
        if self.policies.iter().all(|policy| policy.sizes == first.sizes) {
            return vec![first.sizes.to_string()];
        }
        self.policies.iter().map(|policy| format!("{}: {}", policy.policy, policy.sizes)).collect()
    }
}

/// Number of columns of the table that compares policies.
pub(crate) const COLUMNS: usize = 11;
/// Headings of the columns of the table that compares policies.
pub(crate) const HEADS: [&str; COLUMNS] = [
    "policy",
    "tier",
    "requests",
    "TTFT p50",
    "p99 ms",
    "TPOT p99",
    "E2E p99 s",
    "in target %",
    "tok/s",
    "preempt/min",
    "recomputed %",
];

/// Value of a table cell: mean of a measure over the seeds, and the worst seed's value if there are several seeds.
struct MeanAndWorst {
    mean: f64,
    worst: Option<f64>,
}

impl MeanAndWorst {
    /// Computes the mean and the worst of the values; `None` if there are no values. `high_is_bad` says whether the
    /// highest or the lowest value is the worst.
    fn of(values: impl Iterator<Item = f64>, high_is_bad: bool) -> Option<MeanAndWorst> {
        let values: Vec<f64> = values.collect();
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let pick = if high_is_bad { f64::max } else { f64::min };
        let worst = values.into_iter().reduce(pick)?;
        Some(MeanAndWorst { mean, worst: (count > 1).then_some(worst) })
    }

    fn text(&self, decimals: usize) -> String {
        let MeanAndWorst { mean, worst } = self;
        match worst {
            None => format!("{mean:.decimals$}"),
            Some(worst) => format!("{mean:.decimals$} ({worst:.decimals$})"),
        }
    }
}

fn cell(values: impl Iterator<Item = f64>, high_is_bad: bool, decimals: usize) -> String {
    MeanAndWorst::of(values, high_is_bad).map_or("-".to_owned(), |value| value.text(decimals))
}

impl PolicyRuns {
    /// Returns the policy's rows of the comparison table: one for each tier, then one for all tiers together.
    pub(crate) fn rows(&self) -> Vec<[String; COLUMNS]> {
        // A tier gets a row if it had requests in the measured window of at least one seed's run.
        let seen = |tier: &Tier| {
            self.runs.iter().any(|run| run.tiers.iter().any(|found| found.tier == tier.name()))
        };
        let tiers = Tier::ALL.into_iter().filter(seen);
        let mut rows: Vec<_> = tiers
            .map(|tier| self.row(|run| run.tiers.iter().find(|found| found.tier == tier.name())))
            .collect();
        if let Some(first) = rows.first_mut() {
            first[0].clone_from(&self.policy);
        }
        let mut total = self.row(|run| Some(&run.total));
        total[9] = cell(self.runs.iter().map(|run| run.preemptions_per_min), true, 1);
        total[10] = cell(self.runs.iter().map(|run| run.recomputed_percent), true, 2);
        rows.push(total);
        rows
    }

    fn row<'a>(
        &'a self,
        tier: impl Fn(&'a Outcome) -> Option<&'a TierOutcome>,
    ) -> [String; HEADS.len()] {
        let outcomes: Vec<&TierOutcome> = self.runs.iter().filter_map(tier).collect();
        let each =
            |value: fn(&TierOutcome) -> Option<f64>| outcomes.iter().filter_map(move |o| value(o));
        [
            String::new(),
            outcomes.first().map(|outcome| outcome.tier.clone()).unwrap_or_default(),
            outcomes.iter().map(|outcome| outcome.requests).sum::<u64>().to_string(),
            cell(each(|o| Some(o.ttft_ms?.p50)), true, 0),
            cell(each(|o| Some(o.ttft_ms?.p99)), true, 0),
            cell(each(|o| Some(o.tpot_ms?.p99)), true, 1),
            cell(each(|o| Some(o.e2e_ms?.p99 / 1000.0)), true, 1),
            cell(each(TierOutcome::compliant_percent), false, 2),
            cell(each(|o| Some(o.output_tokens_per_s)), false, 0),
            String::new(),
            String::new(),
        ]
    }
}

impl fmt::Display for Comparison {
    /// Prints the comparison as a table of means over the seeds, with the worst seed's value in brackets. Numbers of
    /// requests are sums over the seeds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { workload, load, profile, noise_sigma, drift, faults, .. } = self;
        let drift = if *drift { ", drift" } else { "" };
        let faults = if *faults == MockFaults::default() { "" } else { ", faults" };
        let seeds: Vec<String> = match self.policies.first() {
            Some(policy) => policy.runs.iter().map(|run| run.seed.to_string()).collect(),
            None => Vec::new(),
        };
        writeln!(
            f,
            "{} at {load} on {profile}, {} s, noise {noise_sigma}{drift}{faults}, seeds {}",
            workload.name,
            self.simulated_s(),
            seeds.join(" ")
        )?;
        for note in workload.notes() {
            writeln!(f, "{note}")?;
        }
        for line in self.sizes() {
            writeln!(f, "{line}")?;
        }
        writeln!(f)?;
        let mut rows = vec![HEADS.map(str::to_owned)];
        for policy in &self.policies {
            rows.extend(policy.rows());
        }
        let widths: [usize; HEADS.len()] = std::array::from_fn(|column| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        });
        for row in &rows {
            let mut line = String::new();
            for (column, (text, width)) in row.iter().zip(widths).enumerate() {
                let left = column < 2;
                let padded =
                    if left { format!("{text:<width$}") } else { format!("{text:>width$}") };
                line.push_str(&padded);
                line.push_str("  ");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: &str = "name = 'w'\nseed = 1\nduration_s = 50\ndrain_s = 10\nclass = []";

    fn run(seed: u64, output_tokens_per_s: f64, preemptions_per_min: f64) -> Outcome {
        let tier = |name: &str| TierOutcome {
            tier: name.into(),
            requests: 10,
            completed: 10,
            refused: 0,
            turned_away: 0,
            failed: 0,
            left: 0,
            unfinished: 0,
            preempted: 0,
            ttft_ms: None,
            tpot_ms: None,
            e2e_ms: None,
            max_gap_ms: None,
            output_tokens_per_s,
            compliance: None,
        };
        Outcome {
            seed,
            tiers: vec![tier("premium")],
            total: tier("total"),
            steps: 1,
            preemptions_per_min,
            swaps_per_min: 0.0,
            recomputed_percent: 0.0,
            copied_percent: 0.0,
            prefix_hit_percent: 0.0,
            slots_used_percent: 0.0,
            gaps_ms: None,
            classes: Vec::new(),
            returned: 0,
            readmitted: 0,
            fairness: 1.0,
            prediction_error_percent: 0.0,
            step_cost_error_percent: 0.0,
            copy_cost_error_percent: 0.0,
        }
    }

    fn sizes(max_num_batched_tokens: u32) -> Sizes {
        Sizes {
            max_num_batched_tokens,
            max_num_seqs: 64,
            max_requests: 1024,
            max_queued_requests_per_tier: 256,
            max_queued_tokens_per_tier: 1 << 20,
            device_blocks: 100,
            host_blocks: 0,
            block_size: 16,
        }
    }

    #[test]
    fn a_table_shows_means_and_the_worst_seed() {
        let comparison = Comparison {
            version: "1".into(),
            workload: toml::from_str(WORKLOAD).expect("a workload"),
            load: 1.0,
            profile: "p".into(),
            noise_sigma: 0.1,
            drift: false,
            faults: MockFaults::default(),
            returning_percent: 0.0,
            policies: vec![PolicyRuns {
                policy: "fcfs".into(),
                settings: EngineSettings::default(),
                sizes: sizes(256),
                runs: vec![run(3, 100.0, 1.0), run(4, 80.0, 3.0)],
            }],
        };
        let mut without = comparison.clone();
        without.policies[0].runs[1].tiers[0].tier = "background".into();
        let text = comparison.to_string();
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert!(text.starts_with("w at 1 on p, 60 s, noise 0.1, seeds 3 4\n"), "{text}");
        assert!(lines[1].starts_with("256 tokens a step, 64 slots, "), "{text}");
        assert_eq!(lines[4], "fcfs premium 20 - - - - - 90 (80)");
        assert_eq!(lines[5], "total 20 - - - - - 90 (80) 2.0 (3.0) 0.00 (0.00)");
        let mut uneven = comparison.clone();
        uneven.policies.push(PolicyRuns { sizes: sizes(512), ..comparison.policies[0].clone() });
        uneven.policies[1].policy = "large".into();
        let text = uneven.to_string();
        assert!(
            text.contains("\nfcfs: 256 tokens a step, ") && text.contains("\nlarge: 512 tokens")
        );
        let mut shaken = comparison.clone();
        shaken.drift = true;
        shaken.faults.copy_fails = 0.1;
        let header = shaken.to_string();
        assert!(header.contains(" s, noise 0.1, drift, faults, seeds 3 4\n"), "{header}");
        // With two seeds, premium has requests only in the first run and background only in the second: each tier keeps
        // its own row, with the throughput of its one run.
        let text = without.to_string();
        let of = |tier: &str| text.lines().find(|line| line.contains(tier)).map(str::to_owned);
        assert!(of("premium").expect("a row").trim_end().ends_with(" 100"), "{text}");
        assert!(of("background").expect("a row").trim_end().ends_with(" 80"), "{text}");
    }
}
