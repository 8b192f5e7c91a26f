//! Priority keys and ranks: the order of service.

use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Class of promoted sequences, which go first of their effective tier. Sequences of a lower class go first.
const PROMOTED: u8 = 0;
/// Class of sequences that resume, if `preemption.resume` puts them before sequences that start.
const BEFORE: u8 = 1;
/// Class of sequences that start or run, and of sequences that resume among them.
const USUAL: u8 = 2;
/// Class of sequences that resume, if `preemption.resume` puts them after sequences that start.
const AFTER: u8 = 3;

/// Parts that the rank of a sequence is made of, beside its arrival and its id.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct PriorityKey {
    /// Index of the effective tier; 0 for all sequences if the order of service ignores tiers.
    pub(crate) level: u8,
    /// Priority that a client or an operator gave; 0 if the order of service ignores priorities.
    pub(crate) priority: i32,
    /// Number that the order of service goes by within an effective tier: predicted output in tokens, or a start tag.
    pub(crate) key: u64,
    /// Whether the first token is late: requests in time go first.
    pub(crate) late: bool,
    /// Whether the sequence goes first of its effective tier because it was preempted as often as allowed.
    pub(crate) promoted: bool,
    /// Index of the sequence's own tier if it is best effort and tiers share the time that is left, 0 otherwise.
    pub(crate) best_effort_tier: u8,
}

/// A total order over sequences; the lower rank is served first. A rank changes only when an operator reprioritizes the
/// sequence, when a waiting sequence ages, becomes late or starves, or when a sequence has been preempted as often as
/// allowed. A rank rises only by an operator's order and, once and before the start of its sequence, when the sequence
/// becomes late. So the first sequence stays first until it is done, and some sequence always finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    level: u8,
    best_effort_tier: u8,
    late: bool,
    /// Class within the effective tier: promoted, resuming or starting.
    class: u8,
    priority: i32,
    key: u64,
    arrival: Timestamp,
    seq: SeqId,
}

impl Rank {
    /// Creates the rank of a sequence. `preempted` says whether the sequence waits to resume.
    pub(crate) fn new(
        key: PriorityKey,
        (preempted, resume): (bool, ResumeOrder),
        arrival: Timestamp,
        seq: SeqId,
    ) -> Rank {
        let class = match resume {
            _ if key.promoted => PROMOTED,
            ResumeOrder::First if preempted => BEFORE,
            ResumeOrder::Last if preempted => AFTER,
            _ => USUAL,
        };
        Rank {
            level: key.level,
            best_effort_tier: key.best_effort_tier,
            late: key.late,
            class,
            priority: key.priority,
            key: key.key,
            arrival,
            seq,
        }
    }

    pub(crate) fn seq(&self) -> SeqId {
        self.seq
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    pub(crate) fn best_effort_tier(&self) -> u8 {
        self.best_effort_tier
    }

    /// Returns the lowest rank that a best-effort sequence of the tier can have.
    pub(crate) fn first_of_best_effort(tier: Tier) -> Rank {
        Rank {
            level: Tier::Background.index() as u8,
            best_effort_tier: tier.index() as u8,
            late: false,
            class: PROMOTED,
            priority: i32::MIN,
            key: 0,
            arrival: Timestamp(0),
            seq: SeqId(0),
        }
    }

    /// Whether a sequence of this rank may preempt one of rank `other` in order to start.
    pub(crate) fn outranks_by_level(&self, other: &Rank) -> bool {
        self.level < other.level
    }
}
