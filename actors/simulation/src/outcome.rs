//! Computes the outcome of a simulation run (request counts, latencies, throughput), tier by tier.

mod tier;

pub use tier::TierOutcome;

use crate::gaps::GapSummary;
use crate::record::Record;
use crate::traffic::Seen;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tier::{Tally, percent};
use tiercel_actors::{CostError, Counters, PredictionError};
use tiercel_device::{Tier, Timestamp};
use tiercel_workload::{Workload, seconds};

/// Outcome of a simulation run. Latencies and request counts cover the requests that are due in the workload's measured
/// window, between its warm-up and its cool-down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Seed of the run's traffic, step-time noise and made-up tokens.
    pub seed: u64,
    /// Outcomes of the tiers that had requests, the highest tier first.
    pub tiers: Vec<TierOutcome>,
    /// Outcome of all tiers together.
    pub total: TierOutcome,
    /// Outcomes of the request classes of the workload, in the workload's order. The field `tier` holds the tier of the
    /// class.
    pub classes: Vec<TierOutcome>,
    /// Number of steps of the engine that succeeded in the whole simulation run.
    pub steps: u64,
    /// Number of preemptions per simulated minute, over the whole run.
    pub preemptions_per_min: f64,
    /// Number of preemptions by swap (blocks copied to the host pool) per simulated minute, over the whole run.
    pub swaps_per_min: f64,
    /// Tokens that were computed again after a preemption, in percent of all tokens that had to be computed: prompts
    /// and outputs of the whole run.
    pub recomputed_percent: f64,
    /// Tokens that were copied between the device pool and the host pool, both ways, in percent of all tokens that had
    /// to be computed.
    pub copied_percent: f64,
    /// Share of the prompt tokens looked up in the prefix cache that were found there, percent.
    pub prefix_hit_percent: f64,
    /// Mean number of sequences in a step, in percent of `scheduler.max_num_seqs`.
    pub slots_used_percent: f64,
    /// Quantiles of the gaps between consecutive tokens of a stream within the measured window.
    pub gaps_ms: Option<GapSummary>,
    /// Jain's fairness index over the mean rates of the workload's classes, each of which counts as a tenant; 1 means
    /// that all are served alike. The rate of a request is its output tokens divided by its E2E time.
    pub fairness: f64,
    /// Number of requests that were refused or turned away and that their clients sent again within the measured
    /// window, after the retry time.
    pub returned: u64,
    /// Number of the requests counted in `returned` that were accepted this time and not turned away before their first
    /// token.
    pub readmitted: u64,
    /// Mean error of predicted output lengths, in percent of the mean output length.
    pub prediction_error_percent: f64,
    /// Mean relative error of the cost model's predicted step times, over about the last twenty steps of the run,
    /// percent.
    pub step_cost_error_percent: f64,
    /// Mean relative error of the cost model's predicted times of copies between device and host, over about the last
    /// twenty batches of copies, percent.
    pub copy_cost_error_percent: f64,
}

/// Totals that the engine counted in a run, and the block and batch sizes that they are compared with.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) counters: Counters,
    pub(crate) prediction_error: PredictionError,
    pub(crate) cost_error: CostError,
    pub(crate) block_size: u32,
    pub(crate) max_num_seqs: u32,
}

