//! Reads from a TOML file which faults a mock device injects.

use super::{MockFaults, timed_faults};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest TOML file with injected faults that is read, bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Reason for which a file of injected faults could not be loaded. The message is one line that says what to change.
#[derive(Debug, thiserror::Error)]
pub enum MockFaultsError {
    /// The file of injected faults could not be read.
    #[error("cannot read the faults file {path}: {source}")]
    Read {
        /// Path of the file with faults to inject.
        path: PathBuf,
        /// I/O error from reading the file of injected faults.
        source: std::io::Error,
    },
    /// The file of injected faults is too large.
    #[error("the faults file {path} has more than {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// Path of the file of injected faults.
        path: PathBuf,
    },
    /// The file of injected faults is not TOML, or has an unknown field or a value of the wrong type.
    #[error("{path} is not a faults file: {problem}")]
    Parse {
        /// Path of the file of injected faults.
        path: PathBuf,
        /// Message of the TOML parser: where the problem is and what it is.
        problem: String,
    },
    /// A field of the file of injected faults has a value that is not allowed.
    #[error("{path}: {field} is {value}; allowed: {allowed}")]
    Value {
        /// Path of the file of injected faults.
        path: PathBuf,
        /// Name of the field with the wrong value in the file of injected faults.
        field: String,
        /// Value of the field that is not allowed.
        value: String,
        /// Values that are allowed for the field of injected faults.
        allowed: &'static str,
    },
}

impl MockFaults {
    /// Reads the faults to inject from a TOML file with the fields of this type. A fault whose field the file leaves
    /// out is not injected.
    ///
    /// # Errors
    /// [`MockFaultsError`] if the file cannot be read or used.
    pub fn from_file(path: &Path) -> Result<MockFaults, MockFaultsError> {
        let failed = |source| MockFaultsError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(MockFaultsError::TooLarge { path: path.to_owned() });
        }
        let faults: MockFaults = toml::from_str(&text).map_err(|error| {
            // Joins the message of the TOML parser, which has several lines, to one line.
            let problem = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            MockFaultsError::Parse { path: path.to_owned(), problem }
        })?;
        match faults.problem() {
            None => Ok(faults),
            Some((field, value, allowed)) => {
                Err(MockFaultsError::Value { path: path.to_owned(), field, value, allowed })
            }
        }
    }

    fn problem(&self) -> Option<(String, String, &'static str)> {
        let chances = [
            ("copy_fails", self.copy_fails),
            ("copy_slow", self.copy_slow),
            ("step_fails", self.step_fails),
            ("step_slow", self.step_slow),
            ("mask_late", self.mask_late),
        ];
        let wrong = chances.into_iter().find(|(_, chance)| !(0.0..=1.0).contains(chance));
        if let Some((field, chance)) = wrong {
            return Some((field.to_owned(), chance.to_string(), "0 to 1"));
        }
        if !(1.0..=1000.0).contains(&self.slow_factor) {
            return Some(("slow_factor".to_owned(), self.slow_factor.to_string(), "1 to 1000"));
        }
        match self.lost_at_step {
            Some(first) if first.0 == 0 => {
                Some(("lost_at_step".to_owned(), first.0.to_string(), "1 and up"))
            }
            _ => timed_faults::problem(&self.timed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MockTimedFault, MockTimedFaultKind, StepId};

    fn read(name: &str, text: &str) -> Result<MockFaults, String> {
        let file = format!("tiercel-faults-{}-{name}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, text).expect("a file in the folder for temporary ones");
        let faults = MockFaults::from_file(&path).map_err(|error| error.to_string());
        std::fs::remove_file(&path).expect("it was there just now");
        faults
    }

    #[test]
    fn fields_are_read_by_name_and_what_is_left_out_breaks_nothing() {
        assert_eq!(read("empty", ""), Ok(MockFaults::default()));
        let faults =
            read("some", "copy_fails = 0.5\nstep_slow = 1\nmask_late = 0.25\nlost_at_step = 7\n");
        let lost_at_step = Some(StepId(7));
        let some = MockFaults {
            copy_fails: 0.5,
            step_slow: 1.0,
            mask_late: 0.25,
            lost_at_step,
            ..MockFaults::default()
        };
        assert_eq!(faults, Ok(some));
        let timed = "[[fault]]\nkind = 'slow_step'\nat_step = 9\nslow_ms = 40\n\
                     [[fault]]\nkind = 'lost_copy'\nat_s = 2\ntimes = 3\n";
        let fault = |kind, at_step, at_s, times, slow_ms| MockTimedFault {
            kind,
            at_step,
            at_s,
            times,
            slow_ms,
        };
        let timed_faults = vec![
            fault(MockTimedFaultKind::SlowStep, Some(StepId(9)), None, 1, 40),
            fault(MockTimedFaultKind::LostCopy, None, Some(2.0), 3, 0),
        ];
        assert_eq!(read("timed", timed).map(|faults| faults.timed), Ok(timed_faults));
    }

    #[test]
    fn the_shipped_examples_are_read() {
        for shipped in ["bad-link.toml", "timed.toml"] {
            let path =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/faults").join(shipped);
            let faults = MockFaults::from_file(&path).expect("a good file");
            assert_ne!(faults, MockFaults::default());
        }
    }

    #[test]
    fn an_error_is_one_line_with_file_field_and_what_is_allowed() {
        for (name, text, says) in [
            ("chance", "copy_fails = 1.5", "copy_fails is 1.5; allowed: 0 to 1"),
            ("nan", "step_slow = nan", "step_slow is NaN; allowed: 0 to 1"),
            ("factor", "slow_factor = 0.5", "slow_factor is 0.5; allowed: 1 to 1000"),
            ("zero", "lost_at_step = 0", "lost_at_step is 0; allowed: 1 and up"),
            ("unknown", "copy_fail = 0.1", "expected one of `copy_fails`, `copy_slow`"),
            ("type", "copy_fails = 'often'", "copy_fails"),
            (
                "kind",
                "[[fault]]\nkind = 'fire'\nat_s = 1",
                "expected one of `slow_step`, `failed_step`",
            ),
            (
                "place",
                "[[fault]]\nkind = 'full_host'",
                "at_step of [[fault]] 1 is missing; allowed: either",
            ),
        ] {
            let error = read(name, text).expect_err(text);
            assert!(error.contains(says) && error.contains(name), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let comment = "#".repeat(MAX_FILE_BYTES as usize);
        assert_eq!(read("full", &comment), Ok(MockFaults::default()));
        let error = read("large", &format!("{comment}\n")).expect_err("one byte too many");
        assert!(error.contains("has more than 65536 bytes"), "{error}");
        let missing = MockFaults::from_file(Path::new("/nonexistent/faults.toml"));
        assert!(missing.expect_err("no file").to_string().contains("/nonexistent/faults.toml"));
    }
}
