//! What worse tiers leave of a step for premium streams, learned from the targets that these missed.

use crate::scheduler::sequence::Sequence;
use tiercel_device::{Tier, Timestamp};

/// What a miss adds, as a share of a step.
const GAIN: f64 = 0.04;
/// After so long without a miss a third is left of it, us: long enough to see misses that are as rare as they are
/// to be, short enough that a burst is soon forgotten.
const MEMORY_US: f64 = 120e6;
/// Never more than this.
const MOST: f64 = 0.2;

/// A share of the step that worse tiers do not use. Steps are not as long as predicted and premium prompts come in
/// bursts: how much must be in hand for that depends on both, so it is not a constant but grows with every miss
/// and shrinks with time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    share: f64,
    at: Timestamp,
}

impl Guard {
    /// The share now.
    pub(crate) fn share(&self, now: Timestamp) -> f64 {
        self.share * (-(now.since_us(self.at) as f64) / MEMORY_US).exp()
    }

    /// A sequence is complete.
    pub(crate) fn completed(&mut self, sequence: &Sequence, now: Timestamp) {
        if sequence.tier <= Tier::Premium && missed(sequence) {
            self.share = (self.share(now) + GAIN).min(MOST);
            self.at = now;
        }
    }
}

/// Whether the pace of a sequence or its first token missed its target.
fn missed(sequence: &Sequence) -> bool {
    let (Some(first), Some(last)) = (sequence.first_token_at, sequence.last_token_at) else {
        return false;
    };
    let over = |us: f64, target_ms: Option<f64>| target_ms.is_some_and(|ms| us > ms * 1000.0);
    let gaps = sequence.output_len().saturating_sub(1);
    let pace_us = last.since_us(first) as f64 / f64::from(gaps.max(1));
    over(first.since_us(sequence.arrival) as f64, sequence.targets.ttft_ms)
        || over(pace_us, sequence.targets.tpot_ms)
}
