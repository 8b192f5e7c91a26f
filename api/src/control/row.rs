//! Rows: requests as the control API shows them.

use crate::live::LiveRequest;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use tiercel_actors::{SequenceState, SequenceView, Snapshot};
use tiercel_device::{SeqId, Tier, Timestamp};

/// How far a choice is, and the memory that it has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Progress {
    pub(crate) prompt_tokens: u32,
    /// Tokens whose KV is valid on the device.
    pub(crate) computed_tokens: u32,
    /// Tokens whose KV a preemption saved in the host pool.
    pub(crate) saved_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) max_tokens: u32,
    /// KV blocks of the device pool.
    pub(crate) device_blocks: u32,
    pub(crate) preemptions: u32,
}

/// One choice of a request. Most requests have one choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Id in the response, such as `chatcmpl-...`.
    pub(crate) id: String,
    /// Id that the client gave (`X-Request-Id`), or that the server made.
    pub(crate) request_id: Arc<str>,
    /// Number of the choice's sequence in the engine.
    pub(crate) seq: u64,
    /// Name of the client's API key.
    pub(crate) key: Arc<str>,
    /// Name of the client's tenant.
    pub(crate) tenant: Arc<str>,
    pub(crate) tier: &'static str,
    /// Priority within the tier; the lower number is served first.
    pub(crate) priority: i32,
    pub(crate) state: &'static str,
    /// Whether an operator paused the request.
    pub(crate) paused: bool,
    /// Whether the request is on hold because its client reads too slowly.
    pub(crate) slow_reader: bool,
    /// Whether the first token is expected after its deadline.
    pub(crate) late: bool,
    /// Number of requests that are served before this one among those without a first token; only for waiting requests
    /// in a listing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<usize>,
    /// Expected time until the first token, ms, from the position and the rate at which the tier's queue drains (Little's
    /// law); absent if that rate is unknown.
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
    /// Time by which the request is ahead of its latency target, ms (TTFT before the first token, then TPOT); negative if
    /// it is behind, absent without the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slack_ms: Option<f64>,
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
                device_blocks: view.device_blocks,
                preemptions: view.preemptions,
            },
            slack_ms: view.slack_us.map(|us| us as f64 / 1_000.0),
        }
    }
}

/// Names of the states of a request.
pub(crate) const STATES: [&str; 5] = ["waiting", "prefill", "decode", "preempted", "resuming"];

fn state_name(state: SequenceState) -> &'static str {
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
    let mut views: Vec<&SequenceView> = snapshot.sequences.iter().collect();
    views.sort_unstable_by_key(|view| view.order);
    let waits = |view: &SequenceView| view.first_token_at.is_none() && !view.paused;
    let mut of_tier = [0_usize; Tier::ALL.len()];
    views.iter().filter(|view| waits(view)).for_each(|view| of_tier[view.tier.index()] += 1);
    let (mut before, mut before_in_tier) = (0, [0_usize; Tier::ALL.len()]);
    let mut rows = Vec::with_capacity(views.len());
    for view in views {
        let tier = view.tier.index();
        let row = requests.get(&view.seq).map(|request| Row::new(view, request, now));
        let mut row = row.into_iter();
        if waits(view) {
            before_in_tier[tier] += 1;
            let part = before_in_tier[tier] as f64 / of_tier[tier] as f64;
            let expected = snapshot.drain_us[tier].map(|drain_us| (drain_us * part / 1e3) as u64);
            rows.extend(row.by_ref().map(|row| Row {
                position: Some(before),
                first_token_in_ms: expected,
                ..row
            }));
            before += 1;
        }
        rows.extend(row);
    }
    rows
}
