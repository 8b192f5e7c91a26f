//! Faults injected by seed, and the log of faults found: what the engine got wrong.

use super::oracle::mix;
use crate::{BlockId, SeqId, StepId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What to break. Probabilities are per copy batch and per step; the seed of the device decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockFaults {
    /// Probability that a copy batch fails after its time.
    pub copy_fails: f64,
    /// Probability that a copy batch takes `slow_factor` times as long.
    pub copy_slow: f64,
    /// Probability that a step fails after its time.
    pub step_fails: f64,
    /// Probability that a step takes `slow_factor` times as long.
    pub step_slow: f64,
    /// How much slower a slow copy or step is.
    pub slow_factor: f64,
    /// The device is lost when this step would run, and stays so.
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
    /// A stream of its own for each `purpose`, so that one does not disturb another.
    pub(super) fn new(seed: u64, purpose: u64) -> Draws {
        Draws { state: mix(seed ^ mix(purpose)) }
    }

    /// Uniform in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(1);
        (mix(self.state) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`. Always draws, so that the stream does not depend on `p`.
    pub(super) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Normal with mean 0 and deviation 1.
    pub(super) fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// Log-normal with mean 1.
    pub(super) fn noise(&mut self, sigma: f64) -> f64 {
        (sigma * self.normal() - sigma * sigma / 2.0).exp()
    }
}

/// Something the engine asked of the mock device that it should not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MockFault {
    /// The step.
    pub step: StepId,
    /// The sequence.
    pub seq: SeqId,
    /// What is wrong.
    pub kind: MockFaultKind,
}

/// Kinds of [`MockFault`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MockFaultKind {
    /// A block that the slice reads does not hold the sequence's prefix: it is stale, lost, wrongly
    /// shared or half-copied.
    WrongContent {
        /// The block.
        block: BlockId,
        /// Its place in the table.
        entry: u32,
    },
    /// Another slice of the step writes the same block.
    SharedWrite {
        /// The block.
        block: BlockId,
    },
    /// The slice contradicts itself or the sequence.
    BadSlice(&'static str),
    /// The device has no state for the sequence.
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

/// Faults that a mock device found. Clones share it; tests end by asserting that it is empty.
#[derive(Debug, Clone, Default)]
pub struct MockFaultLog {
    inner: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    first: Vec<MockFault>,
    total: u64,
}

/// Faults kept; later ones are counted.
const MOST_KEPT: usize = 64;

impl MockFaultLog {
    /// The first faults, at most 64.
    pub fn first(&self) -> Vec<MockFault> {
        self.lock().first.clone()
    }

    /// All faults, also those not kept.
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
