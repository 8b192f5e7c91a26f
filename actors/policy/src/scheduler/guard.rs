//! What is kept in hand for better tiers, learned from the targets that these missed.
//!
//! Steps are not as long as predicted, and requests come in bursts. How much must be in hand for that depends on both,
//! so it is not a constant but grows with every miss and shrinks with time.

use crate::scheduler::sequence::Sequence;
use tiercel_device::{Tier, Timestamp};

/// After so long without a miss a third is left, us: long enough to see misses that are as rare as they are to be,
/// short enough that a burst is soon forgotten.
const MEMORY_US: f64 = 120e6;
/// What a miss of a premium stream adds to the share of the step that worse tiers leave, and the most of it.
const STEP: Gain = Gain { each: 0.04, most: 0.2 };
/// What a late first token of a standard request adds to how early background gives way for such, and the most.
const HASTE: Gain = Gain { each: 0.05, most: 0.8 };

/// How much a miss adds.
#[derive(Debug, Clone, Copy)]
struct Gain {
    each: f64,
    most: f64,
}

/// A share that misses add to and time takes from.
#[derive(Debug, Clone, Copy, Default)]
struct Leaky {
    share: f64,
    at: Timestamp,
}

impl Leaky {
    fn share(&self, now: Timestamp) -> f64 {
        self.share * (-(now.since_us(self.at) as f64) / MEMORY_US).exp()
    }

    fn add(&mut self, gain: Gain, now: Timestamp) {
        self.share = (self.share(now) + gain.each).min(gain.most);
        self.at = now;
    }
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    step: Leaky,
    haste: Leaky,
}

impl Guard {
    /// The share of the step that worse tiers leave for premium.
    pub(crate) fn share(&self, now: Timestamp) -> f64 {
        self.step.share(now)
    }

    /// By how much earlier than usual background gives way for first tokens, as a share.
    pub(crate) fn haste(&self, now: Timestamp) -> f64 {
        self.haste.share(now)
    }

    /// A sequence had its first token.
    pub(crate) fn started(&mut self, sequence: &Sequence, now: Timestamp) {
        let waited_us = now.since_us(sequence.arrival) as f64;
        if sequence.tier == Tier::Standard && over(waited_us, sequence.targets.ttft_ms) {
            self.haste.add(HASTE, now);
        }
    }

    /// A sequence is complete.
    pub(crate) fn completed(&mut self, sequence: &Sequence, now: Timestamp) {
        if sequence.tier <= Tier::Premium && missed(sequence) {
            self.step.add(STEP, now);
        }
    }
}

fn over(us: f64, target_ms: Option<f64>) -> bool {
    target_ms.is_some_and(|ms| us > ms * 1000.0)
}

/// Whether the pace of a sequence or its first token missed its target.
fn missed(sequence: &Sequence) -> bool {
    let (Some(first), Some(last)) = (sequence.first_token_at, sequence.last_token_at) else {
        return false;
    };
    let gaps = sequence.output_len().saturating_sub(1);
    let pace_us = last.since_us(first) as f64 / f64::from(gaps.max(1));
    over(first.since_us(sequence.arrival) as f64, sequence.targets.ttft_ms)
        || over(pace_us, sequence.targets.tpot_ms)
}
