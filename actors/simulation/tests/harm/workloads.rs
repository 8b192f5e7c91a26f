//! Workloads on which the "do no harm" rules are checked: all workload files of the repository, and recorded traffic if
//! it is present.

use std::path::{Path, PathBuf};
use tiercel_config::EngineSettings;
use tiercel_device::{MockProfile, Tier};
use tiercel_policy::slo;
use tiercel_simulation::stated;
use tiercel_workload::{Arrival, Class, Targets, Workload};

/// Tiers of clients' requests, the highest tier first.
pub(crate) const TIERS: [Tier; 3] = [Tier::Premium, Tier::Standard, Tier::Background];
/// Device profile for workloads that are not made for the CPU server.
const LARGE_GPU: &str = "llama70b-tp8-a100";
/// Path of the device profile of the CPU server, which was measured on two CPU cores.
const CPU: &str = "benches/profiles/cpu-smollm2-2-cores-calibrated.toml";
/// Path of the device profile for the workloads in the folder `gpu`: a model of 8B shape, measured on one H100.
const ONE_GPU: &str = "benches/profiles/llama8b-h100-calibrated.toml";
/// Names of the workloads that are made for the CPU server.
const MADE_FOR_CPU: [&str; 10] = [
    "calibrate",
    "cpu-overload",
    "cpu-overload-600",
    "cpu-overload-kv-short",
    "cpu-overload-x2",
    "cpu-overload-x2-600",
    "premium-unloaded",
    "single-stream",
    "streams-16",
    "streams-32",
];
/// Names of workloads whose first 45 seconds equal those of another workload; short runs leave them out.
const DOUBLES_WHEN_SHORT: [&str; 2] = ["cpu-overload-600", "cpu-overload-x2-600"];
/// Size of the device's block pool for the workload `cpu-overload-kv-short`, KV blocks, as a comment in its file asks
/// for.
const SHORT_BLOCKS: u32 = 384;

/// How much of each workload the tests simulate: its first 45 s, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// Simulate the first 45 seconds of each workload, for CI.
    Quick,
    /// Each workload is simulated for its whole duration.
    Full,
}

impl Length {
    /// Returns whether workloads are simulated for 45 s or in full, as the environment variable `TIERCEL_HARM` says.
    pub(crate) fn chosen() -> Length {
        match std::env::var("TIERCEL_HARM").as_deref() {
            Err(_) => Length::Quick,
            Ok("full") => Length::Full,
            Ok(other) => panic!("TIERCEL_HARM is {other}; it can be full, or not be set"),
        }
    }

    /// Returns the seeds of the simulations: one for short runs; for full runs three, or those in `TIERCEL_HARM_SEEDS`.
    pub(crate) fn seeds(self) -> Vec<u64> {
        let chosen = std::env::var("TIERCEL_HARM_SEEDS").unwrap_or_default();
        match self {
            Length::Quick => vec![101],
            Length::Full if chosen.is_empty() => vec![101, 102, 103],
            Length::Full => chosen.split(',').map(|seed| seed.parse().unwrap()).collect(),
        }
    }
}

/// Test case: a workload, and the profile of the device that it is made for.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    pub(crate) profile: MockProfile,
}

impl Case {
    /// Whether the workload's targets leave so much slack that a tier that waits for a higher tier can still meet its
    /// own.
    pub(crate) fn has_loose_targets(&self) -> bool {
        let at_least = |target: Option<f64>, ms: f64| target.is_none_or(|target| target >= ms);
        self.workload.classes.iter().all(|class| {
            let Targets { ttft_ms, tpot_ms, e2e_ms, .. } = class.targets.unwrap_or_default();
            match class.tier {
                Tier::System | Tier::Premium => at_least(ttft_ms, 500.0) && at_least(tpot_ms, 50.0),
                Tier::Standard => at_least(ttft_ms, 2_000.0) && at_least(tpot_ms, 100.0),
                Tier::Background => at_least(e2e_ms, 180_000.0),
            }
        })
    }

    /// Returns the tiers that send requests in the workload, the highest tier first.
    pub(crate) fn tiers(&self) -> Vec<Tier> {
        let has = |tier: &Tier| self.workload.classes.iter().any(|class| class.tier == *tier);
        TIERS.into_iter().filter(has).collect()
    }