impl Outcome {
    pub(crate) fn of(workload: &Workload, seen: &Seen, totals: &Totals, end: Timestamp) -> Outcome {
        let counters = &totals.counters;
        let window = workload.window_s();
        let window_s = window.end - window.start;
        let due = Timestamp(seconds(window.start))..Timestamp(seconds(window.end));
        let mut tallies: [Tally; 4] = Default::default();
        for record in seen.records.iter().filter(|record| record.counts(&due)) {
            tallies[record.tier.index()].add(workload, record, end);
        }
        let mut all = Tally::default();
        let mut tiers = Vec::new();
        for (tier, tally) in Tier::ALL.into_iter().zip(tallies) {
            let tokens = seen.tokens_in_window[tier.index()];
            if tally.requests > 0 {
                all.merge(&tally);
                tiers.push(tally.outcome(tier.name(), tokens as f64 / window_s));
            }
        }
        let classes = classes(workload, seen, &due, end);
        let tokens: u64 = seen.tokens_in_window.iter().sum();
        let minutes = end.0 as f64 / 60e6;
        let computed = computed_tokens(&seen.records) as f64;
        Outcome {
            seed: workload.seed,
            tiers,
            total: all.outcome("total", tokens as f64 / window_s),
            classes,
            steps: counters.steps,
            preemptions_per_min: counters.preemptions() as f64 / minutes,
            swaps_per_min: counters.swaps.iter().sum::<u64>() as f64 / minutes,
            recomputed_percent: percent(counters.recomputed_tokens as f64, computed),
            copied_percent: percent(
                counters.copied_blocks as f64 * f64::from(totals.block_size),
                computed,
            ),
            slots_used_percent: percent(
                counters.slices as f64,
                counters.steps as f64 * f64::from(totals.max_num_seqs),
            ),
            gaps_ms: seen.gaps.summary(),
            fairness: fairness(workload, &seen.records, &due, end),
            returned: seen.returned,
            readmitted: seen.readmitted,
            prediction_error_percent: percent(
                totals.prediction_error.absolute_tokens,
                totals.prediction_error.tokens as f64,
            ),
            step_cost_error_percent: 100.0 * totals.cost_error.step,
            copy_cost_error_percent: 100.0 * totals.cost_error.copy,
            prefix_hit_percent: percent(
                counters.prefix_hit_tokens as f64,
                counters.prefix_query_tokens as f64,
            ),
        }
    }
}

/// Computes the outcome (request counts, latencies, throughput) of each class of the workload.
fn classes(
    workload: &Workload,
    seen: &Seen,
    due: &Range<Timestamp>,
    end: Timestamp,
) -> Vec<TierOutcome> {
    let window = workload.window_s();
    let mut tallies = vec![Tally::default(); workload.classes.len()];
    for record in seen.records.iter().filter(|record| record.counts(due)) {
        tallies[record.planned.class].add(workload, record, end);
    }
    let all = workload.classes.iter().zip(tallies).enumerate();
    let outcomes = all.map(|(index, (class, tally))| {
        let tokens = seen.class_tokens_in_window.get(index).copied().unwrap_or(0);
        tally.outcome(class.tier.name(), tokens as f64 / (window.end - window.start))
    });
    outcomes.collect()
}

/// Counts the tokens that the engine had to compute: prompts and outputs of the requests that got a first token.
fn computed_tokens(records: &[Record]) -> u64 {
    let started = records.iter().filter(|record| record.first.is_some());
    started.map(|r| u64::from(r.planned.prompt_tokens) + u64::from(r.tokens)).sum()
}

