//! Faults that the mock device injects at random from a seed, and the log of the engine's mistakes that the device
//! finds.

use super::timed_faults::MockTimedFault;
use crate::mix::mix;
use crate::{BlockId, SeqId, StepId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Faults that the mock device injects into steps and copies. Each probability applies to every step or batch of copies
/// by itself, but [`MockFaults::mask_late`] applies to every sampling slice of a step by itself. The seed of the device
/// decides which steps, batches and sampling slices are hit. Each timed fault states from which step or time on it
/// hits, and how many times.
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
    /// Probability that the mask of a draw is late, so that the step samples no token for the sequence; applies to each
    /// sampling slice of each step, of sequences without a constraint too.
    pub mask_late: f64,
    /// Factor on the duration of a slow batch of copies or a slow step.
    pub slow_factor: f64,
    /// Number of the step at which the mock device is lost for good, so that this step, all later ones and all copies
    /// that end later fail; `None` for never.
    pub lost_at_step: Option<StepId>,
    /// Faults that are injected at a given step or time.
    #[serde(rename = "fault")]
    pub timed: Vec<MockTimedFault>,
}

impl Default for MockFaults {
    fn default() -> Self {
        MockFaults {
            copy_fails: 0.0,
            copy_slow: 0.0,
            step_fails: 0.0,
            step_slow: 0.0,
            mask_late: 0.0,
            slow_factor: 10.0,
            lost_at_step: None,
            timed: Vec::new(),
        }
    }
}

/// Purpose of a stream of random numbers. The number of a purpose and the seed of the device decide the numbers that
/// are drawn for it, and so every simulated figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Random numbers for the spread of step times that the options of the device ask for (`MockOptions::noise_sigma`).
    StepNoise = 1,
    /// Random numbers that decide which steps fail or are slow.
    StepFaults = 2,
    /// Two purposes share these random numbers: the spread of step times that a profile asks for (`StepNoise`), and
    /// which copies to the host fail or are slow. Each of the two draws the same numbers from the beginning of the
    /// stream, so they are not independent of each other. Published figures depend on these numbers.
    ProfileNoiseAndCopiesOut = 3,
    /// Random numbers that decide which copies to the device fail or are slow.
    CopiesIn = 4,
    /// Random numbers that decide which masks are late.
    LateMasks = 5,
}

/// Deterministic stream of random numbers of the mock device, from a seed.
#[derive(Debug)]
pub(super) struct Draws {
    state: u64,
}

impl Draws {
    /// Returns the stream of random numbers of a purpose, from its beginning. Draws for one purpose do not change the
    /// draws for another.
    pub(super) fn new(seed: u64, purpose: Purpose) -> Draws {
        Draws { state: mix(seed ^ mix(purpose as u64)) }
    }

    /// Draws a number from the uniform distribution over [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(1);
        (mix(self.state) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with probability `p`. Always draws a number, so that `p` does not change which numbers later draws
    /// get.
    pub(super) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Draws a number from the normal distribution with mean 0 and standard deviation 1.
    pub(super) fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// Draws a random factor of mean 1 from the log-normal distribution with this sigma.
    pub(super) fn noise(&mut self, sigma: f64) -> f64 {
        (sigma * self.normal() - sigma * sigma / 2.0).exp()
    }
}

/// Mistake of the engine that the mock device found: a slice that the engine should not have submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MockFault {
    /// Id of the step with the slice that should not have been submitted.
    pub step: StepId,
    /// Sequence that the faulty slice belongs to.
    pub seq: SeqId,
    /// Kind of the engine's mistake.
    pub kind: MockFaultKind,
}

/// Kinds of mistakes of the engine that the mock device finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MockFaultKind {
    /// A block that the slice reads does not hold the sequence's prefix: it is stale, lost, wrongly
    /// shared or half-copied.
    WrongContent {
        /// Number of the KV block whose content is wrong for the sequence.
        block: BlockId,
        /// Index of the block with the wrong content in the sequence's block table.
        entry: u32,
    },
    /// Two slices of one step write the same KV block.
    SharedWrite {
        /// Id of the KV block that two slices of the step write.
        block: BlockId,
    },
    /// A slice is malformed or does not fit the state of its sequence; the text says how.
    BadSlice(&'static str),
    /// A step has a slice of a sequence that was never started on the device, or has ended.
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

/// Most mistakes of the engine that the log stores; further ones are only counted.
const MOST_KEPT: usize = 64;

impl MockFaultLog {
    /// Returns the first mistakes of the engine that the mock device found, at most 64.
    pub fn first(&self) -> Vec<MockFault> {
        self.lock().first.clone()
    }

    /// Returns the number of all mistakes of the engine that the mock device found, also of those that the log did not
    /// store.
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
        let mut draws = Draws::new(7, Purpose::StepNoise);
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
