//! Many seeds, and the fewest requests of one that fails.

use super::run::{Failure, Summary};
use super::scenario::Scenario;
use std::fmt;
use std::ops::Range;

/// A campaign ends with this many findings: more would say the same.
const MAX_FINDINGS: usize = 5;

/// Scenarios of consecutive seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Campaign {
    /// The seeds.
    pub seeds: Range<u64>,
}

/// What a campaign came to so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Scenarios played.
    pub scenarios: u64,
    /// Totals of those in which everything held.
    pub summary: Summary,
    /// The others.
    pub findings: Vec<Finding>,
}

/// A scenario in which something did not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Its seed.
    pub seed: u64,
    /// What did not hold.
    pub failure: Failure,
    /// With how few of its requests, the first ones, something still does not hold.
    pub fewest: usize,
    /// Its description.
    pub scenario: String,
}

impl Campaign {
    /// Plays all, or until enough is found. `progress` is told after each.
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

/// Halves the way between what fails and what does not; a scenario that fails again only with more is possible,
/// and then this is not the least.
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
        write!(f, "  again: tiercel simulate --fuzz 1 --seed {seed}")
    }
}
