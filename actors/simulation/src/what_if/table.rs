//! The results as text: a table of all policies, then the requests that would have changed.

use crate::outcome::{Outcome, TierOutcome};
use crate::what_if::changes::{Changes, RequestChange};
use crate::what_if::fate::{Fate, FateKind};
use crate::what_if::{RecordingFacts, WhatIf};
use std::fmt;
use tiercel_workload::Summary;

const COLUMNS: usize = 16;
const HEADS: [&str; COLUMNS] = [
    "policy",
    "tier",
    "requests",
    "done",
    "TTFT p50",
    "p90",
    "p99 ms",
    "TPOT p50",
    "p90",
    "p99 ms",
    "E2E p50",
    "p90",
    "p99 s",
    "in target %",
    "tok/s",
    "preempt/min",
];
const CHANGE_HEADS: [&str; 8] =
    ["request", "tier", "at s", "prompt", "TTFT ms", "-> ms", "E2E s", "-> s"];

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordingFacts { version, length_s, sequences, notes, .. } = &self.recording;
        writeln!(f, "{sequences} sequences in {length_s:.1} s, recorded by version {version}")?;
        for note in notes {
            writeln!(f, "note: {note}")?;
        }
        writeln!(f)?;
        let mut rows = vec![HEADS.map(str::to_owned)];
        rows.extend(policy_rows("measured", &self.measured));
        for replay in &self.replays {
            let name = match replay.in_force {
                true => format!("{} (in force)", replay.policy),
                false => replay.policy.clone(),
            };
            rows.extend(policy_rows(&name, &replay.outcome));
        }
        table(f, &rows)?;
        writeln!(
            f,
            "\n\"measured\" is what the server did; all other rows are simulated from the recording. How far they can be \
             trusted shows in the rows \"in force\", which should be as measured."
        )?;
        for replay in &self.replays {
            if let Some(changes) = &replay.changes {
                writeln!(f)?;
                write_changes(f, &replay.policy, changes)?;
            }
        }
        Ok(())
    }
}

fn policy_rows(name: &str, outcome: &Outcome) -> Vec<[String; COLUMNS]> {
    let mut rows: Vec<_> = outcome.tiers.iter().map(row).collect();
    let mut total = row(&outcome.total);
    total[COLUMNS - 1] = format!("{:.1}", outcome.preemptions_per_min);
    rows.push(total);
    if let Some(first) = rows.first_mut() {
        name.clone_into(&mut first[0]);
    }
    rows
}

fn row(tier: &TierOutcome) -> [String; COLUMNS] {
    let cells = |summary: Option<Summary>, factor: f64, decimals: usize| match summary {
        Some(Summary { p50, p90, p99, .. }) => {
            [p50, p90, p99].map(|value| format!("{:.decimals$}", value * factor))
        }
        None => ["-"; 3].map(str::to_owned),
    };
    let [ttft_50, ttft_90, ttft_99] = cells(tier.ttft_ms, 1.0, 0);
    let [tpot_50, tpot_90, tpot_99] = cells(tier.tpot_ms, 1.0, 1);
    let [e2e_50, e2e_90, e2e_99] = cells(tier.e2e_ms, 1e-3, 2);
    let in_target = tier.compliant_percent();
    [
        String::new(),
        tier.tier.clone(),
        tier.requests.to_string(),
        tier.completed.to_string(),
        ttft_50,
        ttft_90,
        ttft_99,
        tpot_50,
        tpot_90,
        tpot_99,
        e2e_50,
        e2e_90,
        e2e_99,
        in_target.map_or("-".to_owned(), |percent| format!("{percent:.1}")),
        format!("{:.0}", tier.output_tokens_per_s),
        String::new(),
    ]
}

fn write_changes(f: &mut fmt::Formatter<'_>, policy: &str, changes: &Changes) -> fmt::Result {
    let Changes { sooner, later, completed_more, completed_less, largest } = changes;
    writeln!(
        f,
        "{policy} in place of the settings in force (both simulated): the first token of {sooner} sequences would have \
         come sooner and of {later} later; {completed_more} more would have completed, and {completed_less} would not."
    )?;
    if largest.is_empty() {
        return Ok(());
    }
    writeln!(f, "Largest changes:")?;
    let mut rows = vec![CHANGE_HEADS.map(str::to_owned)];
    rows.extend(largest.iter().map(change_row));
    table(f, &rows)
}

fn change_row(change: &RequestChange) -> [String; CHANGE_HEADS.len()] {
    let name = match &change.id {
        Some(id) if change.choice > 0 => format!("{id} choice {}", change.choice),
        Some(id) => id.to_string(),
        None => format!("line {}", change.number + 2),
    };
    let cell = |fate: &Fate, value: Option<f64>, decimals: usize| {
        // The E2E time of a request that did not complete is a lower bound, which the table marks with `>`. If its TTFT
        // equals its E2E time, the request has no first token, and its TTFT is a lower bound too.
        let partly = fate.ending != FateKind::Completed && (decimals > 0 || value == fate.e2e_ms);
        match (fate.ending, value) {
            (_, Some(value)) if partly => format!(">{value:.decimals$}"),
            (_, Some(value)) => format!("{value:.decimals$}"),
            (FateKind::Refused, None) => "refused".to_owned(),
            (FateKind::TurnedAway, None) => "turned away".to_owned(),
            (_, None) => "failed".to_owned(),
        }
    };
    let ttft = |fate: &Fate| cell(fate, fate.ttft_ms, 0);
    let e2e = |fate: &Fate| cell(fate, fate.e2e_ms.map(|ms| ms / 1000.0), 2);
    [
        name,
        change.tier.name().to_owned(),
        format!("{:.1}", change.at_s),
        change.prompt_tokens.to_string(),
        ttft(&change.in_force),
        ttft(&change.policy),
        e2e(&change.in_force),
        e2e(&change.policy),
    ]
}

/// Writes rows as a table: the first two columns to the left, the others to the right.
fn table<const N: usize>(f: &mut fmt::Formatter<'_>, rows: &[[String; N]]) -> fmt::Result {
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (text, width))| {
            if column < 2 { format!("{text:<width$}") } else { format!("{text:>width$}") }
        });
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
