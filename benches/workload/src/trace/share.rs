//! Divides the trace of a workload among its classes at random, so that each class gets its share of the requests.

use super::TraceEntry;
use crate::file::{Arrival, Workload};
use crate::random::Random;
use std::ops::Range;

/// Tolerance of sums of shares. Decimal fractions that add up to 1 on paper may miss 1 by a rounding error.
pub(crate) const ROUNDING: f64 = 1e-9;

/// Part of a trace's rows that belongs to one class.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    seed: u64,
    /// Interval within `0..1`. A row belongs to the class if its random draw lies in the interval.
    draws: Range<f64>,
}

impl Part {
    /// Returns the part of the trace for a class that sends the share `share` of it.
    pub(crate) fn of(workload: &Workload, class: usize, share: f64) -> Part {
        let start = shares_before(workload, class);
        let end = start + share;
        Part { seed: workload.seed, draws: start..if end >= 1.0 - ROUNDING { 1.0 } else { end } }
    }

    /// Whether a row belongs to the part. The row's random draw depends only on its line number and the seed, so that
    /// another window does not change it.
    pub(crate) fn has(&self, entry: &TraceEntry) -> bool {
        let mut random = Random::stream(self.seed, &[u64::MAX - 2, u64::from(entry.line)]);
        self.draws.contains(&random.unit())
    }
}

/// Returns the sum of the shares of all classes before this class.
pub(crate) fn shares_before(workload: &Workload, class: usize) -> f64 {
    let shares = workload.classes[..class].iter().map(|class| match class.arrival {
        Arrival::Share(share) => share,
        Arrival::Poisson(_) | Arrival::Closed(_) | Arrival::Trace(_) => 0.0,
    });
    shares.sum()
}
