//! The workloads that the rules are checked on: every file of the repository, and recorded traces where they are.

use std::path::{Path, PathBuf};
use tiercel_config::{EngineSettings, SloTargets};
use tiercel_device::{DeviceInfo, MockProfile, Tier};
use tiercel_policy::slo;
use tiercel_workload::{Arrival, Class, Targets, Workload};

/// Tiers of requests, best first.
pub(crate) const TIERS: [Tier; 3] = [Tier::Premium, Tier::Standard, Tier::Background];
/// The device of workloads that name no other.
const LARGE_GPU: &str = "llama70b-tp8-a100";
/// A server with two CPU cores, as measured.
const CPU: &str = "benches/profiles/cpu-smollm2-2-cores-calibrated.toml";
/// Workloads made for that server.
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
/// Workloads whose first 45 seconds are those of another one: left out of the short runs.
const DOUBLES_WHEN_SHORT: [&str; 2] = ["cpu-overload-600", "cpu-overload-x2-600"];
/// KV blocks of the server that `cpu-overload-kv-short` is made for; its file says so in a comment.
const SHORT_BLOCKS: u32 = 384;

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// The first 45 seconds, for CI.
    Quick,
    /// The whole workload.
    Full,
}

impl Length {
    /// The length that the environment asks for.
    pub(crate) fn chosen() -> Length {
        match std::env::var("TIERCEL_HARM").as_deref() {
            Err(_) => Length::Quick,
            Ok("full") => Length::Full,
            Ok(other) => panic!("TIERCEL_HARM is {other}; it can be full, or not be set"),
        }
    }

    /// The seeds of its runs.
    pub(crate) fn seeds(self) -> Vec<u64> {
        let chosen = std::env::var("TIERCEL_HARM_SEEDS").unwrap_or_default();
        match self {
            Length::Quick => vec![101],
            Length::Full if chosen.is_empty() => vec![101, 102, 103],
            Length::Full => chosen.split(',').map(|seed| seed.parse().unwrap()).collect(),
        }
    }
}

/// A workload and the device that it is made for.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    pub(crate) profile: MockProfile,
}

impl Case {
    /// The targets leave room: a tier that must give way to another one can still meet its own.
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

    /// The tiers that have a class, best first.
    pub(crate) fn tiers(&self) -> Vec<Tier> {
        let has = |tier: &Tier| self.workload.classes.iter().any(|class| class.tier == *tier);
        TIERS.into_iter().filter(has).collect()
    }

    /// The same with the classes of one tier only. Other classes' requests are not sent.
    pub(crate) fn of_tier(&self, tier: Tier) -> Case {
        let mut case = self.clone();
        case.workload.classes.retain(|class| class.tier == tier);
        case
    }
}

/// All cases, or those that the environment chooses, by name.
pub(crate) fn cases(length: Length) -> Vec<Case> {
    let only = std::env::var("TIERCEL_HARM_ONLY").unwrap_or_default();
    let chosen =
        |case: &Case| only.is_empty() || only.split(',').any(|one| one == case.workload.name);
    all(length).into_iter().filter(chosen).collect()
}

/// All cases, by name.
pub(crate) fn all(length: Length) -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = toml_files(&root.join("benches/workloads"));
    assert!(files.len() >= 20, "{} workloads", files.len());
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

/// The targets that a server of this device derives when it is told nothing.
fn derived(profile: &MockProfile) -> slo::Targets {
    let info = DeviceInfo {
        name: profile.name.clone(),
        block_size: profile.block_size,
        device_blocks: profile.device_blocks,
        host_blocks: profile.host_blocks,
        block_bytes: 1,
        max_steps_in_flight: 1,
        max_model_len: profile.max_model_len,
        vocab_size: profile.vocab_size,
    };
    let default = EngineSettings::default();
    let seqs = profile.server.max_num_seqs.unwrap_or(default.scheduler.max_num_seqs);
    let tokens =
        profile.server.max_num_batched_tokens.unwrap_or(default.scheduler.max_num_batched_tokens);
    slo::ServerTimes::new(&profile.device_profile(), &info, seqs, tokens).targets(&default.slo).0
}

/// A class without targets is promised, and so counted by, the targets of a server that is told nothing.
fn promise(class: &mut Class, derived: &slo::Targets) {
    let SloTargets { ttft_ms, tpot_ms, e2e_ms, ttft_ms_per_token, ttft_prompt_tokens } =
        derived.of(class.tier);
    let targets = Targets { ttft_ms, tpot_ms, e2e_ms, ttft_ms_per_token, ttft_prompt_tokens };
    class.targets.get_or_insert(targets);
}

/// Cuts a workload for CI. Bursts that would not come any more come sooner and are shorter by as much; what is under way
/// at the end is given time to end.
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
    // A window that begins late begins as late for what came before it.
    let late = workload.warmup_s > 0.25 * workload.duration_s;
    let warmup_s = if late { workload.warmup_s * share } else { workload.warmup_s.min(WARMUP_S) };
    workload.duration_s = DURATION_S;
    workload.warmup_s = warmup_s;
    workload.cooldown_s = 0.0;
    workload.drain_s = DRAIN_S;
}
