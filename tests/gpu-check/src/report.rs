//! Report of a GPU's checks and measurements, as a table.

use std::fmt;

/// One line of a GPU check's report: a check or a measurement.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    what: String,
    found: String,
    /// Limit that the check or measurement must keep, as text; empty for a measurement without a limit.
    limit: String,
    met: bool,
}

/// Table of the results of a GPU's checks and measurements.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    lines: Vec<Line>,
    live: bool,
}

impl Report {
    /// Adds a check that compares results of the GPU with those of the CPU. `limits` are for the norm of the
    /// differences as a share of the norm of the CPU's results, and for the largest difference as a share of the
    /// largest result. NaN fails the comparison.
    pub fn compare(&mut self, what: &str, cuda: &[f32], cpu: &[f32], limits: (f32, f32)) {
        let square = |v: f32| f64::from(v) * f64::from(v);
        let size = cpu.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let norm: f64 = cpu.iter().copied().map(square).sum();
        let differences = || cuda.iter().zip(cpu).map(|(a, b)| a - b);
        let error = (differences().map(square).sum::<f64>() / norm.max(f64::MIN_POSITIVE)).sqrt();
        let worst = differences().fold(0.0_f32, |most, d| most.max(d.abs())) / size;
        // `f32::max` ignores NaN, so the largest difference would hide a NaN; the norm of the differences becomes NaN
        // and fails.
        let met = cuda.len() == cpu.len() && error <= f64::from(limits.0) && worst <= limits.1;
        let found = format!("{error:.1e}, worst {worst:.1e}");
        self.add(what, found, format!("{:.0e}, {:.0e}", limits.0, limits.1), met);
    }

    /// Adds a check to the report that passes if `holds` is true.
    pub fn holds(&mut self, what: &str, holds: bool) {
        let found = if holds { "yes" } else { "no" };
        self.add(what, found.to_owned(), "yes".to_owned(), holds);
    }

    /// Adds a measurement to the report that fails if it is below `limit`.
    pub fn at_least(&mut self, what: &str, found: f64, limit: f64, unit: &str) {
        let met = found >= limit;
        self.add(what, format!("{found:.1} {unit}"), format!("at least {limit:.1} {unit}"), met);
    }

    /// Adds a measurement to the report that fails if it is above `limit`.
    pub fn at_most(&mut self, what: &str, found: f64, limit: f64, unit: &str) {
        let met = found <= limit;
        self.add(what, format!("{found:.1} {unit}"), format!("at most {limit:.1} {unit}"), met);
    }

    /// Adds a measurement to the report that has no limit and cannot fail.
    pub fn measured(&mut self, what: &str, found: String) {
        self.add(what, found, String::new(), true);
    }

    /// Adds a failed line to the report for a part of the GPU check that stopped with an error.
    pub fn broke(&mut self, part: &str, why: &dyn fmt::Display) {
        self.add(part, why.to_string(), "runs to its end".to_owned(), false);
    }

    /// Makes an empty report that also prints every line as soon as it is added, so that the results are not lost if
    /// the run is cut off.
    #[must_use]
    pub fn live() -> Report {
        Report { lines: Vec::new(), live: true }
    }

    fn add(&mut self, what: &str, found: String, limit: String, met: bool) {
        if self.live {
            let mark = if met { "" } else { "   NOT MET" };
            eprintln!("{what}: {found} ({limit}){mark}");
        }
        self.lines.push(Line { what: what.to_owned(), found, limit, met });
    }

    /// Returns the failed lines of the report, as text.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.lines.iter().filter(|line| !line.met);
        failed.map(|line| format!("{}: {} ({})", line.what, line.found, line.limit)).collect()
    }

    /// Returns the number of lines in the report.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether the report has no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | found | limit | met |\n|---|---|---|---|")?;
        for Line { what, found, limit, met } in &self.lines {
            let met = match (limit.is_empty(), met) {
                (true, _) => "",
                (_, true) => "yes",
                (_, false) => "NO",
            };
            writeln!(f, "| {what} | {found} | {limit} | {met} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_or_is_no_number_fails() {
        let mut report = Report::default();
        report.compare("equal", &[1.0, -2.0], &[1.0, -2.0], (0.01, 0.01));
        report.compare("near", &[1.0, -2.01], &[1.0, -2.0], (0.01, 0.01));
        assert_eq!(report.failures(), Vec::<String>::new());
        report.compare("far", &[1.0, -2.1], &[1.0, -2.0], (0.01, 0.01));
        report.compare("no number", &[f32::NAN, -2.0], &[1.0, -2.0], (0.01, 0.01));
        report.compare("fewer", &[1.0], &[1.0, -2.0], (0.01, 0.01));
        report.at_most("slow", 2.0, 1.0, "ms");
        report.holds("false", false);
        assert_eq!((report.failures().len(), report.len()), (5, 7));
        assert!(report.to_string().contains("| slow | 2.0 ms | at most 1.0 ms | NO |"));
    }
}
