//! Passes the events of a simulation run to recorders, until the run ends.

use super::{Event, Record};
use std::cell::Cell;
use std::rc::Rc;
use tiercel_device::Timestamp;

/// Passes the events of an engine to recorders until it is closed. Events after the end of a simulation run, while the
/// engine shuts down, are not part of the run.
pub(crate) struct Gate {
    recorders: Vec<Rc<dyn Record>>,
    open: Cell<bool>,
}

impl Gate {
    /// Makes a `Gate` that passes events to the recorders; `None` if there are no recorders.
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
