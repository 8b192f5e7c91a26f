//! `tiercel bench`.

use crate::cli::Failure;
use clap::Args;
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tiercel_benches::{Limits, Progress, Report, Target, Workload, run};

/// Send a workload to a server and report what its clients saw, by tier.
#[derive(Debug, Args)]
#[command(after_help = "\
The server may be any that speaks OpenAI's completions API. Workloads are TOML files; benches/workloads
has some.

Example:
  tiercel bench --url http://127.0.0.1:8080 --workload benches/workloads/single-stream.toml --json r.json")]
pub(crate) struct Bench {
    /// Base URL of the server
    #[arg(long, value_name = "URL")]
    url: String,
    /// Workload file (TOML)
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,
    /// Write the full report here; a file of that name is replaced when the run is over
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Model to ask for; by default the server's first
    #[arg(long)]
    model: Option<String>,
    /// Sent as a bearer token
    #[arg(long, env = "TIERCEL_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let workload = Workload::load(&self.workload).map_err(Failure::usage)?;
        // A report that cannot be written should fail before the run, not after it.
        let json = self.json.map(ReportFile::create).transpose()?;
        let target = Target {
            url: self.url,
            api_key: self.api_key,
            model: self.model,
            limits: Limits::default(),
        };
        let watched = std::io::stderr().is_terminal();
        let report = actix_rt::System::new()
            .block_on(run(&workload, &target, |progress| tell(progress, watched)))
            .map_err(Failure::new)?;
        if watched {
            eprintln!();
        }
        println!("{}", report.table(std::io::stdout().is_terminal()));
        if let Some(json) = json {
            json.write(&report)?;
        }
        if report.total.completed == 0 {
            let message = "no request completed within the measured window; see the report";
            return Err(Failure::new(message));
        }
        Ok(())
    }
}

/// A report that takes its place when it is complete; until then an older one stays.
struct ReportFile {
    path: PathBuf,
    file: File,
    /// Where it is written first; removed if nothing comes of it. Devices and pipes are written directly.
    partial: Option<PathBuf>,
}

impl ReportFile {
    fn create(path: PathBuf) -> Result<ReportFile, Failure> {
        let direct = path.metadata().is_ok_and(|found| !found.is_file());
        let partial = (!direct).then(|| {
            let mut name = path.as_os_str().to_owned();
            name.push(".partial");
            PathBuf::from(name)
        });
        match File::create(partial.as_ref().unwrap_or(&path)) {
            Ok(file) => Ok(ReportFile { path, file, partial }),
            Err(error) => Err(cannot_write(&path, &error)),
        }
    }

    fn write(mut self, report: &Report) -> Result<(), Failure> {
        let written = serde_json::to_writer_pretty(&self.file, report)
            .map_err(std::io::Error::from)
            .and_then(|()| match &self.partial {
                Some(partial) => std::fs::rename(partial, &self.path),
                None => Ok(()),
            });
        written.map_err(|error| cannot_write(&self.path, &error))?;
        self.partial = None;
        Ok(())
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // What failed has been told; an empty file that stays does no harm.
            let _ = std::fs::remove_file(partial);
        }
    }
}

fn cannot_write(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()))
}

fn tell(progress: &Progress, watched: bool) {
    if watched {
        let Progress { elapsed_s, sent, in_flight, unsuccessful } = progress;
        eprint!(
            "\r{elapsed_s:6.0} s, {sent} sent, {in_flight} running, {unsuccessful} unsuccessful  "
        );
    }
}
