//! Victims: which sequences may be preempted, in which order, and for the benefit of which other sequences.

use crate::protocol::Victim;
use crate::scheduler::basis::Basis;
use crate::scheduler::budget::slack::urgency;
use crate::scheduler::memory::reservation::Reservations;
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
    /// Least protected: the sequence makes no progress, because it is on hold or was preempted and retains blocks. Any
    /// sequence may take its blocks.
    Resting,
    /// Usual protection of a sequence from preemption: the order of service and the rule `preemption.victim` decide
    /// which other sequences may take its blocks.
    Usual,
    /// The sequence was preempted as often as allowed (`preemption.max_per_request`), and `preemption.at_limit` is not
    /// `drop`. Its blocks may be taken only by running sequences that grow and are served before it, and by the first
    /// sequence of a plan if this first sequence waits, may preempt running sequences and has a higher effective tier.
    Limited,
    /// The sequence has sampled fewer than `preemption.min_tokens` tokens since it last got its blocks, or is of the
    /// premium or system tier while `preemption.premium_yields` is off. Only the first sequence of a plan may take its
    /// blocks: if it runs and is served before the victim, or if it waits, may preempt running sequences and has a
    /// higher effective tier.
    Spared,
    /// Most protected: the blocks of the sequence are covered by the reservation of its tier
    /// ([`Reservations::covered`]). As with `Spared`, only the first sequence of a plan may take these blocks.
    Reserved,
}

impl Protection {
    /// All degrees of protection, the least protected first.
    const ALL: [Protection; 5] = [
        Protection::Resting,
        Protection::Usual,
        Protection::Limited,
        Protection::Spared,
        Protection::Reserved,
    ];
}

/// Claim of a candidate: facts that decide which victims may be preempted to give the candidate blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) rank: Rank,
    /// Whether the candidate waits and needs a new block table, instead of running and growing.
    pub(crate) opening: bool,
    /// Whether the candidate is the first of the plan. The first candidate must always be able to go on, so that some
    /// sequence always finishes.
    pub(crate) first: bool,
    /// Whether the candidate may take blocks of sequences that make progress, not only of resting ones. If the first
    /// candidate of the plan runs, it may do so whatever this field says.
    pub(crate) may_preempt_running: bool,
}

/// Sort key of a victim: protection, effective tier (the lowest tier first), and a number. Among victims of usual
/// protection the rule `preemption.victim` gives the number, and the tier is a constant if the rule ignores tiers.
/// Among other victims the tier always counts, and the number is 0. The sequence with the smallest key is preempted
/// first; of equal keys, sequences that retain blocks, then the sequence served last.
type VictimKey = (Protection, Reverse<Tier>, u64);

/// The possible victims of a plan in order, and the facts that decide which candidates may preempt each of them.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    /// Possible victims, in the order in which they are preempted.
    pub(crate) victims: Vec<Victim>,
    /// Protection of each victim, and its rank in the order of service.
    guards: Vec<(Protection, Rank)>,
    /// Whether victims are chosen by their rank in the order of service (`preemption.victim = rank`).
    by_rank: bool,
    /// Whether victims are chosen by a rule that ignores tiers (latest arrival, or reverse FIFO).
    across_tiers: bool,
}

