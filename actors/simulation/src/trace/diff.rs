//! Finds the first difference of two traces (files of the events of simulation runs).

use super::{Item, TraceError, TraceReader};
use std::collections::VecDeque;
use std::io::Read;

/// Number of equal records before the first difference of two traces that are shown with it.
const CONTEXT: usize = 6;

/// First difference of two traces, with the equal records before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Number of the first record that differs in the two traces, counted from 1.
    pub number: u64,
    /// Last records before the first difference; they are equal in both traces.
    pub before: Vec<Item>,
    /// First differing record of the first trace; `None` if the first trace ends before it.
    pub first: Option<Item>,
    /// First differing record of the second trace; `None` if the second trace ends before it.
    pub second: Option<Item>,
}

/// Result of comparing two traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Both compared trace files hold the same records.
    Equal {
        /// Number of simulation runs in each of the two compared traces.
        runs: u64,
        /// Number of recorded events of the engine in each of the two compared traces.
        events: u64,
    },
    /// The traces differ; holds the first difference.
    Different(Box<Difference>),
}

/// Error of a comparison of two traces: one of them could not be read.
#[derive(Debug)]
pub struct Unreadable {
    /// Whether the second trace, not the first, could not be read.
    pub second: bool,
    /// Reason why the trace could not be read.
    pub error: TraceError,
}

/// Compares two traces record by record up to the first difference.
///
/// # Errors
/// [`Unreadable`] says which of the two traces could not be read, and why.
pub fn diff<A: Read, B: Read>(
    first: &mut TraceReader<A>,
    second: &mut TraceReader<B>,
) -> Result<Found, Unreadable> {
    let mut before = VecDeque::with_capacity(CONTEXT);
    let (mut runs, mut events) = (0, 0);
    loop {
        let a = first.next_item().map_err(|error| Unreadable { second: false, error })?;
        let b = second.next_item().map_err(|error| Unreadable { second: true, error })?;
        if a != b {
            return Ok(Found::Different(Box::new(Difference {
                number: runs + events + 1,
                before: before.into(),
                first: a,
                second: b,
            })));
        }
        match &a {
            None => return Ok(Found::Equal { runs, events }),
            Some(Item::Section(_)) => runs += 1,
            Some(Item::Entry(_)) => events += 1,
        }
        if before.len() == CONTEXT {
            before.pop_front();
        }
        before.extend(a);
    }
}