/// Computes Jain's fairness index, (sum of rates)^2 / (n * sum of squares of rates), over the mean rates (output tokens
/// per second of a request) of the n classes of the workload that had requests.
fn fairness(
    workload: &Workload,
    records: &[Record],
    due: &Range<Timestamp>,
    end: Timestamp,
) -> f64 {
    let mut sums = vec![(0.0, 0_u64); workload.classes.len()];
    for record in records.iter().filter(|record| record.counts(due)) {
        let sum = &mut sums[record.planned.class];
        sum.1 += 1;
        if let Some(e2e_ms) = record.latencies(end).e2e_ms.filter(|ms| *ms > 0.0) {
            sum.0 += f64::from(record.tokens) / e2e_ms * 1000.0;
        }
    }
    let rates = sums.iter().filter(|(_, requests)| *requests > 0);
    let rates: Vec<f64> = rates.map(|(sum, requests)| sum / *requests as f64).collect();
    let total: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    if squares > 0.0 { total * total / (rates.len() as f64 * squares) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Ending;
    use tiercel_workload::Planned;

    const WORKLOAD: &str = r#"
        name = "t"
        seed = 1
        duration_s = 100
        warmup_s = 10
        cooldown_s = 20
        drain_s = 0
        [[class]]
        tier = "premium"
        arrival = { poisson = { rate_per_s = 1.0 } }
        prompt_tokens = { fixed = 10 }
        output_tokens = { fixed = 3 }
        targets = { ttft_ms = 200, tpot_ms = 30, e2e_ms = 1000 }
    "#;

    fn record(due_s: f64, token_ms: &[f64], ending: Ending) -> Record {
        let planned = Planned {
            class: 0,
            stream: 0,
            number: 0,
            at_us: seconds(due_s),
            prefix: None,
            blocks: None,
            recorded: None,
            prompt_tokens: 10,
            output_tokens: 3,
        };
        let due = Timestamp(planned.at_us);
        let mut record = Record::new(planned, Tier::Premium, due);
        for ms in token_ms {
            record.token(due + (ms * 1000.0) as u64);
        }
        record.ending = ending;
        record
    }

    #[test]
    fn what_is_due_in_the_window_counts_whatever_became_of_it() {
        let workload: Workload = toml::from_str(WORKLOAD).expect("a workload");
        let records = vec![
            record(9.9, &[1.0, 2.0, 3.0], Ending::Completed),
            record(10.0, &[150.0, 170.0, 190.0], Ending::Completed),
            record(20.0, &[250.0, 260.0, 270.0], Ending::Completed),
            record(50.0, &[], Ending::TurnedAway),
            record(60.0, &[], Ending::Failed),
            record(79.0, &[100.0], Ending::Unfinished),
            record(79.5, &[], Ending::Unfinished),
            record(80.0, &[1.0], Ending::Unfinished),
        ];
        let seen = Seen { records, tokens_in_window: [0, 700, 0, 0], ..Seen::default() };
        let counters = Counters {
            recomputed_tokens: 8,
            copied_blocks: 3,
            steps: 5,
            slices: 10,
            ..Counters::default()
        };
        let totals = Totals { counters, block_size: 2, max_num_seqs: 4, ..Totals::default() };
        let outcome = Outcome::of(&workload, &seen, &totals, Timestamp(seconds(100.0)));
        assert!((outcome.copied_percent - 100.0 * 6.0 / 61.0).abs() < 1e-9);
        assert_eq!(outcome.slots_used_percent, 50.0);
        let [premium] = &outcome.tiers[..] else { panic!("one tier: {outcome:?}") };
        let counts = [premium.completed, premium.refused, premium.failed, premium.unfinished];
        assert_eq!((premium.requests, counts, premium.turned_away), (6, [2, 1, 1, 2], 1));
        // Expected TTFTs: 150, 250 and 100 ms, and 20.5 s for the unfinished request that waited for its first token
        // until the end of the run.
        let ttft = premium.ttft_ms.expect("samples");
        assert_eq!((ttft.count, ttft.p50, ttft.max), (4, 150.0, 20_500.0));
        // Expected TPOTs: (190 - 150) / 2 ms, (270 - 250) / 2 ms, and 20.9 s for the unfinished request that waited for
        // its second token until the end of the run.
        let tpot = premium.tpot_ms.expect("samples");
        assert_eq!((tpot.count, tpot.p50, tpot.max), (3, 20.0, 20_900.0));
        assert_eq!(premium.e2e_ms.expect("samples").max, 21_000.0);
        // The largest gap between tokens is that of the unfinished request, which waits 20.9 s for its second token
        // until the run ends.
        assert_eq!(premium.max_gap_ms.expect("samples").max, 20_900.0);
        assert_eq!(premium.compliant_percent(), Some(100.0 / 6.0));
        assert_eq!(outcome.total.output_tokens_per_s, 10.0);
        // The five requests that got a first token have 61 tokens (50 of prompts, 11 of outputs), of which 8 were
        // recomputed.
        assert!((outcome.recomputed_percent - 100.0 * 8.0 / 61.0).abs() < 1e-9);
    }
}
