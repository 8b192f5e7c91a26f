//! The lines of a recording.

use crate::file::Targets;
use crate::recording::texts::TextPiece;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tiercel_device::{MockProfile, Tier};

/// Version of the form of recordings.
pub const RECORDING_FORMAT: u32 = 1;
/// Most sequences in a recording.
pub const MAX_RECORDED: u32 = 200_000;

/// Header of a recording: its first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordingHeader {
    /// Version of the form, [`RECORDING_FORMAT`].
    pub tiercel_recording: u32,
    /// Version of the server.
    pub version: String,
    /// Time at which the recording began, seconds since 1970.
    pub unix_s: u64,
    /// Length of the recording, seconds.
    pub length_s: f64,
    /// Number of recorded sequences. A request for `n` choices has `n` sequences.
    pub sequences: u32,
    /// Number of recorded sequences that were live when the recording began.
    pub live_at_begin: u32,
    /// Limit that ended the recording, `sequences` or `time`; `None` if it was stopped.
    pub cut: Option<String>,
    /// Whether the recorder had no room for the beginnings of later prompts.
    pub prefixes_cut: bool,
    /// Number of recorded steps, from which the profile was made.
    pub steps: u32,
    /// Whether later steps were left out.
    pub steps_cut: bool,
    /// Mean error of the step times that the profile predicts, percent of the times; `None` if there were too few
    /// steps, so that the profile is the one that the device measured of itself at the start.
    pub step_error_percent: Option<f64>,
    /// Whether an operator changed settings while the recording ran; `settings` holds those at its begin.
    pub settings_changed: bool,
    /// Whether the latency targets in effect changed while the recording ran, because an operator changed settings or
    /// because step times changed. The field `targets` holds the targets at the begin of the recording. `false` in
    /// recordings of older servers, which did not note such changes.
    #[serde(default)]
    pub targets_changed: bool,
    /// Latency targets that were in effect when the recording began, by tier.
    pub targets: BTreeMap<Tier, Targets>,
    /// Settings of the engine when the recording began.
    pub settings: serde_json::Value,
    /// Profile of the server, for the simulator's mock device.
    pub profile: MockProfile,
}

/// How a recorded sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The output is complete, because of a stop token or a stop string.
    Stop,
    /// The output is complete, because it has its largest length.
    Length,
    /// The sequence was refused on arrival.
    Refused,
    /// The sequence was accepted, and turned away before its first token.
    TurnedAway,
    /// The client left, or the request was cancelled.
    Left,
    /// The sequence ended with an error.
    Failed,
    /// The sequence was live when the recording ended.
    Live,
}

/// What the server did with a recorded sequence. Times are us after the recording began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// How the sequence ended.
    pub outcome: Outcome,
    /// Time of the end; `None` for a live sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_us: Option<u64>,
    /// Time of the first output token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_us: Option<u64>,
    /// Time of the last output token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_us: Option<u64>,
    /// Number of output tokens, without a final stop token.
    pub output_tokens: u32,
    /// Number of prompt tokens that were found in the prefix cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u32,
    /// Number of preemptions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preemptions: u32,
}

/// A recorded sequence: a line of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRequest {
    /// Time of the arrival, us after the recording began.
    pub at_us: u64,
    /// Number of output tokens that the sequence had when the recording began; `None` if it arrived later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
    /// Id of the request in its response, as operators know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// Number of the choice within the request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub choice: u32,
    /// Tier of the request.
    pub tier: Tier,
    /// Priority within the tier.
    #[serde(default, skip_serializing_if = "is_default_priority")]
    pub priority: i32,
    /// Number of the tenant, in the order in which tenants appear in the recording.
    pub tenant: u32,
    /// Weight of the tenant in the fair queues.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub share: f64,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// An earlier sequence with a prompt that begins alike, by its number from 0, and the length of that beginning in
    /// tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_like: Option<(u32, u32)>,
    /// Limit of the output, tokens.
    pub max_tokens: u32,
    /// Latency targets that the request stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Targets>,
    /// Whether the request may tighten its targets; `None` for what the settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_tighten: Option<bool>,
    /// Patience that the request stated, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<u64>,
    /// Whether the client said that it was refused before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returning: bool,
    /// Whether the output followed a constraint, for example a grammar. The recording does not hold the constraint, and
    /// a replay gives the output its recorded length without a constraint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub constrained: bool,
    /// What the server did with the sequence.
    pub seen: Seen,
    /// Number of the sequence in the recording, from 0; not in the file.
    #[serde(skip)]
    pub number: u32,
    /// Pieces of the prompt, filled in by [`Recording::load`](crate::Recording::load).
    #[serde(skip)]
    pub text: Arc<[TextPiece]>,
}

impl RecordedRequest {
    /// Returns the length of the prompt that a replay sends, tokens. The prompt of a sequence that had its first token
    /// before the recording is not computed again: such a sequence only goes on.
    pub fn sent_prompt_tokens(&self) -> u32 {
        if self.before.unwrap_or(0) > 0 { 1 } else { self.prompt_tokens }
    }

    /// Returns the limit of the output that a replay sends, tokens.
    pub fn sent_max_tokens(&self) -> u32 {
        self.max_tokens.saturating_sub(self.before.unwrap_or(0)).max(1)
    }

    /// Returns the time after the arrival at which the client left, us; `None` if it did not leave.
    pub fn left_after_us(&self) -> Option<u64> {
        let left = self.seen.outcome == Outcome::Left;
        self.seen.end_us.filter(|_| left).map(|end| end.saturating_sub(self.at_us))
    }
}

fn one() -> f64 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_one(value: &f64) -> bool {
    *value == 1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_default_priority(priority: &i32) -> bool {
    *priority == 0
}
