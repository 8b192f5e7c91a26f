//! What another policy would have done: replays a recording of a server's live traffic under several policies, and
//! compares them with what the server measured.
//!
//! | file | one job |
//! |---|---|
//! | `fate` | what became of each request, measured or simulated |
//! | `changes` | which requests fare otherwise under another policy |
//! | `table` | the results as text |

mod changes;
mod fate;
mod table;
#[cfg(test)]
mod tests;

pub use changes::{Changes, RequestChange};
pub use fate::{Fate, FateKind, Replayed, measured};

use crate::experiment::{Experiment, ExperimentError};
use crate::outcome::Outcome;
use serde::{Deserialize, Serialize};
use tiercel_config::EngineSettings;
use tiercel_device::MockFaults;
use tiercel_workload::{Recording, Workload};

/// A recording, what the server measured, and what it would have measured under other policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// Version of the program that replayed the recording.
    pub version: String,
    /// Facts about the recording.
    pub recording: RecordingFacts,
    /// What the server measured.
    pub measured: Outcome,
    /// The replays: first that of the settings in force, then those of the other policies.
    pub replays: Vec<Replay>,
}

/// Facts about a recording that tell how far a replay can be trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordingFacts {
    /// Version of the recorded server.
    pub version: String,
    /// Time at which the recording began, seconds since 1970.
    pub unix_s: u64,
    /// Length of the recording, seconds.
    pub length_s: f64,
    /// Number of recorded sequences.
    pub sequences: u32,
    /// Things that make the replay less exact, one sentence each.
    pub notes: Vec<String>,
}

/// Replay of a recording under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// Name of the policy.
    pub policy: String,
    /// Whether the settings are those that were in force in the server.
    pub in_force: bool,
    /// Simulated outcome.
    pub outcome: Outcome,
    /// Requests that fare otherwise than in the replay of the settings in force; absent for that replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
}

impl Experiment {
    /// Makes the experiment that replays a recording under settings of the engine. `seed` is that of the workload's
    /// random choices.
    pub fn of_recording(recording: &Recording, settings: EngineSettings, seed: u64) -> Experiment {
        Experiment {
            workload: Workload { seed, ..recording.workload.clone() },
            profile: recording.header.profile.clone(),
            settings,
            noise_sigma: 0.0,
            drift: None,
            faults: MockFaults::default(),
            returning: 0.0,
        }
    }

    /// Runs a replay of a recording. `progress` is called as in [`Experiment::run`].
    ///
    /// # Errors
    /// The same as of [`Experiment::run`].
    pub fn replay(&self, progress: impl Fn(f64) + 'static) -> Result<Replayed, ExperimentError> {
        let (seen, totals) = self.observe(progress, &[])?;
        Ok(Replayed::of(&self.workload, &seen, &totals, self.end()))
    }
}

impl RecordingFacts {
    /// Returns the facts about a recording.
    pub fn of(recording: &Recording) -> RecordingFacts {
        let header = &recording.header;
        let notes = [
            (header.live_at_begin > 0).then(|| {
                format!(
                    "{} sequences were live when the recording began: they are replayed without the \
                     work that was done before, and do not count",
                    header.live_at_begin
                )
            }),
            header.cut.as_deref().map(|limit| format!("the recording ended at its limit ({limit})")),
            header.prefixes_cut.then(|| {
                "the recorder had no room for all prompts, so that later ones share less".to_owned()
            }),
            header.settings_changed.then(|| {
                "settings were changed while the recording ran; the replay has those of its begin"
                    .to_owned()
            }),
            header.targets_changed.then(|| {
                "the latency targets changed while the recording ran; the replay has those of its begin"
                    .to_owned()
            }),
            header.step_error_percent.is_none().then(|| {
                format!(
                    "only {} steps were recorded, so the profile is the one that the device measured of \
                     itself at its start",
                    header.steps
                )
            }),
            header.steps_cut.then(|| "the profile was made from the first steps alone".to_owned()),
        ];
        RecordingFacts {
            version: header.version.clone(),
            unix_s: header.unix_s,
            length_s: header.length_s,
            sequences: header.sequences,
            notes: notes.into_iter().flatten().collect(),
        }
    }
}

impl WhatIf {
    /// Puts the results together. `replayed` are the policies with their replays, that of the settings in force first.
    pub fn of(version: &str, recording: &Recording, replayed: Vec<(String, Replayed)>) -> WhatIf {
        let base = replayed.first().map(|(_, replayed)| replayed.fates.clone());
        let replays = replayed.into_iter().enumerate().map(|(at, (policy, replayed))| {
            let base = base.as_ref().filter(|_| at > 0);
            Replay {
                policy,
                in_force: at == 0,
                changes: base.map(|base| Changes::of(recording, base, &replayed.fates)),
                outcome: replayed.outcome,
            }
        });
        WhatIf {
            version: version.to_owned(),
            recording: RecordingFacts::of(recording),
            measured: measured(recording).outcome,
            replays: replays.collect(),
        }
    }
}
