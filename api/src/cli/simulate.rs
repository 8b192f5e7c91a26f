//! The command `tiercel simulate`: runs a workload through the engine on a mock device in simulated time.

use crate::cli::failure::Failure;
use crate::cli::fuzz;
use crate::cli::parent;
use crate::cli::policy::Chosen;
use crate::cli::recording::{Recording, RecordingArgs};
use crate::cli::replay;
use crate::cli::report_file::ReportFile;
use clap::Args;
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::path::PathBuf;
use tiercel_config::{EngineSettings, ServerSettings};
use tiercel_device::{Clock, MockDrift, MockFaults, MockProfile};
use tiercel_simulation::{Comparison, Experiment, Outcome, PolicyRuns, Sizes};
use tiercel_workload::{Arrival, Class, Workload};

/// Value of the flag `--drift` given without a time span: the device is slow every other minute.
const EVERY_OTHER_MINUTE: &str = "every other minute";
/// Maximum number of seeds in one call of `tiercel simulate`.
const MAX_SEEDS: u64 = 1000;

/// Run a workload through the engine on a mock device in simulated time, policy by policy.
#[derive(Debug, Args)]
#[command(after_help = "\
The engine is that of the server; only the device and the clock are simulated. Equal seeds give equal
results. Workloads are TOML files; benches/workloads has examples.

The sizes of the engine (tokens in a step, slots, queues) are a CPU server's defaults, overridden by the
device's profile, then by the workload, then by --set. The table is printed below the sizes in effect.

With --fuzz there is no workload. Each seed draws a hostile scenario: a device with hardly any memory,
extreme settings, clients that leave or read slowly, and faults. All invariants of the engine are checked.

Examples:
  tiercel simulate --workload benches/workloads/w2-memory-tight.toml --policy fcfs,tiercel --seeds 1..7 \\
      --noise 0.1 --json result.json
  tiercel simulate traffic.jsonl --policy fcfs,tiercel     what other policies would have done
  tiercel simulate --fuzz 10000      if a scenario fails, --fuzz 1 --seed N plays it again")]
pub(crate) struct Simulate {
    /// Recording of live traffic (`tiercel ctl record`) to replay on the recorded server: compares what the server
    /// measured, its settings in force and the policies
    #[arg(value_name = "RECORDING", conflicts_with_all = ["fuzz", "workload", "profile", "seeds", "duration",
          "load", "noise", "drift", "faults", "returning", "trace", "html"])]
    recorded: Option<PathBuf>,
    /// Workload file (TOML): which requests are sent, and when
    #[arg(long, value_name = "FILE", required_unless_present_any = ["fuzz", "recorded"])]
    workload: Option<PathBuf>,
    /// Profile of the device: the name of a built-in profile, or a .toml file
    #[arg(long, value_name = "NAME", default_value = "llama70b-tp8-a100")]
    profile: String,
    /// Policies to compare: names (`tiercel policy list`) or .toml files of settings
    #[arg(
        long,
        alias = "policies",
        value_name = "A,B,...",
        value_delimiter = ',',
        default_value = "fcfs,tiercel"
    )]
    policy: Vec<String>,
    /// Seed of the run, instead of the workload's own; with --fuzz the first seed [default with --fuzz: 0]
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds of the runs: A to B, B not included
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// Duration of the simulated run, instead of the workload's own, seconds
    #[arg(long, value_name = "S")]
    duration: Option<f64>,
    /// Factor on the request rates of the workload's Poisson classes and traces
    #[arg(long, value_name = "K", default_value_t = 1.0)]
    load: f64,
    /// Spread of step times: sigma of a log-normal factor with mean 1; 0 to 2
    #[arg(long, value_name = "SIGMA", default_value_t = 0.0)]
    noise: f64,
    /// Slow steps down by a fifth of their fixed cost from second A to second B; without A..B, in every other
    /// minute, the first included
    #[arg(long, value_name = "A..B", value_parser = slow_time, num_args = 0..=1, require_equals = true,
          default_missing_value = EVERY_OTHER_MINUTE)]
    drift: Option<MockDrift>,
    /// File of faults that the device injects (TOML); benches/faults has an example
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Share of the refused requests that come back once, when they were told to, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    returning: f64,
    /// Number of hostile scenarios to play, from consecutive seeds, instead of a workload
    #[arg(long, value_name = "N", conflicts_with_all = ["workload", "profile", "policy", "seeds",
          "duration", "load", "noise", "drift", "faults", "returning", "settings", "json"])]
    fuzz: Option<u64>,
    /// Set a setting of the engine by its name, such as preemption.mode=swap; may be repeated. Latency targets
    /// come from the workload
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Write all results to this file (JSON); an existing file is replaced when the runs are over
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End the process when its standard input ends. `tiercel ctl what-if` holds the other end of the pipe, so the
    /// simulation cannot outlive that command
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    #[command(flatten)]
    recording: RecordingArgs,
}

