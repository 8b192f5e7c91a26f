//! Passes a run's events on.

use super::{Event, Record};
use std::cell::Cell;
use std::rc::Rc;
use tiercel_device::Timestamp;

/// Hands events to recorders until it is closed: what an engine does after a run's end, while it is put away,
/// is no part of the run.
pub(crate) struct Gate {
    recorders: Vec<Rc<dyn Record>>,
    open: Cell<bool>,
}

impl Gate {
    /// `None` if nobody wants events.
    pub(crate) fn open(recorders: &[Rc<dyn Record>]) -> Option<Rc<Gate>> {
        let gate = Gate { recorders: recorders.to_vec(), open: Cell::new(true) };
        (!recorders.is_empty()).then(|| Rc::new(gate))
    }

    pub(crate) fn close(&self) {
        self.open.set(false);
    }
}

impl Record for Gate {
    fn record(&self, at: Timestamp, event: &Event) {
        if self.open.get() {
            self.recorders.iter().for_each(|recorder| recorder.record(at, event));
        }
    }
}
