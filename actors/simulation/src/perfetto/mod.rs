//! Perfetto files: a capture of an engine as trace events in Chrome's JSON format, which <https://ui.perfetto.dev> and
//! `chrome://tracing` show. Steps, copies and the use of memory are tracks of the process "engine"; each request is a
//! lane of the process "requests".

#[cfg(test)]
mod tests;
mod track;

use crate::page::lanes::{Lane, Lanes, Room, STATE_NAMES, State};
use crate::trace::{Event, Slice};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use tiercel_actors::SequenceView;
use tiercel_actors::trace::{Capture, Entry};
use tiercel_device::{SeqId, StepId, Tier, Timestamp};
use tiercel_policy::scheduler::Phase;
use track::{COPIES_IN, COPIES_OUT, ENGINE, OPERATORS, REQUESTS, STEPS, Tracks};

/// Room for the lanes of a file. With the events of a full capture, a file takes some tens of MB.
const ROOM: Room = Room { lanes: 1_000, spans: 100_000 };

/// Facts about the engine that its events do not tell.
#[derive(Debug, Clone, Default)]
pub struct EngineFacts {
    /// Name of the device.
    pub device: String,
    /// Blocks of the device pool.
    pub device_blocks: u32,
    /// Blocks of the host pool.
    pub host_blocks: u32,
}

/// Facts about the sequences of a capture beside their events.
#[derive(Debug, Default)]
pub struct Named {
    /// Views of sequences that were live when the capture began, taken soon after.
    pub views: Vec<SequenceView>,
    /// Names of sequences for people, such as the ids of their requests.
    pub names: HashMap<SeqId, String>,
}

/// Returns the trace events of a capture as JSON. The file holds no prompt and no output. Marks in the file say what is
/// missing: events beyond the memory of the capture, and lanes and spans beyond the room of the file.
///
/// # Errors
/// If JSON cannot be written, which cannot happen in memory.
pub fn perfetto(
    capture: &Capture,
    engine: &EngineFacts,
    named: &Named,
) -> serde_json::Result<Vec<u8>> {
    let mut tracks = Tracks::new(capture.began)?;
    engine_tracks(&mut tracks, &capture.entries, engine)?;
    let (lanes, left_out, cut_us) = lanes(capture, &named.views).finish(capture.ended);
    for lane in &lanes {
        request(&mut tracks, lane, named.names.get(&SeqId(lane.seq)))?;
    }
    if let Some(at) = capture.cut {
        tracks.mark("CUT: the memory of the capture is full", at)?;
    }
    if let Some(at) = cut_us {
        tracks.mark(
            "CUT: there are more states of requests than lanes have room for",
            Timestamp(at),
        )?;
    }
    tracks.finish(&json!({
        "program": concat!("tiercel ", env!("CARGO_PKG_VERSION")),
        "device": engine.device,
        "seconds": capture.ended.since_us(capture.began) as f64 / 1e6,
        "events": capture.entries.len(),
        "events_missing_from_s": capture.cut.map(|at| at.since_us(capture.began) as f64 / 1e6),
        "requests_without_a_lane": left_out,
    }))
}