impl Simulate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.until_stdin_ends {
            parent::end_with_stdin().map_err(Failure::new)?;
        }
        if let Some(scenarios) = self.fuzz {
            return fuzz::run(self.seed.unwrap_or(0), scenarios);
        }
        if let Some(recording) = &self.recorded {
            let options = replay::Options {
                policies: &self.policy,
                seed: self.seed.unwrap_or(1),
                settings: &self.settings,
                json: self.json,
            };
            return replay::run(recording, &options);
        }
        self.compare()
    }

    /// Simulates a workload under each policy, and prints the results.
    fn compare(self) -> Result<(), Failure> {
        let workload = self.load_workload()?;
        let profile = MockProfile::named(&self.profile).map_err(Failure::usage)?;
        self.check_ranges()?;
        let faults = self.faults.as_deref().map(MockFaults::from_file).transpose();
        let faults = faults.map_err(Failure::usage)?.unwrap_or_default();
        let chosen = self.chosen(&workload, &profile)?;
        let json = self.json.as_ref().map(|path| ReportFile::create(path.clone())).transpose()?;
        let seeds = self.seeds_of(&workload);
        let mut recording = self.recording.begin(&workload, self.policy.len())?;
        let clock = Clock::wall();
        let began = clock.now();
        let mut policies = Vec::new();
        for Chosen { name, settings, .. } in chosen {
            let mut runs = Vec::new();
            for seed in &seeds {
                let experiment = Experiment {
                    workload: Workload { seed: *seed, ..workload.clone() },
                    profile: profile.clone(),
                    settings: settings.clone(),
                    noise_sigma: self.noise,
                    drift: self.drift.clone(),
                    faults: faults.clone(),
                    returning: self.returning / 100.0,
                };
                runs.push(watched_run(&experiment, &name, &mut recording)?);
            }
            let sizes = Sizes::of(&settings, &workload.simulation, &profile);
            policies.push(PolicyRuns { policy: name, settings, sizes, runs });
        }
        let comparison = Comparison {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            workload,
            load: self.load,
            profile: profile.name,
            noise_sigma: self.noise,
            drift: self.drift.is_some(),
            faults,
            returning_percent: self.returning,
            policies,
        };
        if let Some(json) = json {
            json.write(&comparison)?;
        }
        recording.finish(&comparison)?;
        let printed = write!(std::io::stdout(), "{comparison}");
        printed.map_err(|error| Failure::new(format!("cannot print the table: {error}")))?;
        let runs = comparison.policies.iter().map(|policy| policy.runs.len()).sum::<usize>() as f64;
        let speed = comparison.simulated_s() * runs / clock.now().since_ms(began) * 1000.0;
        eprintln!("{speed:.0} simulated seconds per second");
        Ok(())
    }

    /// Checks the ranges of the numeric flags `--noise` and `--returning`.
    fn check_ranges(&self) -> Result<(), Failure> {
        if !(0.0..=2.0).contains(&self.noise) {
            return Err(Failure::usage(format!("--noise is {}; allowed: 0 to 2", self.noise)));
        }
        if !(0.0..=100.0).contains(&self.returning) {
            let problem = format!("--returning is {}; allowed: 0 to 100", self.returning);
            return Err(Failure::usage(problem));
        }
        Ok(())
    }

    /// Returns the seeds of the runs: those of the flags `--seed` or `--seeds`, otherwise the workload's seed.
    fn seeds_of(&self, workload: &Workload) -> Vec<u64> {
        match (self.seed, &self.seeds) {
            (Some(seed), _) => vec![seed],
            (None, Some(range)) => range.clone().collect(),
            (None, None) => vec![workload.seed],
        }
    }

    fn load_workload(&self) -> Result<Workload, Failure> {
        if !(self.load > 0.0 && self.load <= 1000.0) {
            let problem = format!("--load is {}; allowed: above 0, at most 1000", self.load);
            return Err(Failure::usage(problem));
        }
        let path = self.workload.as_ref().expect("clap requires it where it is needed");
        let mut workload = Workload::load(path).map_err(Failure::usage)?.at_load(self.load);
        let open = |class: &Class| !matches!(class.arrival, Arrival::Closed(_));
        if self.load != 1.0 && !workload.classes.iter().any(open) {
            return Err(Failure::usage(
                "--load needs a class with Poisson arrivals or a trace; the workload has none",
            ));
        }
        if let Some(duration_s) = self.duration {
            workload.duration_s = duration_s;
        }
        match workload.problem() {
            None => Ok(workload),
            Some((field, problem)) => Err(Failure::usage(format!("{field} {problem}"))),
        }
    }

    /// Returns the scheduling policies to compare, each with the engine's settings under it. They come from the
    /// server's defaults, the sizes of the device profile and of the workload, the policy's settings, and `--set`; a
    /// later source overrides an earlier one.
    fn chosen(&self, workload: &Workload, profile: &MockProfile) -> Result<Vec<Chosen>, Failure> {
        for assignment in &self.settings {
            let name = assignment.split('=').next().unwrap_or_default();
            let problem = match name.split('.').next().unwrap_or_default() {
                "scheduler" if name == "scheduler.policy" => "give --policy instead",
                "slo" if name != "slo.premium.assurance" => {
                    "latency targets come from the workload"
                }
                table if EngineSettings::TABLES.contains(&table) => "",
                _ => "it is no setting of the engine, so a simulation does not use it",
            };
            if !problem.is_empty() {
                return Err(Failure::usage(format!("--set {name}: {problem}")));
            }
        }
        let mut base = ServerSettings::default();
        Sizes::apply(&mut base.engine, &workload.simulation, profile);
        let load = |choice: &String| Chosen::load(choice, &base, &self.settings);
        let chosen = self.policy.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        // An assignment warns under each policy, and the user is told once.
        let warnings: BTreeSet<&String> = chosen.iter().flat_map(|one| &one.warnings).collect();
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(chosen)
    }
}