    /// Returns a copy of the test case in which only requests of one tier are sent.
    pub(crate) fn of_tier(&self, tier: Tier) -> Case {
        let mut case = self.clone();
        case.workload.classes.retain(|class| class.tier == tier);
        case
    }
}

/// Returns all test cases, or only those whose workloads the environment variable `TIERCEL_HARM_ONLY` lists.
pub(crate) fn cases(length: Length) -> Vec<Case> {
    let only = std::env::var("TIERCEL_HARM_ONLY").unwrap_or_default();
    let chosen =
        |case: &Case| only.is_empty() || only.split(',').any(|one| one == case.workload.name);
    all(length).into_iter().filter(chosen).collect()
}

/// Returns the test cases of all workload files for simulations of this length, sorted by folder and file name.
pub(crate) fn all(length: Length) -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = toml_files(&root.join("benches/workloads"));
    files.extend(toml_files(&root.join("benches/workloads/gpu")));
    assert!(files.len() >= 22, "{} workloads", files.len());
    if length == Length::Full {
        files.extend(toml_files(&root.join("../shared/workloads/traces")));
    }
    let double = |path: &PathBuf| {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        length == Length::Quick && DOUBLES_WHEN_SHORT.contains(&name)
    };
    files.retain(|path| !double(path));
    files.iter().map(|path| case(&root, path, length)).collect()
}

fn toml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ext| ext == "toml")).collect();
    files.sort();
    files
}

fn case(root: &Path, path: &Path, length: Length) -> Case {
    let mut workload = Workload::load(path).unwrap_or_else(|error| panic!("{error}"));
    let profile = if MADE_FOR_CPU.contains(&workload.name.as_str()) {
        root.join(CPU).display().to_string()
    } else if path.parent().is_some_and(|folder| folder.ends_with("gpu")) {
        root.join(ONE_GPU).display().to_string()
    } else {
        LARGE_GPU.to_owned()
    };
    if workload.name == "cpu-overload-kv-short" {
        workload.simulation.device_blocks = Some(SHORT_BLOCKS);
    }
    let profile = MockProfile::named(&profile).unwrap();
    let derived = derived(&profile);
    workload.classes.iter_mut().for_each(|class| promise(class, &derived));
    if length == Length::Quick {
        shorten(&mut workload);
    }
    Case { workload, profile }
}

/// Returns the latency targets that a server of this device derives by default.
fn derived(profile: &MockProfile) -> slo::Targets {
    let info = profile.info();
    let default = EngineSettings::default();
    let seqs = profile.server.max_num_seqs.unwrap_or(default.scheduler.max_num_seqs);
    let tokens =
        profile.server.max_num_batched_tokens.unwrap_or(default.scheduler.max_num_batched_tokens);
    slo::ServerTimes::new(&profile.device_profile(), &info, seqs, tokens).targets(&default.slo).0
}

/// Gives a traffic class that states no latency targets the targets that a server derives by default for the class's
/// tier; requests of the class are judged by these targets.
fn promise(class: &mut Class, derived: &slo::Targets) {
    class.targets.get_or_insert_with(|| stated(derived.of(class.tier)));
}

/// Shortens a workload of more than 45 s to 45 s for CI. Bursts with a period longer than the run get a shorter period
/// and length in the same ratio. Requests that run at the end get 75 s to finish.
fn shorten(workload: &mut Workload) {
    const DURATION_S: f64 = 45.0;
    const WARMUP_S: f64 = 10.0;
    const DRAIN_S: f64 = 75.0;
    let share = DURATION_S / workload.duration_s;
    if share >= 1.0 {
        return;
    }
    for class in &mut workload.classes {
        if let Arrival::Poisson(poisson) = &mut class.arrival
            && let Some(bursts) = &mut poisson.bursts
            && bursts.period_s > DURATION_S
        {
            bursts.length_s *= share;
            bursts.period_s *= share;
        }
    }
    // If the warm-up is more than a quarter of the workload, shorten it in the same ratio as the workload, so that the
    // measured window still begins after the same events.
    let late = workload.warmup_s > 0.25 * workload.duration_s;
    let warmup_s = if late { workload.warmup_s * share } else { workload.warmup_s.min(WARMUP_S) };
    workload.duration_s = DURATION_S;
    workload.warmup_s = warmup_s;
    workload.cooldown_s = 0.0;
    workload.drain_s = DRAIN_S;
}
