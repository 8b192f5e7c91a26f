//! Priority keys and ranks, which define the order of service.

use crate::scheduler::queue::service_class::ServiceClass;
use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, Tier, Timestamp};

/// Section of promoted sequences: those that were preempted as often as allowed, if `preemption.at_limit` promotes
/// these. Sections divide the sequences of one service class that are in time, and those that are late; lower sections
/// are served first.
const PROMOTED: u8 = 0;
/// Section of preempted sequences, if `preemption.resume` puts them before sequences that have not run yet.
const BEFORE: u8 = 1;
/// Section of running sequences and of those that have not run yet; also of preempted ones, if `preemption.resume`
/// puts these among them.
const USUAL: u8 = 2;
/// Section of preempted sequences, if `preemption.resume` puts them after sequences that have not run yet.
const AFTER: u8 = 3;

/// Priority key: what the rank of a sequence in the order of service is made of, beside its arrival, its id and whether
/// it waits to resume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PriorityKey {
    /// Class that the sequence is served in.
    pub(crate) class: ServiceClass,
    /// Priority that a client or an operator gave; 0 if the order of service ignores priorities.
    pub(crate) priority: i32,
    /// Number that orders the sequences of an effective tier, as the setting `scheduler.order` says: predicted output
    /// in tokens, a start tag of a fair queue, or 0 for the order of arrival. For late requests the prompt's length in
    /// tokens, unless `scheduler.fair_tenants` is on and another tenant waits or the request has aged.
    pub(crate) number: u64,
    /// Whether the request counts as late; requests in time go first. A starving request counts as in time. A stream
    /// keeps the value that it had at its first token, until it is preempted, or an operator changes its tier or the
    /// rules.
    pub(crate) late: bool,
    /// Whether the sequence is promoted, because it was preempted as often as allowed: among the sequences of its class
    /// that are in time, or among the late ones, it goes first.
    pub(crate) promoted: bool,
}

/// Rank of a sequence in the total order of service; the lower rank is served first. A rank changes when an operator
/// reprioritizes the sequence or changes the policy, when the sequence is preempted or resumes, when it ages while it
/// waits, and when, before its first token, it becomes late, is in time after all, or starves. The rank of a running
/// sequence that has its first token changes only by an operator's order. So the first sequence can run until it is
/// done, and some sequence always finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    class: ServiceClass,
    late: bool,
    /// Section within the service class: promoted, preempted before others, usual, or preempted after others.
    section: u8,
    priority: i32,
    number: u64,
    arrival: Timestamp,
    seq: SeqId,
}

impl PriorityKey {
    /// Key of a sequence that has no place in the order of service yet.
    pub(crate) const UNPLACED: PriorityKey = PriorityKey {
        class: ServiceClass::UNTIERED,
        priority: 0,
        number: 0,
        late: false,
        promoted: false,
    };
}

impl Rank {
    /// Creates the rank of a sequence. `preempted` says whether the sequence was preempted and waits to resume.
    pub(crate) fn new(
        key: PriorityKey,
        (preempted, resume): (bool, ResumeOrder),
        arrival: Timestamp,
        seq: SeqId,
    ) -> Rank {
        let section = match resume {
            _ if key.promoted => PROMOTED,
            ResumeOrder::First if preempted => BEFORE,
            ResumeOrder::Last if preempted => AFTER,
            _ => USUAL,
        };
        Rank {
            class: key.class,
            late: key.late,
            section,
            priority: key.priority,
            number: key.number,
            arrival,
            seq,
        }
    }

    pub(crate) fn seq(&self) -> SeqId {
        self.seq
    }

    pub(crate) fn class(&self) -> ServiceClass {
        self.class
    }

    /// Returns the effective tier of the sequence.
    pub(crate) fn tier(&self) -> Tier {
        self.class.tier()
    }

    /// Returns the lowest rank that a sequence can have for which the share of `tier` pays (see [`ServiceClass`]).
    pub(crate) fn first_paid_by(tier: Tier) -> Rank {
        Rank {
            class: ServiceClass::new(tier, Tier::Background, true),
            late: false,
            section: PROMOTED,
            priority: i32::MIN,
            number: 0,
            arrival: Timestamp(0),
            seq: SeqId(0),
        }
    }

    /// Whether a waiting sequence of this rank may preempt one of rank `other` to start: only if its effective tier is
    /// higher.
    pub(crate) fn outranks_by_tier(&self, other: &Rank) -> bool {
        self.tier() < other.tier()
    }
}