/// Runs one experiment (a policy with one seed) and shows its progress if stderr is a terminal.
fn watched_run(
    experiment: &Experiment,
    policy: &str,
    recording: &mut Recording,
) -> Result<Outcome, Failure> {
    let recorders = recording.run(experiment, policy)?;
    let watched = std::io::stderr().is_terminal();
    let Workload { seed, duration_s, drain_s, .. } = experiment.workload;
    let total_s = duration_s + drain_s;
    let policy = policy.to_owned();
    let progress = move |at_s| {
        if watched {
            eprint!("\r{policy}, seed {seed}: {:3.0} %  ", 100.0 * at_s / total_s);
        }
    };
    let outcome = experiment.run_recorded(progress, &recorders);
    if watched {
        eprint!("\r\x1b[K");
    }
    outcome.map_err(|error| recording.failed(Failure::new(error)))
}

fn slow_time(text: &str) -> Result<MockDrift, String> {
    if text == EVERY_OTHER_MINUTE {
        return Ok(MockDrift::default());
    }
    let parsed = text.split_once("..").and_then(|(from, until)| {
        let slow: Range<u64> = from.parse().ok()?..until.parse().ok()?;
        let us = |s: u64| s.checked_mul(1_000_000);
        (!slow.is_empty()).then_some(us(slow.start)?..us(slow.end)?)
    });
    let slow_us = parsed.ok_or("expected A..B with A below B, whole seconds")?;
    Ok(MockDrift { slow_us: Some(slow_us), ..MockDrift::default() })
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(first, end)| {
        let range: Range<u64> = first.parse().ok()?..end.parse().ok()?;
        (!range.is_empty() && range.end - range.start <= MAX_SEEDS).then_some(range)
    });
    parsed.ok_or_else(|| format!("expected A..B with A below B, at most {MAX_SEEDS} seeds"))
}
