//! The command `tiercel policy`, and scheduling policies that are chosen by name or file on the command line.

use crate::cli::failure::Failure;
use clap::{Args, Subcommand};
use std::io::Write;
use std::path::Path;
use tiercel_config::{EngineSettings, Loader, Policy, ServerSettings};

/// List the scheduling policies, or print the settings of one.
#[derive(Debug, Args)]
#[command(after_help = "\
A policy is a named set of values for the settings in [scheduler], [preemption] and [shedding], which
docs/configuration.md explains. Each value can be overridden: `tiercel serve --policy vllm-v1 --set
preemption.mode=swap`. The output of `show` can be saved to a file, changed, and given to `tiercel
simulate --policy FILE.toml` or `tiercel serve --config FILE.toml`.")]
pub(crate) struct PolicyCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List all policies, one line each; * marks the default
    List,
    /// Print all settings of one policy, as TOML
    Show {
        /// Name of the policy
        name: String,
    },
}

impl PolicyCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let text = match self.what {
            What::List => list(),
            What::Show { name } => show(&name)?,
        };
        let printed = std::io::stdout().write_all(text.as_bytes());
        printed.map_err(|error| Failure::new(format!("cannot print the policy: {error}")))
    }
}

fn list() -> String {
    let width = Policy::ALL.iter().map(|(_, name)| name.len()).max().unwrap_or(0);
    let line = |(policy, name): &(Policy, &str)| {
        let default = if *policy == Policy::default() { "*" } else { " " };
        format!("{default} {name:width$}  {}\n", policy.preset().about)
    };
    Policy::ALL.iter().map(line).collect()
}

fn show(name: &str) -> Result<String, Failure> {
    let known = Policy::ALL.iter().find(|(_, known)| *known == name);
    known.map(|(policy, _)| policy.to_toml()).ok_or_else(|| Failure::usage(unknown(name)))
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = Policy::ALL.iter().map(|(_, name)| *name).collect();
    format!("no policy {name}; there are: {}", names.join(", "))
}

/// A scheduling policy that was chosen by name or by a file, and the engine's settings under it.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    /// Name of the scheduling policy, or of its file without the extension.
    pub(crate) name: String,
    pub(crate) settings: EngineSettings,
    /// Warnings that came up while the settings were loaded.
    pub(crate) warnings: Vec<String>,
}

impl Chosen {
    /// Loads the scheduling policy `choice`, a name or a .toml file of settings, on top of the settings `base`. Then
    /// applies the settings in `assignments` (`NAME=VALUE`).
    pub(crate) fn load(
        choice: &str,
        base: &ServerSettings,
        assignments: &[String],
    ) -> Result<Chosen, Failure> {
        let mut loader = Loader::over(base.clone());
        let name = if choice.ends_with(".toml") {
            let path = Path::new(choice);
            loader.file(path).map_err(Failure::usage)?;
            path.file_stem().map_or(choice.into(), |stem| stem.to_string_lossy().into_owned())
        } else if Policy::ALL.iter().any(|(_, known)| *known == choice) {
            let named = loader.assignment(&format!("scheduler.policy={choice}"));
            named.map_err(Failure::usage)?;
            choice.to_owned()
        } else {
            return Err(Failure::usage(format!(
                "{}; or give a .toml file of settings",
                unknown(choice)
            )));
        };
        for given in loader.given() {
            let table = given.split('.').next().unwrap_or_default();
            if !Policy::TABLES.contains(&table) {
                return Err(Failure::usage(format!("{choice}: {given} is no part of a policy")));
            }
        }
        for assignment in assignments {
            loader.assignment(assignment).map_err(Failure::usage)?;
        }
        let (settings, warnings) = loader.finish().map_err(Failure::usage)?;
        Ok(Chosen { name, settings: settings.engine, warnings })
    }
}
