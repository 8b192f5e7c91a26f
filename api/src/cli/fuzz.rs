//! The flag `tiercel simulate --fuzz`: plays hostile scenarios drawn from seeds, and reports those in which a check
//! failed.

use crate::cli::failure::Failure;
use std::io::{IsTerminal, Write};
use tiercel_device::Clock;
use tiercel_simulation::fuzz::{Campaign, Scenario, Tally};
use tracing::subscriber::NoSubscriber;

/// Maximum number of scenarios in one call of `tiercel simulate --fuzz`.
const MAX_SCENARIOS: u64 = 100_000_000;
/// Number of fuzzing scenarios between two updates of the progress line.
const TOLD_EVERY: u64 = 50;

/// Plays the fuzzing scenarios of `count` consecutive seeds from `first` on, and fails if a check fails in any of them.
pub(crate) fn run(first: u64, count: u64) -> Result<(), Failure> {
    if !(1..=MAX_SCENARIOS).contains(&count) {
        let problem = format!("--fuzz is {count}; allowed: 1 to {MAX_SCENARIOS}");
        return Err(Failure::usage(problem));
    }
    let Some(end) = first.checked_add(count) else {
        let most = u64::MAX - count;
        return Err(Failure::usage(format!("--seed is {first}; allowed: 0 to {most}")));
    };
    let clock = Clock::wall();
    let began = clock.now();
    let per_second = |scenarios: u64| scenarios as f64 / clock.now().since_ms(began) * 1000.0;
    let watched = std::io::stderr().is_terminal();
    let campaign = Campaign { seeds: first..end };
    let play = || {
        campaign.run(|Tally { scenarios, findings, .. }| {
            if watched && scenarios.is_multiple_of(TOLD_EVERY) {
                let (rate, found) = (per_second(*scenarios), findings.len());
                eprint!(
                    "\r{scenarios} of {count} scenarios, {rate:.0} per second, {found} failed  "
                );
            }
        })
    };
    // Turn off logging for a campaign of several scenarios, in which engines log much. The log of a single scenario may
    // be of interest and is kept.
    let tally = match count {
        1 => {
            println!("seed {first}: {}", Scenario::draw(first));
            play()
        }
        _ => tracing::subscriber::with_default(NoSubscriber::new(), play),
    };
    if watched {
        eprint!("\r\x1b[K");
    }
    tell(&tally).map_err(|error| Failure::new(format!("cannot print the result: {error}")))?;
    eprintln!("{:.0} scenarios per second", per_second(tally.scenarios));
    match tally.findings.first() {
        None => Ok(()),
        Some(finding) => {
            let (failed, played) = (tally.findings.len(), tally.scenarios);
            let again = format!("tiercel simulate --fuzz 1 --seed {}", finding.seed);
            Err(Failure::new(format!(
                "{failed} of {played} scenarios failed; play the first of them again: {again}"
            )))
        }
    }
}

fn tell(tally: &Tally) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    for finding in &tally.findings {
        writeln!(out, "{finding}")?;
    }
    let (all, counters) = (&tally.summary, tally.summary.counters);
    writeln!(
        out,
        "{} scenarios: {} requests ({} finished, {} left by clients, {} failed, {} refused), {} tokens, {} steps \
         ({} failed), {} preemptions, {} of {} prompt tokens cached, {:.0} simulated seconds",
        tally.scenarios,
        all.requests,
        all.finished,
        all.left,
        all.failed,
        all.refused,
        all.tokens,
        counters.steps,
        counters.failed_steps,
        counters.preemptions(),
        counters.prefix_hit_tokens,
        counters.prefix_query_tokens,
        all.simulated_us as f64 / 1e6,
    )
}
