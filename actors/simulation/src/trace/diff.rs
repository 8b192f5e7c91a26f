//! Where two traces part.

use super::{Item, TraceError, TraceReader};
use std::collections::VecDeque;
use std::io::Read;

/// How many records before a difference are kept.
const CONTEXT: usize = 6;

/// The first difference of two traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which record it is, counted from 1.
    pub number: u64,
    /// The records before it, the same in both.
    pub before: Vec<Item>,
    /// The record of the first trace; `None` if it ends here.
    pub first: Option<Item>,
    /// The record of the second one.
    pub second: Option<Item>,
}

/// What a comparison came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Both hold the same.
    Equal {
        /// Runs in each.
        runs: u64,
        /// Events in each.
        events: u64,
    },
    /// They part here.
    Different(Box<Difference>),
}

/// A trace that could not be read, while comparing.
#[derive(Debug)]
pub struct Unreadable {
    /// Whether it is the second one.
    pub second: bool,
    /// Why.
    pub error: TraceError,
}

/// Reads two traces as far as they are the same.
///
/// # Errors
/// [`Unreadable`]: which of them could not be read, and why.
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