impl Victims {
    /// Collects the sequences that may be preempted in a plan, and sorts them in the order in which they are preempted.
    pub(crate) fn new(
        table: &SequenceTable,
        (basis, reservations): (&Basis, &Reservations),
        begins: Timestamp,
    ) -> Victims {
        let rule = basis.rules.preemption.victim;
        let across_tiers = matches!(rule, VictimRule::LatestArrival | VictimRule::ReverseFifo);
        // Start with the sequences served last: for most rules the list is then nearly in the order of victims, which
        // makes the sort fast.
        let running = table.active().rev();
        let running = running.filter(|(_, sequence)| sequence.phase == Phase::Running);
        let covered = reservations.covered(table, basis.rules.limits);
        let position = |(rank, sequence): (Rank, &Sequence)| {
            let protection = protection(sequence, &basis.rules, covered.contains(&sequence.id));
            position(sequence, (rank, protection), basis.rules.preemption.victim, begins)
        };
        let mut in_order: Vec<(VictimKey, Rank, &Sequence)> = (table.retaining().rev())
            .chain(running)
            .map(|(rank, sequence)| (position((rank, sequence)), rank, sequence))
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
                spared: protection >= Protection::Spared,
                group: tier.index() as u16 | (protection as u16) << 8,
            });
            victims.guards.push((protection, rank));
        }
        victims
    }

    /// Returns how many victims, from the front of the list, may be preempted for a candidate with this claim.
    pub(crate) fn allowed(&self, claim: Claim) -> u32 {
        let mut count = 0;
        for protection in Protection::ALL {
            let end = count + self.guards[count..].partition_point(|guard| guard.0 <= protection);
            let part = &self.guards[count..end];
            let allowed = |guard: &&(Protection, Rank)| self.may_take(claim, **guard);
            let may = if self.across_tiers {
                part.iter().take_while(allowed).count()
            } else {
                // Within one protection, victims of lower tiers come first, and where the claim depends on rank, those
                // served later: a candidate that may take one may take all victims before it, so binary search finds
                // the last.
                part.partition_point(|guard| allowed(&guard))
            };
            count += may;
            if may < part.len() {
                break;
            }
        }
        count as u32
    }

    /// Whether candidates with these two claims may certainly preempt the same victims, so that one result of
    /// [`Victims::allowed`] serves both.
    pub(crate) fn treats_alike(&self, a: Claim, b: Claim) -> bool {
        let some_protected = self.guards.last().is_some_and(|(p, _)| *p > Protection::Usual);
        let ranks = match (self.by_rank && !self.guards.is_empty()) || some_protected {
            true => a.rank == b.rank,
            false => a.rank.tier() == b.rank.tier(),
        };
        ranks
            && (a.opening, a.first, a.may_preempt_running)
                == (b.opening, b.first, b.may_preempt_running)
    }

    fn may_take(&self, claim: Claim, (protection, victim): (Protection, Rank)) -> bool {
        let Claim { rank, opening, first, may_preempt_running } = claim;
        match protection {
            Protection::Resting => true,
            _ if !may_preempt_running && (opening || !first) => false,
            Protection::Spared | Protection::Reserved if !first => false,
            // Of the candidates that wait, only the first of the plan may take blocks of sequences at their limit of
            // preemptions. If none could, such sequences could block all others without running themselves.
            Protection::Limited if opening && !first => false,
            _ if opening => rank.outranks_by_tier(&victim),
            // Under rules other than `rank`, two sequences could take each other's blocks in turn. To end that, victims
            // at their limit of preemptions yield to a running sequence only if it is served before them.
            Protection::Limited | Protection::Spared | Protection::Reserved => rank <= victim,
            // Comparing ranks with `<=` counts the candidate itself as a victim; the block store skips it as a victim
            // of its own request.
            _ if self.by_rank => rank <= victim,
            _ => first || self.across_tiers || rank.tier() <= victim.tier(),
        }
    }
}

fn position(
    sequence: &Sequence,
    (rank, protection): (Rank, Protection),
    rule: VictimRule,
    begins: Timestamp,
) -> VictimKey {
    let (tier, key) = match rule {
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
        VictimRule::Slack => (rank.tier(), urgency(sequence, begins)),
    };
    (protection, Reverse(tier), key)
}

/// Returns the protection of a sequence. `covered`: whether its blocks are covered by the reservation of its tier.
fn protection(sequence: &Sequence, rules: &Rules, covered: bool) -> Protection {
    let preemption = &rules.preemption;
    let limited =
        rules.at_preemption_limit(sequence.preemptions) && preemption.at_limit != AtLimit::Drop;
    let settles = sequence.tokens_since_open() < preemption.min_tokens;
    let never_yields = sequence.tier <= Tier::Premium && !preemption.premium_yields;
    if sequence.held() || sequence.phase == Phase::Waiting {
        Protection::Resting
    } else if covered {
        Protection::Reserved
    } else if settles || never_yields {
        Protection::Spared
    } else if limited {
        Protection::Limited
    } else {
        Protection::Usual
    }
}

/// Whether preempting the sequence copies its blocks to the host pool (swap) instead of discarding them.
fn swaps(sequence: &Sequence, basis: &Basis) -> bool {
    let waits = sequence.phase == Phase::Waiting;
    match basis.rules.preemption.mode {
        // A running victim that is to be dropped needs no copy. A sequence that is preempted already is never dropped.
        _ if !waits && basis.rules.drops(sequence.preemptions) => false,
        PreemptionMode::Swap => true,
        PreemptionMode::Recompute | PreemptionMode::Drop => false,
        PreemptionMode::Auto => {
            basis.cost.swap_is_cheaper(sequence.kv.computed.max(sequence.kv.computed_before))
        }
    }
}

#[cfg(test)]
mod tests;