/// Writes the tracks of steps, copies, memory and operators' commands. Steps and copies that began before the capture
/// are left out.
fn engine_tracks(
    tracks: &mut Tracks,
    entries: &[Entry],
    engine: &EngineFacts,
) -> serde_json::Result<()> {
    tracks.process(ENGINE, "engine")?;
    let names = [
        (STEPS, "steps"),
        (COPIES_OUT, "copies to the host"),
        (COPIES_IN, "copies to the device"),
        (OPERATORS, "operators"),
    ];
    for (thread, name) in names {
        tracks.thread((ENGINE, thread), name, thread)?;
    }
    let mut steps: BTreeMap<StepId, &[Slice]> = BTreeMap::new();
    let mut copies = BTreeMap::new();
    for Entry { at, event } in entries {
        match event {
            Event::StepSubmitted { step, slices } => {
                steps.insert(*step, slices);
            }
            Event::StepEnded { step, ok, duration_us } => {
                let Some(slices) = steps.remove(step) else { continue };
                let name = if *ok {
                    format!("step {}", step.0)
                } else {
                    format!("step {} FAILED", step.0)
                };
                tracks.slice(
                    (ENGINE, STEPS),
                    &name,
                    (*at - *duration_us, *at),
                    contents(slices),
                )?;
            }
            Event::CopyStarted { copy, out, blocks } => {
                copies.insert(*copy, (*out, *blocks));
            }
            Event::CopyEnded { copy, ok, duration_us } => {
                let Some((out, blocks)) = copies.remove(copy) else { continue };
                let thread = if out { COPIES_OUT } else { COPIES_IN };
                let name = if *ok { "copy" } else { "copy FAILED" };
                let args = json!({"blocks": blocks});
                tracks.slice((ENGINE, thread), name, (*at - *duration_us, *at), args)?;
            }
            Event::Planned { device_free, host_free, .. } => {
                let device = engine.device_blocks.saturating_sub(*device_free);
                let host = engine.host_blocks.saturating_sub(*host_free);
                tracks.counter("KV blocks in use", *at, json!({"device": device, "host": host}))?;
            }
            Event::Command { seq, text, .. } => {
                let of = seq.map(|seq| format!(" of sequence {}", seq.0)).unwrap_or_default();
                tracks.instant((ENGINE, OPERATORS), &format!("{text}{of}"), *at)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the contents of a step.
fn contents(slices: &[Slice]) -> Value {
    let decodes = slices.iter().filter(|slice| slice.is_decode()).count();
    let prefill = slices.iter().filter(|slice| !slice.is_decode());
    let tokens: u64 = prefill.map(|slice| u64::from(slice.tokens)).sum();
    json!({"sequences": slices.len(), "decode_tokens": decodes, "prefill_tokens": tokens})
}

/// Returns the lanes of the capture's requests. Requests that have begun to run get lanes before waiting requests.
fn lanes(capture: &Capture, views: &[SequenceView]) -> Lanes {
    let mut lanes = Lanes::new(capture.began..capture.ended, ROOM);
    let views: HashMap<SeqId, &SequenceView> = views.iter().map(|view| (view.seq, view)).collect();
    let present = capture.phases.iter().filter_map(|(seq, phase)| {
        let view = views.get(seq)?;
        let state = match phase {
            Phase::Waiting if view.preemptions > 0 => State::Preempted,
            Phase::Waiting => State::Waiting,
            Phase::Running => State::Idle,
            Phase::Opening => State::CopyingIn,
            Phase::Preempting => State::CopyingOut,
        };
        Some((*view, state))
    });
    let (waiting, begun): (Vec<_>, Vec<_>) =
        present.partition(|(_, state)| *state == State::Waiting);
    for (view, state) in begun.into_iter().chain(waiting) {
        let SequenceView { seq, tier, prompt_tokens: prompt, max_tokens, .. } = *view;
        lanes.record(view.arrival, &Event::Arrived { seq, tier, prompt, max_tokens });
        if let Some(at) = view.first_token_at.filter(|at| *at < capture.began) {
            lanes.record(at, &Event::FirstToken { seq });
        }
        lanes.becomes(seq, state, capture.began);
    }
    for Entry { at, event } in &capture.entries {
        lanes.record(*at, event);
    }
    lanes
}

/// Writes the lane of a request.
fn request(tracks: &mut Tracks, lane: &Lane, name: Option<&String>) -> serde_json::Result<()> {
    let thread = (REQUESTS, lane.seq);
    let tier = Tier::ALL.get(lane.tier).map_or("?", |tier| tier.name());
    let named = name.map(|name| format!(" {name}")).unwrap_or_default();
    tracks.thread(thread, &format!("{tier} {}{named}", lane.seq), lane.seq)?;
    for span in lane.spans.chunks_exact(3) {
        let state = STATE_NAMES.get(span[0] as usize).copied().unwrap_or("?");
        tracks.slice(thread, state, (Timestamp(span[1]), Timestamp(span[2])), Value::Null)?;
    }
    if let Some(at) = lane.first_token.filter(|at| tracks.covers(Timestamp(*at))) {
        tracks.instant(thread, "first token", Timestamp(at))?;
    }
    if let (Some(at), Some(ending)) = (lane.ended, lane.ending) {
        tracks.instant(thread, &format!("ended: {ending}"), Timestamp(at))?;
    }
    Ok(())
}
