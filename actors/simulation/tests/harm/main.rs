//! "Do no harm" tests: the default policy against `fcfs` and the other presets, on every workload of the repository.
//!
//! (a) Where `fcfs` completes every request, the default policy completes at least 99.9 % of the premium and of the
//! standard requests. It also completes all background requests, unless higher tiers use the time to meet more of their
//! targets than under `fcfs`. With loose targets this exception does not apply.
//! (b) Tokens per second under the default policy are at least 98 % of those under the best other preset, unless that
//! preset makes premium requests miss targets that they meet under the default policy.
//! (c) A tier that is alone has TTFT and E2E (p50, p90, p99) and tok/s at most 3 % worse than under `fcfs`, unless more
//! of its requests meet their targets. Where there are more users than slots (`many_users.rs`), more requests in target
//! are no excuse, and the default policy refuses no request.
//!
//! Known exceptions are in `exceptions.rs`, with their reasons and bounds. A test fails if an exception is exceeded or
//! no longer needed. `cargo test` runs the first 45 seconds of each workload with one seed and, for rule (b), only the
//! presets that make the most tokens. `TIERCEL_HARM=full` runs whole workloads under all presets with three seeds, and
//! also the traces of `../shared/workloads/traces` if that folder exists (hours on two cores):
//!
//!     TIERCEL_HARM=full cargo test --release -p tiercel-simulation --test harm -- --nocapture
//!
//! `TIERCEL_HARM_ONLY=w1-mixed,surge` and `TIERCEL_HARM_SEEDS=101` shorten a full run.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

mod exceptions;
mod many_users;
mod report;
mod rules;
mod runs;
mod workloads;

use rules::Check;
use runs::{Figures, Job};
use std::sync::OnceLock;
use tiercel_config::{EngineSettings, Policy};
use tiercel_device::Tier;
use workloads::{Case, Length};

/// Presets that make the most tokens per second in short runs, with which the default policy is then compared.
const QUICK_RIVALS: [Policy; 2] = [Policy::VllmV0, Policy::Throughput];

/// Test case (workload and device) and the figures that were measured on it under each policy.
struct Played {
    case: Case,
    figures: Vec<(Policy, Figures)>,
}

impl Played {
    fn under(&self, policy: Policy) -> &Figures {
        let known = self.figures.iter().find(|(played, _)| *played == policy);
        &known.expect("every case is played under the default and fcfs").1
    }
}

/// Simulates all test cases under all policies.
fn play(cases: Vec<Case>, policies: &[Policy], length: Length) -> Vec<Played> {
    let seeds = length.seeds();
    let job = |case: &Case, policy: &Policy| Job {
        case: case.clone(),
        policy: *policy,
        seeds: seeds.clone(),
        change: |_| (),
    };
    let jobs: Vec<Job> =
        cases.iter().flat_map(|case| policies.iter().map(|policy| job(case, policy))).collect();
    let mut figures = runs::run(&jobs).into_iter();
    let of_case =
        |case| Played { case, figures: policies.iter().copied().zip(figures.by_ref()).collect() };
    cases.into_iter().map(of_case).collect()
}

/// Simulates every test case, with all its tiers, under all policies that are compared. Does so once per test program
/// and keeps the results.
fn together(length: Length) -> &'static [Played] {
    static PLAYED: OnceLock<Vec<Played>> = OnceLock::new();
    let mut policies = vec![Policy::default(), Policy::Fcfs];
    match length {
        Length::Quick => policies.extend(QUICK_RIVALS),
        Length::Full => {
            let all = Policy::ALL.iter().map(|(policy, _)| *policy);
            policies.extend(all.filter(|policy| !policies.contains(policy)).collect::<Vec<_>>());
        }
    }
    PLAYED.get_or_init(|| play(workloads::cases(length), &policies, length))
}

fn rule_a(length: Length) -> Vec<Check> {
    let checks = |played: &Played| {
        let Case { workload, .. } = &played.case;
        let (default, fcfs) = (played.under(Policy::default()), played.under(Policy::Fcfs));
        rules::completes(&workload.name, played.case.has_loose_targets(), default, fcfs)
    };
    together(length).iter().flat_map(checks).collect()
}

