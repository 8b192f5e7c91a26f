//! Rows: requests as the control API shows them.

use crate::control::timeline::TimelineView;
use crate::document::schema;
use crate::live::LiveRequest;
use crate::standing::{Position, in_order};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use tiercel_actors::{SequenceState, SequenceView, Snapshot};
use tiercel_device::{SeqId, Timestamp};
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

/// How far a choice is, and the memory that it has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub(crate) struct Progress {
    pub(crate) prompt_tokens: u32,
    /// Tokens whose KV is valid on the device.
    pub(crate) computed_tokens: u32,
    /// Tokens that had valid KV when the request was preempted, if any of their blocks are saved in the host pool; 0
    /// if no block is saved, and from the time at which the request runs again.
    pub(crate) saved_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) max_tokens: u32,
    /// KV blocks of the device pool; of a preempted request, those that it retains.
    pub(crate) device_blocks: u32,
    /// KV blocks of the host pool that are pinned for the preempted request.
    pub(crate) host_blocks: u32,
    pub(crate) preemptions: u32,
}

/// One choice of a request. Most requests have one choice.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Row {
    /// Id in the response, such as `chatcmpl-...`.
    pub(crate) id: String,
    /// Id that the client gave (`X-Request-Id`), or that the server made.
    #[schema(value_type = String)]
    pub(crate) request_id: Arc<str>,
    /// Number of the choice's sequence in the engine.
    pub(crate) seq: u64,
    /// Name of the client's API key.
    #[schema(value_type = String)]
    pub(crate) key: Arc<str>,
    /// Name of the client's tenant.
    #[schema(value_type = String)]
    pub(crate) tenant: Arc<str>,
    #[schema(schema_with = schema::tier)]
    pub(crate) tier: &'static str,
    /// Priority within the tier; the lower number is served first.
    pub(crate) priority: i32,
    #[schema(schema_with = state_schema)]
    pub(crate) state: &'static str,
    /// Whether an operator paused the request.
    pub(crate) paused: bool,
    /// Whether the request is on hold because its client reads too slowly.
    pub(crate) slow_reader: bool,
    /// Whether the first token is expected after its deadline.
    pub(crate) late: bool,
    /// Position among the requests of its tier that have no first token and are not paused: 1 is served first. The
    /// field is absent for all other requests, for requests that arrived after the listing was made, and in answers to
    /// commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<usize>,
    /// Expected time until the first token, ms, from the position and the rate at which the tier's queue drains
    /// (Little's law); absent if that rate is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_token_in_ms: Option<u64>,
    /// Time since the request arrived, ms.
    pub(crate) age_ms: u64,
    /// Time from the arrival to the first token, ms; absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft_ms: Option<f64>,
    /// Step that sampled the first token; absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_token_step: Option<u64>,
    #[serde(flatten)]
    pub(crate) progress: Progress,
    /// Time by which the request is ahead of its latency target, ms (TTFT before the first token, then TPOT); negative
    /// if it is behind, absent without the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slack_ms: Option<f64>,
    /// What happened to the request; only where one request is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeline: Option<TimelineView>,
}

impl Row {
    pub(crate) fn new(view: &SequenceView, request: &LiveRequest, now: Timestamp) -> Row {
        Row {
            id: request.id.clone(),
            request_id: request.request_id.clone(),
            seq: view.seq.0,
            key: request.key.clone(),
            tenant: request.tenant.clone(),
            tier: view.tier.name(),
            priority: view.priority,
            state: state_name(view.state),
            paused: view.paused,
            slow_reader: view.slow_reader,
            late: view.late,
            position: None,
            first_token_in_ms: None,
            age_ms: now.since_us(view.arrival) / 1_000,
            ttft_ms: view.first_token_at.map(|at| at.since_ms(view.arrival)),
            first_token_step: view.first_token_step.map(|step| step.0),
            progress: Progress {
                prompt_tokens: view.prompt_tokens,
                computed_tokens: view.computed_tokens,
                saved_tokens: view.saved_tokens,
                output_tokens: view.output_tokens,
                max_tokens: view.max_tokens,
                device_blocks: view.blocks.device,
                host_blocks: view.blocks.host,
                preemptions: view.preemptions,
            },
            slack_ms: view.slack_us.map(|us| us as f64 / 1_000.0),
            timeline: None,
        }
    }
}

/// Names of the states of a request.
pub(crate) const STATES: [&str; 5] = ["waiting", "prefill", "decode", "preempted", "resuming"];

/// Returns the schema of the name of a state.
pub(crate) fn state_schema() -> RefOr<Schema> {
    schema::word(&STATES, "State of the request.")
}

/// Returns the name of a state.
pub(crate) fn state_name(state: SequenceState) -> &'static str {
    match state {
        SequenceState::Waiting => STATES[0],
        SequenceState::Prefill => STATES[1],
        SequenceState::Decode => STATES[2],
        SequenceState::Preempted => STATES[3],
        SequenceState::Resuming => STATES[4],
    }
}

/// Returns the rows of a snapshot in the order of service. Sequences that are no request's are left out.
pub(crate) fn rows(
    snapshot: &Snapshot,
    requests: &HashMap<SeqId, Arc<LiveRequest>>,
    now: Timestamp,
) -> Vec<Row> {
    let row = |(view, position): (&SequenceView, Option<Position>)| {
        let request = requests.get(&view.seq)?;
        Some(Row {
            position: position.map(|position| position.number),
            first_token_in_ms: position.and_then(|position| position.first_token_in_ms),
            ..Row::new(view, request, now)
        })
    };
    in_order(snapshot).into_iter().filter_map(row).collect()
}
