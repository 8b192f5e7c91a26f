//! Recording of an engine's events: what it decides, and when. The actors pass the events to the recorder, so that the
//! policy's functions stay pure.
//!
//! An engine that is started with a [`Record`] passes every [`Event`] to it as the event happens. Without a recorder,
//! as in a server, each place that could record an event costs one branch.

mod event;
mod sequences;

pub use event::{Ending, Entry, Event, Slice};
pub use sequences::SequenceTrace;

use std::rc::Rc;
use tiercel_device::{Clock, Timestamp};

/// Recorder: receives the events of an engine in order, on the engine's thread. An implementation must not block for
/// long and must not call the engine.
pub trait Record {
    /// Records an event that happened at time `at`.
    fn record(&self, at: Timestamp, event: &Event);
}

/// Passes an actor's events to the engine's recorder, if there is one.
#[derive(Clone)]
pub struct Tracer {
    recorder: Option<Rc<dyn Record>>,
    clock: Clock,
}

impl Tracer {
    /// Makes a `Tracer`, which passes events to `recorder`. Without a recorder it does nothing.
    pub fn new(recorder: Option<Rc<dyn Record>>, clock: Clock) -> Tracer {
        Tracer { recorder, clock }
    }

    /// Whether there is a recorder, so that the engine's events are recorded.
    fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// Passes an event to the recorder, with the engine's time. The event is only created if there is a recorder.
    pub(crate) fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = &self.recorder {
            recorder.record(self.clock.now(), &event());
        }
    }
}
