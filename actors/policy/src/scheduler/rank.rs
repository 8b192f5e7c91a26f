//! Who comes first.

use crate::scheduler::preset::{Order, Preset};
use crate::scheduler::sequence::{Phase, Sequence};
use tiercel_device::{SeqId, Tier, Timestamp};

/// A total order over sequences; less is better. It changes only when an operator reprioritizes, so
/// that the best sequence stays the best until it is done, and somebody always finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    tier: Tier,
    priority: i32,
    arrival: Timestamp,
    seq: SeqId,
}

impl Rank {
    pub(crate) fn of(sequence: &Sequence, order: Order) -> Rank {
        let (tier, priority) = match order {
            Order::Tier => (sequence.tier, sequence.priority),
            Order::Arrival => (Tier::System, 0),
        };
        Rank { tier, priority, arrival: sequence.arrival, seq: sequence.id }
    }

    /// Whether `self` may take the place of `other` in order to start.
    pub(crate) fn outranks_by_tier(&self, other: &Rank) -> bool {
        self.tier < other.tier
    }
}

/// Position of a want in a step. Within a tier what runs goes before what waits, so that starting a
/// sequence never pushes an equal out of the batch; without preemption that holds across tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    class: (u8, Tier, u8),
    rank: Rank,
}

impl Turn {
    pub(crate) fn of(sequence: &Sequence, preset: Preset) -> Turn {
        let waits = u8::from(sequence.phase == Phase::Waiting);
        let rank = Rank::of(sequence, preset.order);
        let class =
            if preset.preempt_to_start { (0, rank.tier, waits) } else { (waits, rank.tier, 0) };
        Turn { class, rank }
    }
}
