//! Simulates test cases under policies and collects the figures that the "do no harm" rules compare.

use crate::workloads::Case;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tiercel_config::{EngineSettings, Policy};
use tiercel_device::MockFaults;
use tiercel_simulation::{Experiment, Outcome, Sizes, TierOutcome};
use tiercel_workload::{Summary, Workload};

/// Random noise of step times in all simulations: sigma of the log-normal factor that multiplies each.
const NOISE: f64 = 0.1;

/// Simulations to run: a test case under one policy, with several seeds.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) case: Case,
    pub(crate) policy: Policy,
    pub(crate) seeds: Vec<u64>,
    /// Function that changes the engine settings before the simulation runs.
    pub(crate) change: fn(&mut EngineSettings),
}

/// Figures measured for a test case under one policy. Counts of requests are sums over the seeds; all other figures are
/// means over the seeds.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) tiers: Vec<TierFigures>,
    pub(crate) tokens_per_s: f64,
}

/// Figures measured for the requests of one tier.
#[derive(Debug, Clone, Default)]
pub(crate) struct TierFigures {
    pub(crate) tier: String,
    pub(crate) requests: u64,
    pub(crate) completed: u64,
    pub(crate) in_target: u64,
    pub(crate) ttft_ms: Percentiles,
    pub(crate) e2e_ms: Percentiles,
    pub(crate) tokens_per_s: f64,
}

/// The percentiles p50, p90 and p99 of a latency, ms.
pub(crate) type Percentiles = [f64; 3];

impl TierFigures {
    pub(crate) fn in_target_percent(&self) -> f64 {
        100.0 * self.in_target as f64 / self.requests.max(1) as f64
    }
}

impl Figures {
    pub(crate) fn of(outcomes: &[Outcome]) -> Figures {
        let mut tiers: Vec<TierFigures> = Vec::new();
        let weight = 1.0 / outcomes.len() as f64;
        for outcome in outcomes {
            for tier in &outcome.tiers {
                let at = tiers.iter().position(|known| known.tier == tier.tier);
                let at = at.unwrap_or_else(|| {
                    tiers.push(TierFigures { tier: tier.tier.clone(), ..TierFigures::default() });
                    tiers.len() - 1
                });
                add(&mut tiers[at], tier, weight);
            }
        }
        let rates = outcomes.iter().map(|outcome| outcome.total.output_tokens_per_s);
        Figures { tiers, tokens_per_s: rates.sum::<f64>() * weight }
    }

    pub(crate) fn tier(&self, name: &str) -> Option<&TierFigures> {
        self.tiers.iter().find(|tier| tier.tier == name)
    }
}

fn add(sum: &mut TierFigures, tier: &TierOutcome, weight: f64) {
    sum.requests += tier.requests;
    sum.completed += tier.completed;
    sum.in_target += tier.compliance.unwrap_or_default().all_met;
    sum.tokens_per_s += weight * tier.output_tokens_per_s;
    let weigh = |sum: &mut Percentiles, summary: &Option<Summary>| {
        let all = summary.as_ref().map_or([0.0; 3], |s| [s.p50, s.p90, s.p99]);
        sum.iter_mut().zip(all).for_each(|(sum, ms)| *sum += weight * ms);
    };
    weigh(&mut sum.ttft_ms, &tier.ttft_ms);
    weigh(&mut sum.e2e_ms, &tier.e2e_ms);
}

/// Simulates all jobs, with one thread per core. Returns their figures in the order of the jobs.
pub(crate) fn run(jobs: &[Job]) -> Vec<Figures> {
    let each = |(at, job): (usize, &Job)| job.seeds.iter().map(move |seed| (at, *seed)).collect();
    let runs: Vec<(usize, u64)> =
        jobs.iter().enumerate().flat_map(|job| -> Vec<(usize, u64)> { each(job) }).collect();
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Vec<Outcome>>> = Mutex::new(vec![Vec::new(); jobs.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = experiment(&jobs[*at], *seed);
                    outcomes.lock().unwrap()[*at].push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    // Sort the outcomes by seed, so that sums of floating-point numbers do not depend on which thread ended first.
    outcomes.iter_mut().for_each(|runs| runs.sort_by_key(|outcome| outcome.seed));
    outcomes.iter().map(|runs| Figures::of(runs)).collect()
}

fn experiment(job: &Job, seed: u64) -> Outcome {
    let Case { workload, profile } = &job.case;
    let mut settings = EngineSettings::default();
    Sizes::apply(&mut settings, &workload.simulation, profile);
    settings.use_policy(job.policy);
    (job.change)(&mut settings);
    let experiment = Experiment {
        workload: Workload { seed, ..workload.clone() },
        profile: profile.clone(),
        settings,
        noise_sigma: NOISE,
        drift: None,
        faults: MockFaults::default(),
        returning: 0.0,
    };
    let name = &workload.name;
    let outcome = experiment.run(|_| {});
    outcome.unwrap_or_else(|error| panic!("{name}, {}, seed {seed}: {error}", job.policy.name()))
}
