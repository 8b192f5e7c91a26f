//! Files that commands write reports to; a file appears under its name only when it is complete.

use crate::cli::failure::Failure;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// File of a report. The report is written under a temporary name and renamed when it is complete; until then an older
/// file of the final name stays.
pub(crate) struct ReportFile {
    path: PathBuf,
    file: File,
    /// Temporary path that the report is written to; removed if the report is not completed. `None` for devices and
    /// pipes, which are written directly.
    partial: Option<PathBuf>,
}

impl ReportFile {
    pub(crate) fn create(path: PathBuf) -> Result<ReportFile, Failure> {
        let partial = ReportFile::partial_of(&path);
        match File::create(partial.as_ref().unwrap_or(&path)) {
            Ok(file) => Ok(ReportFile { path, file, partial }),
            Err(error) => Err(cannot_write(&path, &error)),
        }
    }

    /// Returns the temporary path that the report with the final path `path` is written to; `None` for devices and
    /// pipes.
    pub(crate) fn partial_of(path: &Path) -> Option<PathBuf> {
        let direct = path.metadata().is_ok_and(|found| !found.is_file());
        (!direct).then(|| {
            let mut name = path.as_os_str().to_owned();
            name.push(".partial");
            PathBuf::from(name)
        })
    }

    pub(crate) fn write(self, report: &impl Serialize) -> Result<(), Failure> {
        let written = serde_json::to_writer_pretty(&self.file, report);
        written.map_err(|error| self.failure(&error))?;
        self.keep()
    }

    pub(crate) fn write_text(mut self, text: &str) -> Result<(), Failure> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| self.failure(&error))?;
        self.keep()
    }

    /// Returns the open file of a report that is written piece by piece; [`ReportFile::keep`] completes the report.
    pub(crate) fn writer(&self) -> Result<File, Failure> {
        self.file.try_clone().map_err(|error| self.failure(&error))
    }

    /// Renames the complete report to its final name.
    pub(crate) fn keep(mut self) -> Result<(), Failure> {
        if let Some(partial) = &self.partial {
            std::fs::rename(partial, &self.path).map_err(|error| self.failure(&error))?;
        }
        self.partial = None;
        Ok(())
    }

    /// Returns the failure "cannot write" for the report's file, with the reason `error`.
    pub(crate) fn failure(&self, error: &dyn std::fmt::Display) -> Failure {
        cannot_write(&self.path, error)
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Ignore that the temporary file cannot be removed: it does no harm, and the error that ended the report is
            // already reported.
            let _ = std::fs::remove_file(partial);
        }
    }
}

fn cannot_write(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()))
}
