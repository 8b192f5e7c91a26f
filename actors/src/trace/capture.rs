//! Captures: the events of a running engine over a time, kept in memory up to a limit.

use super::{Entry, Event, Record, Slice};
use std::cell::RefCell;
use std::rc::Rc;
use tiercel_device::{SeqId, Timestamp};
use tiercel_policy::scheduler::Phase;

/// Most memory that the events of a capture take, bytes: a minute of a server whose steps are full and take 10 ms.
const MAX_BYTES: usize = 32 << 20;

/// Events of an engine over a time.
#[derive(Debug)]
pub struct Capture {
    /// Time at which the capture began.
    pub began: Timestamp,
    /// Time at which the capture ended.
    pub ended: Timestamp,
    /// Phases of the sequences that were live when the capture began.
    pub phases: Vec<(SeqId, Phase)>,
    /// Events, the earliest first.
    pub entries: Vec<Entry>,
    /// Time of the first missing event, if the events before that time filled the capture's memory; `None` if no event
    /// is missing.
    pub cut: Option<Timestamp>,
}

/// Error of beginning a capture: the engine's events are being captured already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a trace of the engine is under way already")]
pub struct CaptureBusy;

/// Recorder that keeps the events of a capture.
pub(super) struct Keeper {
    kept: RefCell<Kept>,
    began: Timestamp,
    phases: Vec<(SeqId, Phase)>,
    max_bytes: usize,
}

#[derive(Default)]
struct Kept {
    entries: Vec<Entry>,
    bytes: usize,
    cut: Option<Timestamp>,
}

impl Keeper {
    pub(super) fn new(began: Timestamp, phases: Vec<(SeqId, Phase)>) -> Rc<Keeper> {
        Rc::new(Keeper { kept: RefCell::default(), began, phases, max_bytes: MAX_BYTES })
    }

    /// Takes the events out of the recorder.
    pub(super) fn finish(&self, ended: Timestamp) -> Capture {
        let Kept { entries, cut, .. } = self.kept.take();
        Capture { began: self.began, ended, phases: self.phases.clone(), entries, cut }
    }
}

impl Record for Keeper {
    fn record(&self, at: Timestamp, event: &Event) {
        let mut kept = self.kept.borrow_mut();
        if kept.cut.is_some() {
            return;
        }
        kept.bytes += size_of::<Entry>() + more_bytes(event);
        if kept.bytes > self.max_bytes {
            kept.cut = Some(at);
            return;
        }
        kept.entries.push(Entry { at, event: event.clone() });
    }
}

/// Returns the memory that an event takes beside its own size, bytes.
fn more_bytes(event: &Event) -> usize {
    match event {
        Event::StepSubmitted { slices, .. } => slices.len() * size_of::<Slice>(),
        Event::Command { text, .. } => text.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_device::StepId;

    #[test]
    fn a_full_capture_keeps_what_it_has_and_says_from_when_on_events_are_missing() {
        let slice = Slice { seq: SeqId(1), first_pos: 0, tokens: 1, sample: None };
        let step = Event::StepSubmitted { step: StepId(1), slices: vec![slice; 10] };
        let of_step = size_of::<Entry>() + 10 * size_of::<Slice>();
        let phases = vec![(SeqId(1), Phase::Waiting)];
        let kept = RefCell::default();
        let keeper = Keeper { kept, began: Timestamp(5), phases, max_bytes: 3 * of_step };
        for at in 10..16 {
            keeper.record(Timestamp(at), &step);
        }
        // An event that would fit is not kept behind events that are missing.
        keeper.record(Timestamp(16), &Event::FirstToken { seq: SeqId(1) });
        let capture = keeper.finish(Timestamp(20));
        assert_eq!((capture.entries.len(), capture.cut), (3, Some(Timestamp(13))));
        assert_eq!((capture.began, capture.ended), (Timestamp(5), Timestamp(20)));
        assert_eq!(capture.phases, [(SeqId(1), Phase::Waiting)]);
    }
}
