//! Replays a recording of live traffic under several policies: `tiercel simulate RECORDING`.

use crate::cli::failure::Failure;
use crate::cli::policy::Chosen;
use crate::cli::report_file::ReportFile;
use serde::Deserialize;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use tiercel_config::{EngineSettings, Loader, ServerSettings};
use tiercel_simulation::Experiment;
use tiercel_simulation::what_if::{Replayed, WhatIf};
use tiercel_workload::Recording;

/// Options of a replay.
pub(crate) struct Options<'a> {
    /// Policies to compare with the settings in force: names or files.
    pub(crate) policies: &'a [String],
    /// Seed of the noise of step times.
    pub(crate) seed: u64,
    /// Settings that are set under every policy but the settings in force.
    pub(crate) settings: &'a [String],
    pub(crate) json: Option<PathBuf>,
}

/// Replays a recording under the settings in force and under each policy, and prints what would have changed.
pub(crate) fn run(path: &Path, options: &Options<'_>) -> Result<(), Failure> {
    let recording = Recording::load(path).map_err(Failure::usage)?;
    let in_force = settings_of(&recording)?;
    let chosen = chosen(&in_force, options)?;
    let json = options.json.clone().map(ReportFile::create).transpose()?;
    let mut replayed = Vec::new();
    for Chosen { name, settings, .. } in chosen {
        let experiment = Experiment::of_recording(&recording, settings, options.seed);
        let replay = replay(&experiment, &name, recording.header.length_s)?;
        replayed.push((name, replay));
    }
    let what_if = WhatIf::of(env!("CARGO_PKG_VERSION"), &recording, replayed);
    if let Some(json) = json {
        json.write(&what_if)?;
    }
    let printed = write!(std::io::stdout(), "{what_if}");
    printed.map_err(|error| Failure::new(format!("cannot print the table: {error}")))
}

fn settings_of(recording: &Recording) -> Result<EngineSettings, Failure> {
    EngineSettings::deserialize(&recording.header.settings).map_err(|error| {
        Failure::usage(format!(
            "cannot read the settings in the recording of version {}; use `tiercel simulate` of that version: {error}",
            recording.header.version
        ))
    })
}

/// Returns the settings in force under their policy's name, then those of the other policies. A policy replaces the
/// settings that its name stands for; all others stay as they were in force.
fn chosen(in_force: &EngineSettings, options: &Options<'_>) -> Result<Vec<Chosen>, Failure> {
    let base = ServerSettings { engine: in_force.clone(), ..ServerSettings::default() };
    let name = in_force.scheduler.policy.name().to_owned();
    let others =
        options.policies.iter().filter(|policy| **policy != name || !options.settings.is_empty());
    let others = others.map(|policy| Chosen::load(policy, &base, options.settings));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    // Settings in force have no warnings: the server gave them at its start.
    let (settings, _) = Loader::over(base.clone()).finish().map_err(Failure::usage)?;
    let first = Chosen { name, settings: settings.engine, warnings: Vec::new() };
    Ok(std::iter::once(first).chain(others).collect())
}

fn replay(experiment: &Experiment, policy: &str, total_s: f64) -> Result<Replayed, Failure> {
    let watched = std::io::stderr().is_terminal();
    let name = policy.to_owned();
    let progress = move |at_s: f64| {
        if watched {
            eprint!("\r{name}: {:3.0} %  ", 100.0 * at_s / total_s);
        }
    };
    let replayed = experiment.replay(progress);
    if watched {
        eprint!("\r\x1b[K");
    }
    replayed.map_err(Failure::new)
}
