//! Writes a recording of live traffic as a file: JSON lines, a header first.

use crate::control::recorded::Facts;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tiercel_actors::EngineHandle;
use tiercel_actors::recording::{Recording, RecordingCut};
use tiercel_benches::{FittedProfile, ServerFacts};
use tiercel_device::{HostCosts, MockProfile, Tier};
use tiercel_simulation::{lines, stated};
use tiercel_workload::{RECORDING_FORMAT, RecordingHeader};

/// Fewest steps to which a profile is fitted. With fewer, the profile is the one that the device measured of itself.
const LEAST_STEPS: usize = 200;

/// Returns the text of the file.
pub(super) fn text(recording: &Recording, facts: &Facts, engine: &EngineHandle) -> String {
    let mut text = String::new();
    let mut add = |json: Result<String, serde_json::Error>| {
        let json = json.expect("the keys of a recording are texts");
        writeln!(text, "{json}").expect("a text can always grow");
    };
    add(serde_json::to_string(&header(recording, facts, engine)));
    for line in lines(recording) {
        add(serde_json::to_string(&line));
    }
    text
}

/// Returns the name of the limit that ended a recording.
pub(super) fn limit(cut: RecordingCut) -> &'static str {
    match cut {
        RecordingCut::Sequences => "sequences",
        RecordingCut::Time => "time",
    }
}

fn header(recording: &Recording, facts: &Facts, engine: &EngineHandle) -> RecordingHeader {
    let settings = serde_json::to_value(&facts.settings).expect("plain data always serializes");
    let (profile, step_error_percent) = profile(recording, &settings, engine);
    let targets = [Tier::Premium, Tier::Standard, Tier::Background]
        .map(|tier| (tier, stated(facts.targets.of(tier))));
    RecordingHeader {
        tiercel_recording: RECORDING_FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unix_s: facts.unix_s,
        length_s: recording.length_us().max(1) as f64 / 1e6,
        sequences: recording.sequences().len() as u32,
        live_at_begin: recording.live_at_begin(),
        cut: recording.cut().map(|cut| limit(cut).to_owned()),
        prefixes_cut: recording.prefixes_cut(),
        steps: recording.steps().len() as u32,
        steps_cut: recording.steps_cut(),
        step_error_percent,
        settings_changed: facts.settings_changed,
        targets_changed: facts.targets_changed,
        targets: BTreeMap::from(targets),
        settings,
        profile,
    }
}

/// Returns the server's profile, from the recorded steps if there are enough, and the mean error of the step times that
/// it predicts, percent.
fn profile(
    recording: &Recording,
    settings: &serde_json::Value,
    engine: &EngineHandle,
) -> (MockProfile, Option<f64>) {
    let device = engine.info();
    let server = ServerFacts { device, measured: *engine.profile(), settings };
    let steps = recording.steps();
    let fitted = if steps.len() >= LEAST_STEPS {
        // A recording begins where a request enters the engine, so no time outside the engine counts.
        server.fitted(device.name.clone(), steps, HostCosts::default())
    } else {
        None
    };
    let Some(fitted) = fitted else {
        return (server.as_measured(device.name.clone()), None);
    };
    let FittedProfile { error_percent, .. } = fitted;
    (fitted.with_pace(recording.began().0 as f64 / 1e6), Some(error_percent))
}
