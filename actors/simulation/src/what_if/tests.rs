//! Tests of recordings that are made of a simulated engine, and replayed.

use super::*;
use crate::laboratory::{Laboratory, simulate};
use crate::recorded;
use crate::traffic::Traffic;
use std::path::Path;
use tiercel_actors::recording::RecordingLimits;
use tiercel_config::Policy;
use tiercel_device::{HostCosts, MockProfile, Timestamp};
use tiercel_workload::{
    Outcome as RecordedOutcome, RECORDING_FORMAT, RecordedRequest, RecordingHeader, seconds,
};

/// Makes an experiment with a shipped workload, cut after `duration_s`.
fn experiment(file: &str, policy: Policy, duration_s: f64, load: f64) -> Experiment {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/workloads");
    let shipped = Workload::load(&folder.join(file)).expect("a shipped workload").at_load(load);
    let workload = Workload { duration_s, warmup_s: 0.0, cooldown_s: 0.0, drain_s: 0.0, ..shipped };
    let profile = MockProfile::named("llama70b-tp8-a100").expect("built in");
    let mut settings = EngineSettings::default();
    crate::Sizes::apply(&mut settings, &workload.simulation, &profile);
    settings.use_policy(policy);
    let mut experiment = Experiment {
        workload,
        profile,
        settings,
        noise_sigma: 0.0,
        drift: None,
        faults: MockFaults::default(),
        returning: 0.0,
    };
    experiment.profile.noise.sigma = 0.1;
    let sizes = experiment.sizes();
    experiment.profile.device_blocks = sizes.device_blocks;
    experiment.profile.host_blocks = sizes.host_blocks;
    experiment
}

/// Runs an experiment with a recorder, and returns the recording's lines and the TTFT of each request in the order of
/// arrival, us.
fn recorded_run(experiment: &Experiment) -> Vec<RecordedRequest> {
    let recording = simulate(async |clock| {
        let settings = experiment.engine_settings();
        let device = experiment.device(clock.clone());
        let block_size = device.block_size;
        let engine = Laboratory { settings, device }.start();
        let limits = RecordingLimits { max_sequences: 100_000, max_us: u64::MAX };
        engine.recorder().begin(limits, Some(block_size), &[]).expect("none runs");
        let workload = experiment.workload.clone();
        Traffic::new(engine.clone(), workload, 0.0, HostCosts::default()).start();
        clock.sleep_until(Timestamp(seconds(experiment.workload.duration_s))).await;
        assert!(engine.recorder().end());
        engine.recorder().ended().expect("it has ended")
    });
    recorded::lines(&recording)
}

