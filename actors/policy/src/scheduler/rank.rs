//! Who comes first.

use crate::scheduler::sequence::{Phase, Sequence};
use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Among equals of a level: promoted ones, then those that resume and those that start as
/// `preemption.resume` says.
const PROMOTED: u8 = 0;
const BEFORE: u8 = 1;
const USUAL: u8 = 2;
const AFTER: u8 = 3;

/// What a sequence's rank is made of.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Place {
    /// Its tier's index as it counts, ageing included; 0 for all if the order knows no tiers.
    pub(crate) level: u8,
    /// Its priority, if the order knows priorities.
    pub(crate) priority: i32,
    /// Predicted output, tokens, or a tag of the tenant's.
    pub(crate) key: u64,
    /// Whether its first token is late: those in time go first.
    pub(crate) late: bool,
    /// Whether it counts as the best of its tier.
    pub(crate) promoted: bool,
    /// Its tier's index if it has a share of what work with targets leaves, 0 otherwise.
    pub(crate) rest: u8,
}

/// A total order over sequences; the lower rank is served first. A rank changes only when an operator reprioritizes the
/// sequence, when a waiting sequence ages, becomes late or starves, or when a sequence has been preempted as often as
/// allowed. A rank rises only by an operator's order and, once and before its sequence has started, when that becomes
/// late. So the first sequence stays first until it is done, and some sequence always finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// The tier, ageing included; the same for all if the order knows no tiers.
    level: u8,
    /// The tier's index among those that share what is left, otherwise 0.
    rest: u8,
    /// Whether it is late.
    late: bool,
    class: u8,
    priority: i32,
    /// What the order counts: predicted tokens, service had. 0 if nothing.
    key: u64,
    arrival: Timestamp,
    seq: SeqId,
}

impl Rank {
    pub(crate) fn of(sequence: &Sequence, resume: ResumeOrder) -> Rank {
        // Only while it waits: once it runs it is as good as it ever was.
        let preempted = sequence.phase == Phase::Waiting && sequence.was_open();
        let class = match resume {
            _ if sequence.place.promoted => PROMOTED,
            ResumeOrder::First if preempted => BEFORE,
            ResumeOrder::Last if preempted => AFTER,
            _ => USUAL,
        };
        Rank {
            level: sequence.place.level,
            rest: sequence.place.rest,
            late: sequence.place.late,
            class,
            priority: sequence.place.priority,
            key: sequence.place.key,
            arrival: sequence.arrival,
            seq: sequence.id,
        }
    }

    pub(crate) fn seq(&self) -> SeqId {
        self.seq
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    pub(crate) fn rest(&self) -> u8 {
        self.rest
    }

    /// The best there could be of a tier's share of the rest.
    pub(crate) fn first_of_rest(tier: Tier) -> Rank {
        Rank {
            level: Tier::Background.index() as u8,
            rest: tier.index() as u8,
            late: false,
            class: PROMOTED,
            priority: i32::MIN,
            key: 0,
            arrival: Timestamp(0),
            seq: SeqId(0),
        }
    }

    /// Whether `self` may take the place of `other` in order to start.
    pub(crate) fn outranks_by_level(&self, other: &Rank) -> bool {
        self.level < other.level
    }
}
