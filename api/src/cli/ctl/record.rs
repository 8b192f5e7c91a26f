//! The command `tiercel ctl record`: records live traffic of a running server to a file.

use super::client::Client;
use crate::cli::failure::Failure;
use crate::cli::report_file::ReportFile;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Path of the recording in the control API.
const PATH: &str = "/control/v1/recording";

/// Record when requests arrive, how long their prompts and outputs are, and what they ask for; never their text
#[derive(Debug, Args)]
#[command(after_help = "\
The server keeps the recording in its memory until the next one begins, also if this command ends. A
recording ends at its limits. Its file is the input of `tiercel simulate FILE --policy A,B` and of
`tiercel ctl what-if --recording FILE`. It shows all tenants' traffic, without names and text.")]
pub(super) struct Record {
    #[command(subcommand)]
    command: RecordCommand,
}

#[derive(Debug, Subcommand)]
enum RecordCommand {
    /// Begin a recording, in place of the last one
    Start(RecordLimits),
    /// End the recording and write it to a file; one that has ended is written again
    Stop {
        /// File to write
        file: PathBuf,
    },
    /// Show whether a recording runs, and how large it is
    Status,
}

/// Limits of a recording.
#[derive(Debug, Args)]
pub(super) struct RecordLimits {
    /// Time after which the recording ends, minutes
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1440))]
    pub(super) minutes: u64,
    /// Number of choices at which the recording ends
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    pub(super) max_sequences: u32,
}

impl Record {
    pub(super) fn run(
        self,
        client: &Client,
        print: &impl Fn(&Value, fn(&Value) -> String),
    ) -> Result<(), Failure> {
        match self.command {
            RecordCommand::Start(limits) => print(&start(client, &limits)?, text),
            RecordCommand::Stop { file } => {
                // Create the file first: if that fails, the recording goes on.
                let file = ReportFile::create(file)?;
                print(&stop(client, file)?, text);
            }
            RecordCommand::Status => print(&status(client)?, text),
        }
        Ok(())
    }
}

/// Begins a recording. Returns its state.
pub(super) fn start(client: &Client, limits: &RecordLimits) -> Result<Value, Failure> {
    let RecordLimits { minutes, max_sequences } = limits;
    let body = json!({"max_s": minutes * 60, "max_sequences": max_sequences});
    Ok(client.post(PATH, &body)?)
}

/// Returns the state of the recording.
pub(super) fn status(client: &Client) -> Result<Value, Failure> {
    Ok(client.get(PATH, &[])?)
}

/// Ends the recording and writes it to a file. Returns its state.
pub(super) fn stop(client: &Client, file: ReportFile) -> Result<Value, Failure> {
    let state = client.post(&format!("{PATH}/stop"), &json!({}))?;
    let mut writer = file.writer()?;
    client.fetch(&format!("{PATH}/file"), &mut writer)?;
    file.keep()?;
    Ok(state)
}

/// Returns the line about the state of a recording.
fn text(state: &Value) -> String {
    let number = |name: &str| state[name].as_u64().unwrap_or(0);
    let elapsed_s = state["elapsed_s"].as_f64().unwrap_or(0.0);
    let size = format!(
        "{} sequences ({} live) and {} steps in {elapsed_s:.0} s",
        number("sequences"),
        number("live"),
        number("steps")
    );
    let size = size + &left_out(state);
    match (state["state"].as_str(), state["cut"].as_str()) {
        (Some("running"), _) => format!(
            "recording: {size}; ends after {} s or {} sequences",
            number("max_s"),
            number("max_sequences")
        ),
        (Some("ended"), Some(limit)) => format!("recorded: {size}; ended at its limit ({limit})"),
        (Some("ended"), None) => format!("recorded: {size}"),
        _ => "no recording".to_owned(),
    }
}

/// Returns the words about steps and prompts that the recording had no room for.
fn left_out(state: &Value) -> String {
    let steps = match state["steps_cut"].as_bool() {
        Some(true) => "; the step log is full, later steps are left out",
        _ => "",
    };
    match state["prefixes_cut"].as_u64() {
        None | Some(0) => steps.to_owned(),
        Some(prompts) => format!("{steps}; beginnings of {prompts} prompts are cut"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_large_a_recording_is_and_what_ended_it() {
        let mut state = json!({
            "state": "running", "sequences": 7, "live": 2, "steps": 40, "elapsed_s": 12.4,
            "max_sequences": 100, "max_s": 60, "cut": null,
        });
        assert_eq!(
            text(&state),
            "recording: 7 sequences (2 live) and 40 steps in 12 s; ends after 60 s or 100 sequences"
        );
        state["state"] = json!("ended");
        assert_eq!(text(&state), "recorded: 7 sequences (2 live) and 40 steps in 12 s");
        state["cut"] = json!("time");
        assert!(text(&state).ends_with("; ended at its limit (time)"), "{}", text(&state));
        state["steps_cut"] = json!(true);
        state["prefixes_cut"] = json!(3);
        assert_eq!(
            text(&state),
            "recorded: 7 sequences (2 live) and 40 steps in 12 s; the step log is full, later steps are left out; \
             beginnings of 3 prompts are cut; ended at its limit (time)"
        );
        assert_eq!(text(&json!({"state": "none"})), "no recording");
    }
}
