//! What is kept in hand for better tiers, learned from the targets that these missed.
//!
//! Steps are not as long as predicted, and requests come in bursts. How much must be in hand for that depends on both,
//! so it is not a constant: whether it is kept is learned from misses, and how much from what prompts of premium took
//! of the streams beside them. Few long ones take more than many short ones, though these may miss as often.

use crate::scheduler::sequence::Sequence;
use tiercel_device::{Tier, Timestamp};

/// Of what was learned of premium a third is left after so many of its requests, at any rate of arrivals.
const MEMORY_REQUESTS: f64 = 600.0;
/// It is forgotten with time too, where hardly any come, us.
const LONG_MEMORY_US: f64 = 1e9;
/// After so long a third is left of what was learned of standard requests, us: a burst is soon forgotten.
const MEMORY_US: f64 = 120e6;
/// What a miss of a premium stream adds to the reason to keep something for such, and the most of it: one miss is
/// reason enough, less and less over 400 requests, many are for 1,400.
const REASON: Gain = Gain { each: 2.0, most: 10.0 };
/// What is left of a miss when it is no reason any more.
const RARE: f64 = 1.0;
/// The most that is kept, us: who is further behind is not helped by what streams can save.
const MOST_KEPT_US: f64 = 1e6;
/// What a late first token of a standard request adds to how early background gives way for such, and the most.
const HASTE: Gain = Gain { each: 0.05, most: 0.8 };

/// How much a miss adds.
#[derive(Debug, Clone, Copy)]
struct Gain {
    each: f64,
    most: f64,
}

/// A share that misses add to and time takes from.
#[derive(Debug, Clone, Copy)]
struct Leaky {
    share: f64,
    at: Timestamp,
    memory_us: f64,
}

impl Leaky {
    fn new(memory_us: f64) -> Leaky {
        Leaky { share: 0.0, at: Timestamp(0), memory_us }
    }

    fn share(&self, now: Timestamp) -> f64 {
        self.share * (-(now.since_us(self.at) as f64) / self.memory_us).exp()
    }

    fn add(&mut self, gain: Gain, now: Timestamp) {
        self.share = (self.share(now) + gain.each).min(gain.most);
        self.at = now;
    }
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    reason: Leaky,
    /// How far premium's work alone puts a stream behind that is always there, us.
    behind_us: f64,
    /// The furthest of late.
    furthest_us: f64,
    /// When the last step ended.
    stepped_at: Timestamp,
    haste: Leaky,
}

impl Default for Guard {
    fn default() -> Self {
        Guard {
            reason: Leaky::new(LONG_MEMORY_US),
            behind_us: 0.0,
            furthest_us: 0.0,
            stepped_at: Timestamp(0),
            haste: Leaky::new(MEMORY_US),
        }
    }
}

impl Guard {
    /// What premium streams had better be ahead of their pace before worse tiers may spend it, us: as much as prompts
    /// of their own tier took at once of late.
    pub(crate) fn kept_us(&self, now: Timestamp) -> f64 {
        self.furthest_us * (self.reason.share(now) - RARE).clamp(0.0, 1.0)
    }

    /// By how much earlier than usual background gives way for first tokens, as a share.
    pub(crate) fn haste(&self, now: Timestamp) -> f64 {
        self.haste.share(now)
    }

    /// A step ran for `step_us` until `now` whose work for premium alone takes `premium_us` where `aim_us` is the pace that
    /// is aimed at.
    pub(crate) fn stepped(&mut self, premium_us: f64, aim_us: f64, step_us: f64, now: Timestamp) {
        // While nothing runs nobody takes anything; between two steps there is always a moment.
        let idle_us = now.since_us(self.stepped_at) as f64 - step_us;
        if idle_us > aim_us {
            self.behind_us = (self.behind_us - idle_us).max(0.0);
        }
        self.stepped_at = now;
        self.behind_us = (self.behind_us + premium_us - aim_us).clamp(0.0, MOST_KEPT_US);
        self.furthest_us = self.furthest_us.max(self.behind_us);
    }

    /// A sequence had its first token.
    pub(crate) fn started(&mut self, sequence: &Sequence, now: Timestamp) {
        let waited_us = now.since_us(sequence.arrival) as f64;
        if sequence.tier == Tier::Standard
            && !sequence.was_held
            && over(waited_us, sequence.targets.ttft_ms)
        {
            self.haste.add(HASTE, now);
        }
    }

    /// A sequence is complete.
    pub(crate) fn completed(&mut self, sequence: &Sequence, now: Timestamp) {
        if sequence.tier > Tier::Premium {
            return;
        }
        self.reason.share *= 1.0 - 1.0 / MEMORY_REQUESTS;
        self.furthest_us *= 1.0 - 1.0 / MEMORY_REQUESTS;
        // What held it up then is not cured by shorter steps.
        let held_up = sequence.was_held || sequence.preemptions > 0;
        if !held_up && missed(sequence) {
            self.reason.add(REASON, now);
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