fn rule_b(length: Length) -> Vec<Check> {
    let check = |played: &Played| {
        let others = played.figures.iter().filter(|(policy, _)| *policy != Policy::default());
        let others: Vec<(&str, &Figures)> =
            others.map(|(policy, figures)| (policy.name(), figures)).collect();
        rules::makes_tokens(&played.case.workload.name, played.under(Policy::default()), &others)
    };
    together(length).iter().map(check).collect()
}

fn rule_c(length: Length) -> Vec<Check> {
    let alone = |case: &Case| -> Vec<Case> {
        case.tiers().into_iter().map(|tier| case.of_tier(tier)).collect()
    };
    let cases = workloads::cases(length).iter().flat_map(alone).collect();
    let played = play(cases, &[Policy::default(), Policy::Fcfs], length);
    let checks = |played: &Played| -> Vec<Check> {
        let tier = played.case.tiers().first().map_or("", |tier: &Tier| tier.name());
        let policies = [Policy::default(), Policy::Fcfs];
        // Compare nothing if no request of the tier came: recorded traffic may have none in a short run.
        let [Some(default), Some(fcfs)] = policies.map(|policy| played.under(policy).tier(tier))
        else {
            return Vec::new();
        };
        rules::serves_alone(&played.case.workload.name, default, fcfs)
    };
    played.iter().flat_map(checks).collect()
}

#[test]
fn what_fcfs_completes_is_completed() {
    let length = Length::chosen();
    exceptions::judge('a', length, &rule_a(length));
}

#[test]
fn no_other_preset_makes_many_more_tokens() {
    let length = Length::chosen();
    exceptions::judge('b', length, &rule_b(length));
}

#[test]
fn a_tier_alone_is_served_as_under_fcfs() {
    let length = Length::chosen();
    exceptions::judge('c', length, &rule_c(length));
}

/// Simulates the workload `w1-mixed` under the default policy with harmful settings and under unchanged `fcfs`, to test
/// that the rules detect the harm.
fn harmed(only: Option<Tier>, change: fn(&mut EngineSettings)) -> (Figures, Figures) {
    let mut cases = workloads::all(Length::Quick).into_iter();
    let case = cases.find(|case| case.workload.name == "w1-mixed").unwrap();
    let case = only.map_or(case.clone(), |tier| case.of_tier(tier));
    let job = |policy, change| Job { case: case.clone(), policy, seeds: vec![101], change };
    let jobs = [job(Policy::default(), change), job(Policy::Fcfs, |_| ())];
    let [default, fcfs] = <[Figures; 2]>::try_from(runs::run(&jobs)).unwrap();
    (default, fcfs)
}

#[test]
fn a_policy_that_turns_requests_away_is_found_out() {
    let (default, fcfs) = harmed(None, |settings| {
        settings.admission.max_queued_requests_per_tier = 1;
    });
    let checks = rules::completes("w1-mixed", false, &default, &fcfs);
    assert!(checks.iter().any(|check| check.broken() && check.tier == "standard"), "{checks:?}");
}

#[test]
fn a_policy_that_leaves_places_empty_is_found_out() {
    let few_places = |settings: &mut EngineSettings| settings.scheduler.max_num_seqs = 4;
    let (default, fcfs) = harmed(None, few_places);
    let check = rules::makes_tokens("w1-mixed", &default, &[("fcfs", &fcfs)]);
    assert!(check.broken(), "{check:?}");
    let (default, fcfs) = harmed(Some(Tier::Standard), few_places);
    let checks = rules::serves_alone("w1-mixed", &default.tiers[0], &fcfs.tiers[0]);
    let broken = |figure: &str| checks.iter().any(|c| c.broken() && c.figure.starts_with(figure));
    assert!(["tok/s", "TTFT p50", "TTFT p90", "E2E p50"].into_iter().all(broken), "{checks:?}");
}
