//! The requests that live views show, each with its latest moments.

use crate::boot::App;
use crate::control::row::{state_name, state_schema};
use crate::control::timeline::TimelineView;
use crate::document::schema;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use tiercel_actors::messages::Inspected;
use tiercel_actors::{SequenceState, SequenceView, Snapshot, Timeline};
use tiercel_device::{SeqId, Tier, Timestamp};
use utoipa::ToSchema;

/// Most requests in a document.
const ROWS_MAX: usize = 64;
/// Most moments of a request in a document.
const MOMENTS_MAX: usize = 8;

/// A live choice of a request, as live views show it.
#[derive(Serialize, ToSchema)]
pub(crate) struct LiveRow {
    /// Id in the response, such as `chatcmpl-...`.
    id: String,
    /// Id that the client gave (`X-Request-Id`), or that the server made.
    #[schema(value_type = String)]
    request_id: Arc<str>,
    /// Number of the choice's sequence in the engine.
    seq: u64,
    /// Name of the client's tenant.
    #[schema(value_type = String)]
    tenant: Arc<str>,
    #[schema(schema_with = schema::tier)]
    tier: &'static str,
    priority: i32,
    #[schema(schema_with = state_schema)]
    state: &'static str,
    /// Whether blocks of the request are being copied: out, because it is preempted, or in.
    copying: bool,
    paused: bool,
    late: bool,
    /// Position among the requests of its tier that have no first token and are not paused: 1 is served first.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
    /// When the request arrived, ms of the engine's clock.
    arrived_ms: f64,
    /// Time from the arrival to the first token, ms; absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f64>,
    /// Time by which the request is ahead of its latency target, ms; negative if it is behind, absent without the
    /// target.
    #[serde(skip_serializing_if = "Option::is_none")]
    slack_ms: Option<f64>,
    #[serde(flatten)]
    work: LiveWork,
    /// The latest moments of the request, at most 8.
    timeline: TimelineView,
}

/// How far a choice is, and the memory that it has.
#[derive(Serialize, ToSchema)]
struct LiveWork {
    prompt_tokens: u32,
    computed_tokens: u32,
    output_tokens: u32,
    max_tokens: u32,
    /// KV blocks of the device pool; of a preempted request, those that it retains.
    device_blocks: u32,
    /// KV blocks of the host pool that are pinned for the preempted request.
    host_blocks: u32,
    preemptions: u32,
}

/// Returns at most [`ROWS_MAX`] sequences of a snapshot, each with its position if it is in line: first the active
/// ones, which have blocks, had some or are about to get some, and then the first waiting ones. Both groups are in the
/// order of service. If there are too many active sequences, those that are preempted or resume are kept rather than
/// the others, because views exist to show them.
pub(super) fn shown(snapshot: &Snapshot) -> Vec<(&SequenceView, Option<u32>)> {
    let waits = |view: &&SequenceView| view.state == SequenceState::Waiting && !view.blocks.copying;
    let (mut waiting, mut active): (Vec<_>, Vec<_>) = snapshot.sequences.iter().partition(waits);
    if waiting.len() > ROWS_MAX {
        waiting.select_nth_unstable_by_key(ROWS_MAX, |view| view.order);
        waiting.truncate(ROWS_MAX);
    }
    active.sort_unstable_by_key(|view| (!is_interrupted(view), view.order));
    waiting.sort_unstable_by_key(|view| view.order);
    let mut positions = positions(&active, &waiting);
    active.truncate(ROWS_MAX);
    active.sort_unstable_by_key(|view| view.order);
    let shown = active.into_iter().chain(waiting).take(ROWS_MAX);
    shown.map(|view| (view, positions.remove(&view.seq))).collect()
}

/// Returns whether a sequence is preempted or resumes, or whether blocks of the sequence are being copied.
fn is_interrupted(view: &SequenceView) -> bool {
    let state = matches!(view.state, SequenceState::Preempted | SequenceState::Resuming);
    state || view.blocks.copying
}

