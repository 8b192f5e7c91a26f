//! Fuzzing campaign: plays the random scenarios of many seeds, and searches for the fewest requests with which a
//! failing scenario still fails.

use super::run::{Failure, Summary};
use super::scenario::Scenario;
use std::fmt;
use std::ops::Range;

/// Number of failed scenarios after which a fuzzing campaign stops, because more of them would show the same bugs.
const MAX_FINDINGS: usize = 5;

/// Fuzzing campaign that plays the scenarios of consecutive seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Campaign {
    /// Seeds of the fuzzing scenarios to play; each seed determines one scenario.
    pub seeds: Range<u64>,
}

/// Results of a fuzzing campaign so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Number of fuzzing scenarios played so far.
    pub scenarios: u64,
    /// Sums of requests, tokens and some of the engine's counters over the fuzzing scenarios in which every check held.
    pub summary: Summary,
    /// Fuzzing scenarios in which a check failed.
    pub findings: Vec<Finding>,
}

/// Fuzzing scenario in which a check failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Seed from which the failed fuzzing scenario can be drawn again.
    pub seed: u64,
    /// First check that failed in the fuzzing scenario.
    pub failure: Failure,
    /// Smallest n, found by bisection, for which the scenario still fails if only its first n requests are sent.
    pub fewest: usize,
    /// Description of the failed fuzzing scenario in one line.
    pub scenario: String,
}

impl Campaign {
    /// Plays the fuzzing scenarios of all seeds, but stops after five failed ones. `progress` is called after each
    /// scenario.
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

/// Searches by bisection for the smallest n for which the fuzzing scenario fails with only its first n requests. The
/// result may be too large if the scenario fails with few requests, holds with more, and fails again with still more.
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
        self.impatient += other.impatient;
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
        sum.slices += more.slices;
        sum.copied_blocks += more.copied_blocks;
        sum.failed_steps += more.failed_steps;
        sum.postponed_draws += more.postponed_draws;
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
