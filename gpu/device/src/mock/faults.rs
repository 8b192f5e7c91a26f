//! Faults that the mock device injects by seed, and the log of the engine's mistakes that it finds.

use crate::mix::mix;
use crate::{BlockId, SeqId, StepId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Faults to inject. Probabilities are per batch of copies and per step; the seed of the device decides which are hit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockFaults {
    /// Probability that a batch of copies fails after its duration has passed.
    pub copy_fails: f64,
    /// Probability that a batch of copies takes `slow_factor` times as long.
    pub copy_slow: f64,
    /// Probability that a step fails after its duration has passed.
    pub step_fails: f64,
    /// Probability that a step takes `slow_factor` times as long.
    pub step_slow: f64,
    /// Factor on the duration of a slow batch of copies or a slow step.
    pub slow_factor: f64,
    /// Number of the step at which the device is lost for good; `None` for never.
    pub lost_at_step: Option<StepId>,
}

impl Default for MockFaults {
    fn default() -> Self {
        MockFaults {
            copy_fails: 0.0,
            copy_slow: 0.0,
            step_fails: 0.0,
            step_slow: 0.0,
            slow_factor: 10.0,
            lost_at_step: None,
        }
    }
}

/// A deterministic stream of random numbers.
#[derive(Debug)]
pub(super) struct Draws {
    state: u64,
}

impl Draws {
    /// Returns a stream of random numbers for one `purpose`. Different purposes have streams of their own, so that
    /// draws for one do not change the draws for another.
    pub(super) fn new(seed: u64, purpose: u64) -> Draws {
        Draws { state: mix(seed ^ mix(purpose)) }
    }

    /// Draws a number from the uniform distribution over [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(1);
        (mix(self.state) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with probability `p`. Always draws a number, so that the stream of random numbers does not depend
    /// on `p`.
    pub(super) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Draws a number from the normal distribution with mean 0 and standard deviation 1.
    pub(super) fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// Draws a number from the log-normal distribution with mean 1.
    pub(super) fn noise(&mut self, sigma: f64) -> f64 {
        (sigma * self.normal() - sigma * sigma / 2.0).exp()
    }
}

/// Mistake of the engine that the mock device found: a slice that the engine should not have submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MockFault {
    /// Step that holds the faulty slice.
    pub step: StepId,
    /// Sequence of the faulty slice.
    pub seq: SeqId,
    /// Kind of the mistake.
    pub kind: MockFaultKind,
}

/// Kinds of [`MockFault`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MockFaultKind {
    /// A block that the slice reads does not hold the sequence's prefix: it is stale, lost, wrongly
    /// shared or half-copied.
    WrongContent {
        /// Block that the mistake concerns.
        block: BlockId,
        /// Index of the block in the sequence's block table.
        entry: u32,
    },
    /// Two slices of one step write the same block.
    SharedWrite {
        /// Block that the mistake concerns.
        block: BlockId,
    },
    /// A slice contradicts itself or its sequence; the text says how.
    BadSlice(&'static str),
    /// The device has no state for the sequence of a slice.
    UnknownSequence,
}

impl fmt::Display for MockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MockFault { step, seq, kind } = self;
        match kind {
            MockFaultKind::WrongContent { block, entry } => {
                write!(f, "{step}: {block}, entry {entry} of {seq}, does not hold its prefix")
            }
            MockFaultKind::SharedWrite { block } => {
                write!(f, "{step}: {seq} writes {block}, which another sequence writes too")
            }
            MockFaultKind::BadSlice(what) => write!(f, "{step}: {seq}: {what}"),
            MockFaultKind::UnknownSequence => write!(f, "{step}: no state for {seq}"),
        }
    }
}

/// Log of the engine's mistakes that a mock device found. Clones share one log; tests end by asserting that the log is
/// empty.
#[derive(Debug, Clone, Default)]
pub struct MockFaultLog {
    inner: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    first: Vec<MockFault>,
    total: u64,
}

/// Most faults that the log stores; further faults are only counted.
const MOST_KEPT: usize = 64;

impl MockFaultLog {
    /// Returns the first faults that were found, at most 64.
    pub fn first(&self) -> Vec<MockFault> {
        self.lock().first.clone()
    }

    /// Returns the number of all faults that were found, also of faults that the log did not store.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    pub(super) fn push(&self, fault: MockFault) {
        let mut log = self.lock();
        log.total += 1;
        if log.first.len() < MOST_KEPT {
            log.first.push(fault);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_mean_one_and_the_spread_asked_for() {
        let mut draws = Draws::new(7, 1);
        let n = 20_000;
        let logs: Vec<f64> = (0..n).map(|_| draws.noise(0.2).ln()).collect();
        let mean = logs.iter().map(|log| log.exp()).sum::<f64>() / f64::from(n);
        let centre = logs.iter().sum::<f64>() / f64::from(n);
        let spread = logs.iter().map(|log| (log - centre).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
        assert!((spread.sqrt() - 0.2).abs() < 0.01, "spread {}", spread.sqrt());
        assert_eq!(draws.noise(0.0), 1.0);
    }
}
