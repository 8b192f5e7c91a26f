//! Victims: which sequences may be preempted, in which order, and by which others.

use crate::protocol::Victim;
use crate::scheduler::basis::Basis;
use crate::scheduler::budget::slack::urgency;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::queue::sequence_table::SequenceTable;
use crate::scheduler::rules::Rules;
use crate::scheduler::sequence::{Phase, Sequence};
use std::cmp::Reverse;
use tiercel_config::{AtLimit, PreemptionMode, VictimRule};
use tiercel_device::{Tier, Timestamp};

/// Protection of a sequence from preemption; the less protected sequences are preempted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Protection {
    /// The sequence makes no progress: it is on hold, or it was preempted and retains blocks. Any sequence may take its
    /// blocks.
    Resting,
    /// The rank of the sequence and the rule `preemption.victim` decide which sequences may take its blocks.
    Usual,
    /// The sequence was preempted as often as allowed. Of sequences that start, only the first of a plan may take its
    /// blocks, and of sequences that grow only those of a lower rank.
    Limited,
    /// The sequence has only just begun, or is premium and premium does not yield. Only the first sequence of a plan
    /// may take its blocks.
    Spared,
}

/// A candidate's claim on the blocks of victims.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) rank: Rank,
    /// Whether the candidate wants to open, not to grow.
    pub(crate) opening: bool,
    /// Whether the candidate is the first of the plan, which must always be able to go on.
    pub(crate) first: bool,
    /// Whether the candidate may take blocks of sequences that make progress.
    pub(crate) by_force: bool,
}

/// Position in the order of victims: protection, effective tier (the lowest tier goes first), and what the rule counts.
/// The lowest position is preempted first, and of equal positions the higher rank.
type Position = (Protection, Reverse<Tier>, u64);

/// The victims of a plan, and what decides which candidates may take each of them.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    /// Victims in the order in which they are preempted.
    pub(crate) victims: Vec<Victim>,
    /// Protection and rank of each victim.
    guards: Vec<(Protection, Rank)>,
    /// Whether victims go by rank.
    by_rank: bool,
    /// Whether victims go by a rule that ignores tiers.
    across_tiers: bool,
}

impl Victims {
    /// Collects the sequences that may be preempted in this plan, in the order in which they are preempted.
    pub(crate) fn new(table: &SequenceTable, basis: &Basis, now: Timestamp) -> Victims {
        let rule = basis.rules.preemption.victim;
        let across_tiers = matches!(rule, VictimRule::LatestArrival | VictimRule::ReverseFifo);
        // The list starts with the highest rank: if the rule adds nothing, that is nearly the order of victims already.
        let running = table.active().rev();
        let running = running.filter(|(_, sequence)| sequence.phase == Phase::Running);
        let mut in_order: Vec<(Position, Rank, &Sequence)> = (table.retaining().rev())
            .chain(running)
            .map(|(rank, sequence)| (position(sequence, rank, &basis.rules, now), rank, sequence))
            .collect();
        in_order.sort_by_key(|(position, ..)| *position);
        let mut victims = Victims {
            victims: Vec::with_capacity(in_order.len()),
            guards: Vec::with_capacity(in_order.len()),
            by_rank: rule == VictimRule::Rank,
            across_tiers,
        };
        for ((protection, Reverse(tier), _), rank, sequence) in in_order {
            victims.victims.push(Victim {
                ticket: sequence.ticket(),
                swap: swaps(sequence, basis),
                group: tier.index() as u16 | (protection as u16) << 8,
            });
            victims.guards.push((protection, rank));
        }
        victims
    }

    /// Returns the number of victims, from the front, that a claim may preempt.
    pub(crate) fn allowed(&self, claim: Claim) -> u32 {
        let mut count = 0;
        let protections =
            [Protection::Resting, Protection::Usual, Protection::Limited, Protection::Spared];
        for protection in protections {
            let end = count + self.guards[count..].partition_point(|guard| guard.0 <= protection);
            let part = &self.guards[count..end];
            let allowed = |guard: &&(Protection, Rank)| self.may_take(claim, **guard);
            let may = if self.across_tiers {
                part.iter().take_while(allowed).count()
            } else {
                // Victims come highest rank first: a claim that may take a victim may take all victims before it.
                part.partition_point(|guard| allowed(&guard))
            };
            count += may;
            if may < part.len() {
                break;
            }
        }
        count as u32
    }

