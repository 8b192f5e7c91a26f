//! Taking down what an engine decides and when: at the actors' edge, so that the policy stays pure.
//!
//! An engine started with a [`Record`] hands it every [`Event`] as it happens. Without one, as in a server,
//! each place costs a branch.

mod event;
mod sequences;

pub use event::{Ending, Entry, Event, Slice};
pub(crate) use sequences::SequenceTrace;

use std::rc::Rc;
use tiercel_device::{Clock, Timestamp};

/// Takes events down, in order, on the engine's thread. It must not block for long and must not call the
/// engine.
pub trait Record {
    /// An event, and when it happened.
    fn record(&self, at: Timestamp, event: &Event);
}

/// Where an actor's events go, if anybody wants them.
#[derive(Clone)]
pub(crate) struct Tracer {
    recorder: Option<Rc<dyn Record>>,
    clock: Clock,
}

impl Tracer {
    pub(crate) fn new(recorder: Option<Rc<dyn Record>>, clock: Clock) -> Tracer {
        Tracer { recorder, clock }
    }

    /// Whether anybody wants events.
    fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// Takes an event down; it is made only if somebody wants it.
    pub(crate) fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = &self.recorder {
            recorder.record(self.clock.now(), &event());
        }
    }
}
