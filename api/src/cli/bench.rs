//! The command `tiercel bench`: measures a server as its clients see it, or calibrates a device profile from it.

use crate::cli::calibrate::CalibrateArgs;
use crate::cli::failure::Failure;
use crate::cli::report_file::ReportFile;
use clap::Args;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use tiercel_benches::{Event, Limits, Measurement, Progress, Target, run};
use tiercel_workload::Workload;

/// Send a workload to a server and report the latencies that clients see, by tier; or calibrate the server.
#[derive(Debug, Args)]
#[command(after_help = "\
Any server with OpenAI's completions API can be measured. Workloads are TOML files; benches/workloads
has examples.

--calibrate measures a Tiercel server under a built-in load (100 s; nothing else should run on its machine),
or under --workload, and writes a device profile for `tiercel simulate --profile FILE`: the times of steps
and requests, and their spread. The more the load is like your traffic, the better the profile. It also
suggests a step size for the server, from simulated runs of the same load.

Examples:
  tiercel bench --url http://127.0.0.1:8080 --workload benches/workloads/single-stream.toml --json r.json
  tiercel bench --url http://127.0.0.1:8080 --calibrate here.toml
  tiercel bench --url http://127.0.0.1:8080 --calibrate here.toml --workload like-my-traffic.toml")]
pub(crate) struct Bench {
    /// Base URL of the server, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    url: String,
    /// Workload file (TOML): which requests are sent, and when
    #[arg(long, value_name = "FILE", required_unless_present = "calibrate")]
    workload: Option<PathBuf>,
    /// Measure the server and write its device profile to this file (TOML)
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    #[command(flatten)]
    calibration: CalibrateArgs,
    /// Write the full report to this file (JSON); an existing file is replaced when the run is over
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a row for each request to this file (CSV): its outcome, tokens and latencies; an existing file is replaced
    /// when the run is over
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Model that requests name; by default the first that the server lists
    #[arg(long)]
    model: Option<String>,
    /// Also send the field `priority`: 0 for premium, 1 for standard, 2 for background (for vLLM with
    /// --scheduling-policy priority)
    #[arg(long)]
    send_priority: bool,
    /// API key, sent as a bearer token
    #[arg(long, env = "TIERCEL_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Certificates (PEM) of the authorities to trust for https; by default those that browsers trust
    #[arg(long, value_name = "FILE", env = "TIERCEL_CA_FILE")]
    ca: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let workload = self.workload.as_deref().map(Workload::load).transpose();
        let workload = workload.map_err(Failure::usage)?;
        // Open the report files before the run, so that a file that cannot be written is reported at once and not after
        // the run.
        let json = self.json.map(ReportFile::create).transpose()?;
        let mut requests = self.requests.map(RequestsFile::create).transpose()?;
        let profile = self.calibrate.map(ReportFile::create).transpose()?;
        let target = Target {
            url: self.url,
            api_key: self.api_key,
            ca_file: self.ca,
            model: self.model,
            send_priority: self.send_priority,
            limits: Limits::default(),
        };
        let watched = std::io::stderr().is_terminal();
        let watch = |event: Event<'_>| match (event, &mut requests) {
            (Event::Progress(progress), _) => tell(progress, watched),
            (Event::Ended(measurement), Some(file)) => file.add(measurement),
            (Event::Ended(_), None) => {}
        };
        let report = match (profile, workload) {
            (Some(file), workload) => self.calibration.run(workload, &target, file, watch)?.report,
            (None, workload) => {
                let workload = workload.expect("clap requires it where it is needed");
                let ran = actix_rt::System::new().block_on(run(&workload, &target, watch));
                ran.map_err(Failure::new)?
            }
        };
        if watched {
            eprintln!();
        }
        println!("{}", report.table(std::io::stdout().is_terminal()));
        if let Some(json) = json {
            json.write(&report)?;
        }
        if let Some(requests) = requests {
            requests.keep()?;
        }
        if report.total.completed == 0 {
            let message = "no request completed within the measured window; see the report";
            return Err(Failure::new(message));
        }
        Ok(())
    }
}

/// File with a row for each request of a run.
struct RequestsFile {
    file: ReportFile,
    writer: BufWriter<File>,
    /// First error in writing a row. The run goes on, without further rows.
    failed: Option<std::io::Error>,
}

impl RequestsFile {
    fn create(path: PathBuf) -> Result<RequestsFile, Failure> {
        let file = ReportFile::create(path)?;
        let mut writer = BufWriter::new(file.writer()?);
        let failed = writeln!(writer, "{}", Measurement::COLUMNS).err();
        Ok(RequestsFile { file, writer, failed })
    }

    fn add(&mut self, measurement: &Measurement) {
        if self.failed.is_none() {
            self.failed = writeln!(self.writer, "{measurement}").err();
        }
    }

    /// Completes the file, or returns the first error.
    fn keep(mut self) -> Result<(), Failure> {
        match self.failed.or_else(|| self.writer.flush().err()) {
            Some(error) => Err(self.file.failure(&error)),
            None => self.file.keep(),
        }
    }
}

fn tell(progress: &Progress, watched: bool) {
    if watched {
        let Progress { elapsed_s, sent, in_flight, unsuccessful } = progress;
        eprint!(
            "\r{elapsed_s:6.0} s, {sent} sent, {in_flight} running, {unsuccessful} unsuccessful  "
        );
    }
}
