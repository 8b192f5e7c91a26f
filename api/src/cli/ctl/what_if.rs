//! The command `tiercel ctl what-if`: records live traffic, and replays it under other policies in a process of its
//! own.

use super::client::Client;
use super::record::{self, RecordLimits};
use crate::cli::failure::Failure;
use crate::cli::policy::Chosen;
use crate::cli::report_file::ReportFile;
use crate::cli::signals::at_signal;
use clap::Args;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tiercel_config::ServerSettings;
use tiercel_device::{Clock, Timestamp};

/// Most bytes of the simulation's stderr that are read.
const MAX_STDERR_BYTES: u64 = 16 << 10;
/// Interval at which the command looks at the recording and at the simulation.
const LOOK: Duration = Duration::from_millis(200);

/// Show what other policies would have done to the traffic of a running server
#[derive(Debug, Args)]
#[command(after_help = "\
Records the server's traffic for some minutes, or takes a recording, and replays it on this machine under
the settings in force and under other policies, by the server's own measured speed. The simulation runs in
a process of its own with low priority. The server goes on under its policy. If this command is ended while
it records, the server records on: `tiercel ctl record stop FILE` ends the recording.

Examples:
  tiercel ctl what-if --policy tiercel,priority+preempt --minutes 10 --keep traffic.jsonl
  tiercel ctl what-if --policy fcfs --recording traffic.jsonl")]
pub(super) struct WhatIf {
    /// Policies to compare with the settings in force: names (`tiercel policy list`) or .toml files of settings
    #[arg(
        long,
        alias = "policies",
        value_name = "A,B,...",
        value_delimiter = ',',
        required = true
    )]
    policy: Vec<String>,
    /// Set a setting of the engine under these policies, such as preemption.mode=swap; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    limits: RecordLimits,
    /// Recording to replay, instead of a new one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["minutes", "max_sequences", "keep"])]
    recording: Option<PathBuf>,
    /// Keep the recording in this file
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Longest time that the simulation may take, seconds
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit_s: u64,
}

impl WhatIf {
    pub(super) fn run(&self, client: &Client, json: bool) -> Result<(), Failure> {
        if self.recording.is_none() {
            self.check_policies(client)?;
        }
        let folder = tempfile::tempdir().map_err(Failure::new)?;
        let partial = self.keep.as_deref().and_then(ReportFile::partial_of);
        leave_nothing_behind(folder.path().to_owned(), partial).map_err(Failure::new)?;
        let recording = match &self.recording {
            Some(recording) => recording.clone(),
            None => self.record(client, folder.path())?,
        };
        let report = folder.path().join("report.json");
        let child = self.simulation(&recording, json.then_some(&report))?;
        wait(child, self.limit_s)?;
        if json {
            let text = std::fs::read_to_string(&report).map_err(Failure::new)?;
            let printed = writeln!(std::io::stdout().lock(), "{text}");
            printed.map_err(|error| Failure::new(format!("cannot print the report: {error}")))?;
        }
        Ok(())
    }

    /// Finds mistakes in the policies before the recording, which takes minutes: loads each policy over the settings of
    /// the server.
    fn check_policies(&self, client: &Client) -> Result<(), Failure> {
        let mut answer = client.get("/control/v1/policy", &[])?;
        let engine = serde_json::from_value(answer["settings"].take()).map_err(Failure::new)?;
        let base = ServerSettings { engine, ..ServerSettings::default() };
        for policy in &self.policy {
            Chosen::load(policy, &base, &self.settings)?;
        }
        Ok(())
    }

    /// Records until the recording ends at a limit. Returns its file.
    fn record(&self, client: &Client, folder: &Path) -> Result<PathBuf, Failure> {
        let path = self.keep.clone().unwrap_or_else(|| folder.join("recording.jsonl"));
        let file = ReportFile::create(path.clone())?;
        let mut state = record::start(client, &self.limits)?;
        let watched = std::io::stderr().is_terminal();
        while state["state"] == "running" {
            if watched {
                let (elapsed_s, sequences) = (&state["elapsed_s"], &state["sequences"]);
                eprint!(
                    "\rrecording: {:.0} s, {sequences} sequences  ",
                    elapsed_s.as_f64().unwrap_or(0.0)
                );
            }
            std::thread::park_timeout(LOOK);
            state = record::status(client)?;
        }
        if watched {
            eprint!("\r\x1b[K");
        }
        record::stop(client, file)?;
        Ok(path)
    }

    /// Starts the simulation as a process with low priority, if the system has the program `nice`.
    fn simulation(&self, recording: &Path, report: Option<&PathBuf>) -> Result<Child, Failure> {
        let program = std::env::current_exe().map_err(Failure::new)?;
        let with = |mut command: Command| {
            command.arg("simulate").arg(recording).arg("--policy").arg(self.policy.join(","));
            for setting in &self.settings {
                command.arg("--set").arg(setting);
            }
            if let Some(report) = report {
                command.arg("--json").arg(report).stdout(Stdio::null());
            }
            // However this process ends, the pipe closes, and the child ends when the pipe closes.
            command.arg("--until-stdin-ends").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let mut nice = Command::new("nice");
        nice.args(["-n", "10"]).arg(&program);
        with(nice)
            .or_else(|_| with(Command::new(&program)))
            .map_err(|error| Failure::new(format!("cannot start the simulation: {error}")))
    }
}

/// Installs a handler of signals that end this process. The handler removes `folder`, and `partial`, the unfinished
/// file of the recording, before the process ends. The simulation is a child process that ends when this process ends.
fn leave_nothing_behind(folder: PathBuf, partial: Option<PathBuf>) -> std::io::Result<()> {
    at_signal(move |code| {
        // Ignore errors: the command may have removed the folder by itself, and completed the file, meanwhile.
        let _ = std::fs::remove_dir_all(folder);
        let _ = partial.map(std::fs::remove_file);
        std::process::exit(code);
    })
}

/// Returns what a simulation that failed has written on stderr: a line.
fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        // Ignore text that cannot be read: the message then says less.
        let _ = stderr.take(MAX_STDERR_BYTES).read_to_string(&mut text);
    }
    let line = text.trim().trim_start_matches("tiercel: ");
    if line.is_empty() { "the simulation ended early".to_owned() } else { line.to_owned() }
}

/// Waits for the end of the simulation, and ends it if it takes too long.
fn wait(mut child: Child, limit_s: u64) -> Result<(), Failure> {
    let clock = Clock::wall();
    let until = Timestamp(clock.now().0 + limit_s * 1_000_000);
    loop {
        match child.try_wait().map_err(Failure::new)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
                return Err(Failure { message: last_words(&mut child), code });
            }
            None if clock.now() > until => {
                // Ignore that the process may have ended by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(Failure::new(format!(
                    "the simulation took longer than {limit_s} s; state a longer --limit-s, or record less"
                )));
            }
            None => std::thread::park_timeout(LOOK),
        }
    }
}
