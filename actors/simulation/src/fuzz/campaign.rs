//! Fuzzing campaign: plays the scenarios of many seeds and reduces the number of requests of a failing scenario.

use super::run::{Failure, Summary};
use super::scenario::Scenario;
use std::fmt;
use std::ops::Range;

/// Number of findings after which a campaign stops, because more findings would show the same bugs.
const MAX_FINDINGS: usize = 5;

/// Campaign that plays the scenarios of consecutive seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Campaign {
    /// Seeds of the scenarios.
    pub seeds: Range<u64>,
}

/// Results of a campaign so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Number of scenarios played.
    pub scenarios: u64,
    /// Totals of the scenarios in which every check held.
    pub summary: Summary,
    /// Scenarios in which a check failed.
    pub findings: Vec<Finding>,
}

/// Scenario in which a check failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Seed of the scenario.
    pub seed: u64,
    /// Check that failed.
    pub failure: Failure,
    /// Smallest number of the scenario's first requests with which a check still fails, as found by bisection.
    pub fewest: usize,
    /// Description of the scenario.
    pub scenario: String,
}

impl Campaign {
    /// Plays the scenarios of all seeds, or until there are enough findings. `progress` is called after each scenario.
    pub fn run(&self, mut progress: impl FnMut(&Tally)) -> Tally {
        let mut tally = Tally::default();
        for seed in self.seeds.clone() {
            let scenario = Scenario::draw(seed);
            match scenario.run() {
                Ok(summary) => tally.summary.add(&summary),
                Err(failure) => tally.findings.push(Finding::of(&scenario, failure)),
            }
            tally.scenarios += 1;
            progress(&tally);
            if tally.findings.len() >= MAX_FINDINGS {
                break;
            }
        }
        tally
    }
}

impl Finding {
    fn of(scenario: &Scenario, failure: Failure) -> Finding {
        let fewest = fewest_requests(scenario);
        Finding { seed: scenario.seed, failure, fewest, scenario: scenario.to_string() }
    }
}

/// Searches by bisection for the smallest number of first requests with which the scenario fails. The result may be too
/// large if the scenario fails with few requests, holds with more, and fails again with still more.
fn fewest_requests(scenario: &Scenario) -> usize {
    let (mut holds, mut fails) = (0, scenario.clients.len());
    while fails - holds > 1 {
        let middle = holds + (fails - holds) / 2;
        if scenario.with_first(middle).run().is_err() {
            fails = middle;
        } else {
            holds = middle;
        }
    }
    fails
}

impl Summary {
    fn add(&mut self, other: &Summary) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.finished += other.finished;
        self.failed += other.failed;
        self.left += other.left;
        self.tokens += other.tokens;
        self.simulated_us += other.simulated_us;
        let (sum, more) = (&mut self.counters, &other.counters);
        for tier in 0..sum.swaps.len() {
            sum.swaps[tier] += more.swaps[tier];
            sum.recomputes[tier] += more.recomputes[tier];
            sum.drops[tier] += more.drops[tier];
        }
        sum.steps += more.steps;
        sum.failed_steps += more.failed_steps;
        sum.recomputed_tokens += more.recomputed_tokens;
        sum.prefix_query_tokens += more.prefix_query_tokens;
        sum.prefix_hit_tokens += more.prefix_hit_tokens;
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { seed, failure, fewest, scenario } = self;
        writeln!(f, "seed {seed}: {failure}")?;
        writeln!(f, "  {scenario}; fails with the first {fewest} requests")?;
        write!(f, "  play it again: tiercel simulate --fuzz 1 --seed {seed}")
    }
}