/// Returns the positions in line of the sequences in `active` and `waiting`. `active` has all sequences that are not
/// waiting, and `waiting` the first waiting ones. A sequence of `waiting` has its position in the whole line, because
/// all sequences before it are in one of the two lists. A sequence of `active` gets too low a number if waiting
/// sequences that are left out of `waiting` go before it.
fn positions(active: &[&SequenceView], waiting: &[&SequenceView]) -> HashMap<SeqId, u32> {
    let mut in_line: Vec<&SequenceView> = active.iter().chain(waiting).copied().collect();
    in_line.retain(|view| view.first_token_at.is_none() && !view.paused);
    in_line.sort_unstable_by_key(|view| view.order);
    let mut numbers = [0_u32; Tier::ALL.len()];
    let numbered = in_line.into_iter().map(|view| {
        let number = &mut numbers[view.tier.index()];
        *number += 1;
        (view.seq, *number)
    });
    numbered.collect()
}

/// Returns the rows of the sequences that are shown. Sequences that are no client's are left out.
pub(super) fn rows(
    app: &App,
    shown: &[(&SequenceView, Option<u32>)],
    inspected: Inspected,
) -> Vec<LiveRow> {
    let requests = app.live.of(shown.iter().map(|(view, _)| view.seq));
    let timelines = inspected.live.into_iter().map(|(view, timeline)| (view.seq, timeline));
    let timelines: HashMap<SeqId, Timeline> = timelines.collect();
    let ms = |at: Timestamp| at.0 as f64 / 1e3;
    let row = |(view, position): &(&SequenceView, Option<u32>)| {
        let request = requests.get(&view.seq)?;
        // The timeline of a sequence is dropped when the sequence ends, which may be after the snapshot and before this
        // look-up.
        let timeline = timelines.get(&view.seq)?;
        Some(LiveRow {
            id: request.id.clone(),
            request_id: request.request_id.clone(),
            seq: view.seq.0,
            tenant: request.tenant.clone(),
            tier: view.tier.name(),
            priority: view.priority,
            state: state_name(view.state),
            copying: view.blocks.copying,
            paused: view.paused,
            late: view.late,
            position: *position,
            arrived_ms: ms(view.arrival),
            ttft_ms: view.first_token_at.map(|at| at.since_ms(view.arrival)),
            slack_ms: view.slack_us.map(|us| us as f64 / 1e3),
            work: LiveWork::of(view),
            timeline: TimelineView::latest(timeline, view.arrival, MOMENTS_MAX),
        })
    };
    shown.iter().filter_map(row).collect()
}

impl LiveWork {
    fn of(view: &SequenceView) -> LiveWork {
        LiveWork {
            prompt_tokens: view.prompt_tokens,
            computed_tokens: view.computed_tokens,
            output_tokens: view.output_tokens,
            max_tokens: view.max_tokens,
            device_blocks: view.blocks.device,
            host_blocks: view.blocks.host,
            preemptions: view.preemptions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_actors::{Control, Request};
    use tiercel_simulation::{Laboratory, request, simulate};

    #[test]
    fn those_with_blocks_come_first_and_positions_are_those_in_the_whole_line() {
        simulate(async |clock| {
            let mut laboratory = Laboratory::tiny(clock.clone());
            laboratory.settings.scheduler.max_num_seqs = 1;
            laboratory.settings.admission.max_requests = 1_000;
            laboratory.settings.admission.max_queued_requests_per_tier = 1_000;
            let engine = laboratory.start();
            let of = |tier| Request { tier, ..request(&[1, 2, 3], 1_000) };
            let mut streams = vec![engine.submit(of(Tier::Background)).await.unwrap()];
            streams[0].next().await;
            engine.control(Control::Pause(streams[0].seq())).await.unwrap();
            for number in 0..200 {
                let tier = if number % 2 == 0 { Tier::Background } else { Tier::Standard };
                streams.push(engine.submit(of(tier)).await.unwrap());
            }
            let snapshot = engine.snapshot(0).await.unwrap();
            let all = crate::standing::in_order(&snapshot);
            let shown = shown(&snapshot);
            assert_eq!((shown.len(), all.len()), (ROWS_MAX, 201));
            assert!(shown.iter().any(|(view, _)| view.seq == streams[0].seq()), "it has blocks");
            let waits = |view: &SequenceView| view.state == SequenceState::Waiting;
            let firsts = all.iter().filter(|(view, _)| waits(view));
            let rest = shown.iter().filter(|(view, _)| waits(view));
            for ((view, position), (expected, of_all)) in rest.zip(firsts) {
                assert_eq!(view.seq, expected.seq);
                assert_eq!(*position, of_all.map(|position| position.number as u32));
            }
        });
    }
}
