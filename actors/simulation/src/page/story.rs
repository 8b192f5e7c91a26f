//! Turns the engine's events of a simulation run into the content of the HTML page.

use super::curve::Curve;
use super::lanes::{Lane, Lanes, Room};
use super::pressure::Pressure;
use crate::trace::{Event, Record, Section};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Most lanes and spans on the page for one policy.
pub(super) const ROOM: Room = Room { lanes: 500, spans: 30_000 };

/// Recorder that collects what the HTML page shows of one simulation run.
pub(super) struct Story {
    state: RefCell<Watch>,
}

struct Watch {
    end: Timestamp,
    device_blocks: u32,
    host_blocks: u32,
    counted: Range<Timestamp>,
    /// Tier and arrival time of each live request that arrived in the measured window and has no first token yet.
    unanswered: BTreeMap<SeqId, (Tier, Timestamp)>,
    curve: Curve,
    /// Lanes of requests and use of KV memory; `None` for runs of which the page shows only the TTFT curve.
    detail: Option<Detail>,
}

struct Detail {
    lanes: Lanes,
    whole: Pressure,
    window: Pressure,
}

/// Content of the page for a run that is shown in full: lanes of requests and use of KV memory.
#[derive(Serialize)]
pub(super) struct Told {
    device_blocks: u32,
    host_blocks: u32,
    lanes: Vec<Lane>,
    /// Number of requests of the page's window that have no lane, because the page had no room for more.
    left_out: u64,
    /// Time from which on lanes show no states, because the page has no room for more, us.
    cut_us: Option<u64>,
    /// Use of KV blocks in the whole run, and in the page's window.
    pressure: Vec<Pressure>,
}

impl Story {
    /// Makes a recorder of what the page shows of one simulation run: always the TTFT curve; with `full` also the
    /// states of requests over time (lanes) and the KV blocks in use.
    pub(super) fn new(
        section: &Section,
        window: &Range<Timestamp>,
        counted: &Range<Timestamp>,
        full: bool,
    ) -> Story {
        let end = Timestamp(section.end_us);
        let window = window.start.min(end)..window.end.min(end);
        let detail = full.then(|| Detail {
            lanes: Lanes::new(window.clone(), ROOM),
            whole: Pressure::new(Timestamp(0)..end),
            window: Pressure::new(window),
        });
        let state = RefCell::new(Watch {
            end,
            device_blocks: section.device_blocks,
            host_blocks: section.host_blocks,
            counted: counted.clone(),
            unanswered: BTreeMap::new(),
            curve: Curve::default(),
            detail,
        });
        Story { state }
    }

    /// Returns the TTFT curve of the run so far.
    pub(super) fn curve(&self) -> Curve {
        self.state.borrow().curve.clone()
    }

    /// Takes the lanes and the use of KV memory of the run out of the recorder, for the page.
    pub(super) fn told(&self) -> Told {
        let mut state = self.state.borrow_mut();
        let Watch { end, device_blocks, host_blocks, .. } = *state;
        let (mut lanes, mut left_out, mut cut_us, mut pressure) = (Vec::new(), 0, None, Vec::new());
        if let Some(detail) = state.detail.take() {
            (lanes, left_out, cut_us) = detail.lanes.finish(end);
            pressure = vec![detail.whole, detail.window];
        }
        Told { device_blocks, host_blocks, lanes, left_out, cut_us, pressure }
    }
}

impl Record for Story {
    fn record(&self, at: Timestamp, event: &Event) {
        let mut state = self.state.borrow_mut();
        state.latency(at, event);
        let (device_blocks, host_blocks) = (state.device_blocks, state.host_blocks);
        let Some(detail) = &mut state.detail else { return };
        if let Event::Planned { device_free, host_free, .. } = event {
            let device = device_blocks.saturating_sub(*device_free);
            let host = host_blocks.saturating_sub(*host_free);
            detail.whole.in_use(at, device, host);
            detail.window.in_use(at, device, host);
        }
        detail.record(at, event);
    }
}

impl Watch {
    fn latency(&mut self, at: Timestamp, event: &Event) {
        match event {
            Event::Arrived { seq, tier, .. } if self.counted.contains(&at) => {
                self.curve.arrived(*tier);
                self.unanswered.insert(*seq, (*tier, at));
            }
            Event::FirstToken { seq } => {
                if let Some((tier, arrived)) = self.unanswered.remove(seq) {
                    self.curve.answered(tier, at.since_us(arrived));
                }
            }
            Event::Ended { seq, .. } => {
                self.unanswered.remove(seq);
            }
            _ => {}
        }
    }
}

impl Detail {
    fn record(&mut self, at: Timestamp, event: &Event) {
        if let Event::PreemptFreed { .. } | Event::PreemptCommitted { .. } = event {
            self.whole.preempted(at);
            self.window.preempted(at);
        }
        self.lanes.record(at, event);
    }
}
