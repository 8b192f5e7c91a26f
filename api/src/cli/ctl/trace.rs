//! The command `tiercel ctl trace`: writes the steps, copies and requests of a running server to a file for Perfetto.

use super::client::Client;
use crate::cli::failure::Failure;
use crate::cli::report_file::ReportFile;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that the server takes for the file after the time of the trace.
const WRITING: Duration = Duration::from_secs(60);

/// Length of the trace, and its file.
#[derive(Debug, Args)]
pub(super) struct Trace {
    /// File to write
    file: PathBuf,
    /// Length of the trace, seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

impl Trace {
    /// Returns the longest wait for the answer.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.seconds) + WRITING
    }

    /// Takes the trace and writes the file. Returns a line that names the file and the viewer for it.
    pub(super) fn run(self, client: &Client) -> Result<String, Failure> {
        let shown = self.file.display().to_string();
        // Create the file before the trace begins, to report a path that cannot be written at once.
        let file = ReportFile::create(self.file)?;
        let trace =
            client.get_text("/control/v1/trace", &[("seconds", self.seconds.to_string())])?;
        file.write_text(&trace)?;
        Ok(format!("{shown}: open it at https://ui.perfetto.dev"))
    }
}