    /// Whether two claims certainly allow the same victims.
    pub(crate) fn treats_alike(&self, a: Claim, b: Claim) -> bool {
        let some_protected = self.guards.last().is_some_and(|(p, _)| *p > Protection::Usual);
        let ranks = match (self.by_rank && !self.guards.is_empty()) || some_protected {
            true => a.rank == b.rank,
            false => a.rank.tier() == b.rank.tier(),
        };
        ranks && (a.opening, a.first, a.by_force) == (b.opening, b.first, b.by_force)
    }

    fn may_take(&self, claim: Claim, (protection, victim): (Protection, Rank)) -> bool {
        let Claim { rank, opening, first, by_force } = claim;
        match protection {
            Protection::Resting => true,
            _ if !by_force && (opening || !first) => false,
            Protection::Spared if !first => false,
            // The first of a plan may take blocks of all higher ranks. Otherwise sequences that were preempted too
            // often could keep all others from running and never run themselves.
            Protection::Limited if opening && !first => false,
            _ if opening => rank.outranks_by_tier(&victim),
            // Rules other than `rank` let two sequences take each other's blocks by turns; the limit of preemptions
            // ends that.
            Protection::Limited | Protection::Spared => rank <= victim,
            // The candidate itself may be in the list: the block store passes it over.
            _ if self.by_rank => rank <= victim,
            _ => first || self.across_tiers || rank.tier() <= victim.tier(),
        }
    }
}

fn position(sequence: &Sequence, rank: Rank, rules: &Rules, now: Timestamp) -> Position {
    let protection = protection(sequence, rules);
    let (tier, key) = match rules.preemption.victim {
        _ if protection != Protection::Usual => (rank.tier(), 0),
        VictimRule::Rank | VictimRule::ResumeCost => (rank.tier(), 0),
        VictimRule::LatestArrival => (Tier::System, u64::MAX - sequence.arrival.0),
        VictimRule::ReverseFifo => (Tier::System, u64::MAX - sequence.kv.opened_number),
        VictimRule::LeastProgress => {
            let progress = u64::from(sequence.output_len()) << 32;
            (rank.tier(), progress | u64::from(sequence.preemptions))
        }
        VictimRule::LeastRecent => {
            (rank.tier(), sequence.last_token_at.unwrap_or(sequence.arrival).0)
        }
        VictimRule::LongestRemaining => (rank.tier(), u64::from(u32::MAX - sequence.output_left())),
        VictimRule::Slack => (rank.tier(), urgency(sequence, now)),
    };
    (protection, Reverse(tier), key)
}

fn protection(sequence: &Sequence, rules: &Rules) -> Protection {
    let preemption = &rules.preemption;
    let limited =
        rules.at_preemption_limit(sequence.preemptions) && preemption.at_limit != AtLimit::Drop;
    let settles = sequence.tokens_since_open() < preemption.min_tokens;
    let never_yields = sequence.tier <= Tier::Premium && !preemption.premium_yields;
    if sequence.held() || sequence.phase == Phase::Waiting {
        Protection::Resting
    } else if settles || never_yields {
        Protection::Spared
    } else if limited {
        Protection::Limited
    } else {
        Protection::Usual
    }
}

/// Whether the blocks of a victim are copied to the host pool.
fn swaps(sequence: &Sequence, basis: &Basis) -> bool {
    let waits = sequence.phase == Phase::Waiting;
    match basis.rules.preemption.mode {
        // A sequence that waits already is not dropped any more.
        _ if !waits && basis.rules.drops(sequence.preemptions) => false,
        PreemptionMode::Swap => true,
        PreemptionMode::Recompute | PreemptionMode::Drop => false,
        PreemptionMode::Auto => {
            basis.cost.swap_is_cheaper(sequence.kv.computed.max(sequence.kv.lost))
        }
    }
}