/// Writes a recording as a file, and reads it again.
fn written(experiment: &Experiment, rows: &[RecordedRequest]) -> Recording {
    let targets = experiment.workload.classes.iter();
    let targets = targets.filter_map(|class| Some((class.tier, class.targets?)));
    let header = RecordingHeader {
        tiercel_recording: RECORDING_FORMAT,
        version: "test".into(),
        unix_s: 0,
        length_s: experiment.workload.duration_s,
        sequences: rows.len() as u32,
        live_at_begin: 0,
        cut: None,
        prefixes_cut: false,
        steps: 0,
        steps_cut: false,
        step_error_percent: Some(0.0),
        settings_changed: false,
        targets_changed: true,
        targets: targets.collect(),
        settings: serde_json::to_value(&experiment.settings).expect("plain data"),
        profile: experiment.profile.clone(),
    };
    let mut text = serde_json::to_string(&header).expect("plain data");
    for row in rows {
        text += "\n";
        text += &serde_json::to_string(row).expect("plain data");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recording.jsonl");
    std::fs::write(&path, text).expect("a file");
    Recording::load(&path).expect("a recording")
}

/// Records an experiment and replays the recording under the same settings. Returns the recording, what was measured
/// and what the replay found.
fn again(experiment: &Experiment) -> (Recording, Replayed, Replayed) {
    let recording = written(experiment, &recorded_run(experiment));
    let settings = experiment.settings.clone();
    let replay = Experiment::of_recording(&recording, settings, experiment.workload.seed);
    let replayed = replay.replay(|_| {}).expect("a result");
    let measured = measured(&recording);
    (recording, measured, replayed)
}

#[test]
fn a_replay_under_the_recorded_settings_is_the_recorded_run_to_the_last_digit() {
    for (file, policy, load) in [
        ("w2-memory-tight.toml", Policy::Fcfs, 1.2),
        ("w2-memory-tight.toml", Policy::Tiercel, 1.2),
        ("prefix-tight.toml", Policy::Tiercel, 1.5),
    ] {
        let experiment = experiment(file, policy, 40.0, load);
        let (recording, measured, replayed) = again(&experiment);
        assert!(measured.fates.len() > 200, "{}", measured.fates.len());
        let live =
            |row: &&std::sync::Arc<RecordedRequest>| row.seen.outcome == RecordedOutcome::Live;
        assert!(recording.requests.iter().filter(live).count() > 5, "the queue is long at the end");
        for (seen, played) in measured.fates.iter().zip(&replayed.fates) {
            assert_eq!(
                seen, played,
                "{file} {policy:?}: {:?}",
                recording.requests[seen.0 as usize]
            );
        }
        let figures = |replayed: &Replayed| {
            let tiers = replayed.outcome.tiers.iter();
            tiers
                .map(|tier| {
                    (tier.requests, tier.completed, tier.ttft_ms, tier.tpot_ms, tier.e2e_ms)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(figures(&measured), figures(&replayed));
    }
}

#[test]
fn shared_beginnings_are_replayed_so_that_the_prefix_cache_has_its_effect() {
    let experiment = experiment("prefix-tight.toml", Policy::Tiercel, 40.0, 1.0);
    let mut rows = recorded_run(&experiment);
    let shares = rows.iter().filter(|row| row.begins_like.is_some()).count();
    assert!(shares > rows.len() / 4, "{shares} of {}", rows.len());
    let hits = |rows: &[RecordedRequest]| {
        let recording = written(&experiment, rows);
        let settings = experiment.settings.clone();
        let replay = Experiment::of_recording(&recording, settings, 1).replay(|_| {});
        replay.expect("a result").outcome.prefix_hit_percent
    };
    let original = experiment.run(|_| {}).expect("a result").prefix_hit_percent;
    let replayed = hits(&rows);
    assert!((replayed - original).abs() < 1.0, "{replayed} {original}");
    rows.iter_mut().for_each(|row| row.begins_like = None);
    assert_eq!(hits(&rows), 0.0);
}

#[test]
fn refused_requests_and_clients_that_leave_are_replayed() {
    let mut experiment = experiment("w2-memory-tight.toml", Policy::Fcfs, 30.0, 2.0);
    experiment.settings.admission.max_queued_requests_per_tier = 5;
    let (recording, measured, replayed) = again(&experiment);
    let refused = |replayed: &Replayed| replayed.outcome.total.refused;
    assert!(refused(&measured) > 20 && refused(&measured) == refused(&replayed));
    assert_eq!(recording.requests.len() as u64, measured.outcome.total.requests);
    // A client of each third sequence leaves 50 ms after its arrival, before its output is complete.
    let mut rows: Vec<RecordedRequest> =
        recording.requests.iter().map(|row| RecordedRequest::clone(row)).collect();
    for row in rows.iter_mut().step_by(3) {
        row.seen.outcome = RecordedOutcome::Left;
        row.seen.end_us = Some(row.at_us + 50_000);
    }
    let settings = experiment.settings.clone();
    let left = Experiment::of_recording(&written(&experiment, &rows), settings, 1);
    let left = left.replay(|_| {}).expect("a result").outcome.total;
    assert!(left.left > 50, "{left:?}");
    assert!(left.refused < refused(&replayed), "places come free sooner: {left:?}");
}

#[test]
fn changes_are_counted_and_the_largest_are_listed_first() {
    let experiment = experiment("w2-memory-tight.toml", Policy::Fcfs, 40.0, 1.2);
    let (recording, _, in_force) = again(&experiment);
    let mut settings = experiment.settings.clone();
    settings.use_policy(Policy::Tiercel);
    let other = Experiment::of_recording(&recording, settings, experiment.workload.seed);
    let other = other.replay(|_| {}).expect("a result");
    let replayed = vec![("fcfs".to_owned(), in_force), ("tiercel".to_owned(), other)];
    let what_if = WhatIf::of("test", &recording, replayed);
    assert!(what_if.replays[0].in_force && what_if.replays[0].changes.is_none());
    let changes = what_if.replays[1].changes.clone().expect("it is another policy");
    assert!(changes.sooner > 20 && changes.later > 20, "{changes:?}");
    assert_eq!(changes.largest.len(), 20);
    let by_ms = |change: &RequestChange| {
        let both = change.in_force.ttft_ms.zip(change.policy.ttft_ms);
        both.map_or(0.0, |(from, to)| (to - from).abs())
    };
    let same_end = |change: &&RequestChange| change.in_force.ending == change.policy.ending;
    let sizes: Vec<f64> = changes.largest.iter().filter(same_end).map(by_ms).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    let text = what_if.to_string();
    for part in ["measured", "fcfs (in force)", "tiercel", "Largest changes:", "line "] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
