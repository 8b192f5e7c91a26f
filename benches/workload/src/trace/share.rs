//! A workload's trace divided among its classes: at random, so that each gets its share.

use super::TraceEntry;
use crate::file::{Arrival, Workload};
use crate::random::Random;
use std::ops::Range;

/// Decimal fractions that add up to 1 on paper may miss it by this.
pub(crate) const ROUNDING: f64 = 1e-9;

/// The rows that belong to a class.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    seed: u64,
    /// Rows whose draw is within it.
    draws: Range<f64>,
}

impl Part {
    /// The part of a class, whose arrivals are the share.
    pub(crate) fn of(workload: &Workload, class: usize, share: f64) -> Part {
        let start = shares_before(workload, class);
        let end = start + share;
        Part { seed: workload.seed, draws: start..if end >= 1.0 - ROUNDING { 1.0 } else { end } }
    }

    /// Whether a row is one of them. The draw is that of its line: another window draws no differently.
    pub(crate) fn has(&self, entry: &TraceEntry) -> bool {
        let mut random = Random::stream(self.seed, &[u64::MAX - 2, u64::from(entry.line)]);
        self.draws.contains(&random.unit())
    }
}

/// The shares of the classes before this one, added up.
pub(crate) fn shares_before(workload: &Workload, class: usize) -> f64 {
    let shares = workload.classes[..class].iter().map(|class| match class.arrival {
        Arrival::Share(share) => share,
        Arrival::Poisson(_) | Arrival::Closed(_) | Arrival::Trace(_) => 0.0,
    });
    shares.sum()
}
