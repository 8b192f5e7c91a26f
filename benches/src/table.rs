//! Formats the report of a load client's run as a table for people.

use crate::report::{Report, TierReport};
use std::fmt::Write;
use tiercel_workload::Summary;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

impl Report {
    /// Returns the report of a run as a text table. `colour` adds terminal colours; set it only if the output goes to a
    /// terminal.
    pub fn table(&self, colour: bool) -> String {
        let paint = Paint { colour };
        let mut rows: Vec<&TierReport> = self.tiers.iter().collect();
        if rows.len() > 1 {
            rows.push(&self.total);
        }
        let mut out = format!(
            "{}  seed {}  {} s measured  {}  {}\n\n",
            paint.with(BOLD, &self.workload.name),
            self.workload.seed,
            self.window_s,
            self.model,
            self.url
        );
        counts(&mut out, &rows, paint);
        out.push('\n');
        latencies(&mut out, &rows, paint);
        self.footnotes(&mut out, &rows, paint);
        out
    }

    fn footnotes(&self, out: &mut String, rows: &[&TierReport], paint: Paint) {
        let mut notes = self.workload.notes();
        for failure in &self.failures {
            notes.push(format!("{} failed: {}", failure.count, failure.reason));
        }
        for row in rows.iter().filter(|row| row.tier != "total") {
            let cut_short = row.unfinished + row.timed_out;
            if cut_short > 0 {
                notes.push(format!(
                    "{}: {cut_short} cut short; their latencies are lower bounds",
                    row.tier
                ));
            }
            if row.not_sent > 0 {
                notes.push(format!("{}: {} not sent, too many in flight", row.tier, row.not_sent));
            }
            if row.other_tier > 0 {
                notes.push(format!("{}: {} served in another tier", row.tier, row.other_tier));
            }
        }
        if let Some(lag) = self.total.send_lag_ms
            && lag.max > 50.0
        {
            notes.push(format!("the client sent up to {:.0} ms late", lag.max));
        }
        if self.truncated {
            notes.push(
                "stopped early: the run sent as many requests as one run may send".to_owned(),
            );
        }
        for note in notes {
            let _ = writeln!(out, "{} {note}", paint.with(RED, "!"));
        }
    }
}

fn counts(out: &mut String, rows: &[&TierReport], paint: Paint) {
    let head = format!(
        "{:<11}{:>7}{:>7}{:>9}{:>8}{:>12}{:>14}{:>14}{:>11}",
        "tier",
        "sent",
        "done",
        "refused",
        "failed",
        "unfinished",
        "prompt tok/s",
        "output tok/s",
        "in target"
    );
    let _ = writeln!(out, "{}", paint.with(BOLD, &head));
    for row in rows {
        let compliant = row.compliance.filter(|c| c.requests > 0).map_or_else(
            || "-".to_owned(),
            |c| format!("{:.2} %", 100.0 * c.all_met as f64 / c.requests as f64),
        );
        let failed = format!("{:>8}", row.failed);
        let _ = writeln!(
            out,
            "{:<11}{:>7}{:>7}{:>9}{}{:>12}{:>14.1}{:>14.1}{:>11}",
            row.tier,
            row.sent,
            row.completed,
            row.refused,
            if row.failed > 0 { paint.with(RED, &failed) } else { failed },
            row.unfinished,
            row.prompt_tokens_per_s,
            row.output_tokens_per_s,
            compliant
        );
    }
}

fn latencies(out: &mut String, rows: &[&TierReport], paint: Paint) {
    let head = format!(
        "{:<11}{:<11}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "tier", "ms", "mean", "p50", "p90", "p99", "max"
    );
    let _ = writeln!(out, "{}", paint.with(BOLD, &head));
    for row in rows {
        let metrics = [
            ("TTFT", row.ttft_ms),
            ("TPOT", row.tpot_ms),
            ("E2E", row.e2e_ms),
            ("worst gap", row.max_gap_ms),
        ];
        for (index, (name, summary)) in metrics.into_iter().enumerate() {
            let tier = if index == 0 { row.tier.as_str() } else { "" };
            let _ = writeln!(out, "{tier:<11}{name:<11}{}", figures(summary));
        }
    }
}

fn figures(summary: Option<Summary>) -> String {
    let Some(Summary { mean, p50, p90, p99, max, .. }) = summary else {
        return format!("{:>10}", "-").repeat(5);
    };
    [mean, p50, p90, p99, max].iter().map(|ms| format!("{ms:>10.1}")).collect()
}

#[derive(Clone, Copy)]
struct Paint {
    colour: bool,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.colour { format!("{code}{text}{PLAIN}") } else { text.to_owned() }
    }
}
