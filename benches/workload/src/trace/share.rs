//! Divides the recorded traffic of a workload among its classes at random, so that each class gets about its share of
//! the requests. If the shares add up to less than 1, no class sends the rest.

use super::TraceEntry;
use crate::file::{Arrival, Workload};
use crate::random::Random;
use std::ops::Range;

/// Rounding tolerance when the traffic shares of classes are added up. Decimal fractions that add up to 1 on paper may
/// miss 1 by a rounding error.
pub(crate) const ROUNDING: f64 = 1e-9;

/// Random selection of the recorded requests that one class of a workload sends.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    seed: u64,
    /// Interval within `0..1` that belongs to the class: the class sends a recorded request if the request's random
    /// draw lies in the interval.
    draws: Range<f64>,
}

impl Part {
    /// Selects the recorded requests for a class that sends the share `share` of them.
    pub(crate) fn of(workload: &Workload, class: usize, share: f64) -> Part {
        let start = shares_before(workload, class);
        let end = start + share;
        Part { seed: workload.seed, draws: start..if end >= 1.0 - ROUNDING { 1.0 } else { end } }
    }

    /// Whether the class sends a recorded request. The request's random draw depends only on the seed and its line
    /// number in the file, so the answer stays the same if another time window is replayed.
    pub(crate) fn has(&self, entry: &TraceEntry) -> bool {
        let mut random = Random::stream(self.seed, &[u64::MAX - 2, u64::from(entry.line)]);
        self.draws.contains(&random.unit())
    }
}

/// Returns the sum of the traffic shares of all classes that stand before a class in the workload.
pub(crate) fn shares_before(workload: &Workload, class: usize) -> f64 {
    let shares = workload.classes[..class].iter().map(|class| match class.arrival {
        Arrival::Share(share) => share,
        Arrival::Poisson(_) | Arrival::Closed(_) | Arrival::Trace(_) => 0.0,
    });
    shares.sum()
}
