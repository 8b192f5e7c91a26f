//! Recorders of an engine's events: decisions, steps and copies, with the engine's time. The actors pass events to the
//! recorder, so that the policy's functions stay pure.
//!
//! An engine that is started with a [`Record`] passes every [`Event`] to it as the event happens. The engine of a
//! server is started without a recorder; a [`Capture`] of it begins and ends by messages. Without a recorder, each
//! place that could record an event costs one branch.

mod active;
mod capture;
mod event;
mod sequences;

pub use active::ActiveCapture;
pub use capture::{Capture, CaptureBusy};
pub use event::{Ending, Entry, Event, Slice};
pub use sequences::SequenceTrace;

use std::cell::RefCell;
use std::rc::Rc;
use tiercel_device::{Clock, Timestamp};

/// Recorder: receives the events of an engine in order, on the engine's thread. An implementation must not block for
/// long and must not call the engine.
pub trait Record {
    /// Records an event that happened at time `at`.
    fn record(&self, at: Timestamp, event: &Event);
}

/// Passes an actor's events to the engine's recorder, if there is one. The clones of a `Tracer` have one recorder in
/// common.
#[derive(Clone)]
pub struct Tracer {
    recorder: Rc<RefCell<Option<Rc<dyn Record>>>>,
    clock: Clock,
}

impl Tracer {
    /// Makes a `Tracer`, which passes events to `recorder`. Without a recorder it does nothing.
    pub fn new(recorder: Option<Rc<dyn Record>>, clock: Clock) -> Tracer {
        Tracer { recorder: Rc::new(RefCell::new(recorder)), clock }
    }

    /// Whether there is a recorder, so that the engine's events are recorded.
    fn is_on(&self) -> bool {
        self.recorder.borrow().is_some()
    }

    /// Passes the events of all clones from now on to `recorder`, or to none.
    fn switch(&self, recorder: Option<Rc<dyn Record>>) {
        self.recorder.replace(recorder);
    }

    /// Passes an event to the recorder, with the engine's time. The event is only created if there is a recorder.
    pub(crate) fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = &*self.recorder.borrow() {
            recorder.record(self.clock.now(), &event());
        }
    }
}
