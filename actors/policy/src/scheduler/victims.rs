//! Who may be preempted, first to go first, and by whom.

use crate::protocol::{Gives, Victim};
use crate::scheduler::rank::Rank;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::scheduler::state::Scheduler;
use std::cmp::Reverse;
use tiercel_config::{AtLimit, PreemptionMode, ToStart, VictimGives, VictimRule};
use tiercel_device::{Tier, Timestamp};

/// Most blocks copied ahead of need in one step, however long the last one took.
const MOST_MIRRORED: u32 = 64;

/// How willingly a sequence gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Willing {
    /// It makes no progress: its client does not read, an operator paused it, or it was preempted and kept
    /// blocks. Anybody may have them.
    Resting,
    /// As its rank and the rule say.
    Usual,
    /// It was preempted as often as allowed: of those that start, only the first in line may take its blocks,
    /// and of those that grow only better-ranked ones.
    Limited,
    /// It has only just begun, or is premium and premium does not yield: only the first in line may take
    /// its blocks.
    Spared,
}

/// Who would like to have somebody's blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) rank: Rank,
    /// To start, not to grow.
    pub(crate) opening: bool,
    /// It is the first in line, that must always be able to go on.
    pub(crate) first: bool,
    /// Whether it may have them of those that make progress at all.
    pub(crate) by_force: bool,
}

/// Place in the order of giving way: less goes first, then the worse-ranked.
type Place = (Willing, Reverse<u8>, u64);

/// The victims of a plan, and beside each what decides who may take it.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    pub(crate) victims: Vec<Victim>,
    places: Vec<(Willing, Rank)>,
    by_rank: bool,
    across_tiers: bool,
}

impl Victims {
    /// How many of the victims, from the front, a sequence may preempt.
    pub(crate) fn allowed(&self, claim: Claim) -> u32 {
        let mut count = 0;
        for willing in [Willing::Resting, Willing::Usual, Willing::Limited, Willing::Spared] {
            let end = count + self.places[count..].partition_point(|place| place.0 <= willing);
            let part = &self.places[count..end];
            let allowed = |place: &&(Willing, Rank)| self.may_take(claim, **place);
            let may = if self.across_tiers {
                part.iter().take_while(allowed).count()
            } else {
                // From the worst to the best: who may take one may take all before it.
                part.partition_point(|place| allowed(&place))
            };
            count += may;
            if may < part.len() {
                break;
            }
        }
        count as u32
    }

    /// Whether two claims allow the same victims without looking at them.
    pub(crate) fn treats_alike(&self, a: Claim, b: Claim) -> bool {
        let some_unwilling = self.places.last().is_some_and(|(w, _)| *w > Willing::Usual);
        let ranks = match (self.by_rank && !self.places.is_empty()) || some_unwilling {
            true => a.rank == b.rank,
            false => a.rank.level() == b.rank.level(),
        };
        ranks && (a.opening, a.first, a.by_force) == (b.opening, b.first, b.by_force)
    }

    fn may_take(&self, claim: Claim, (willing, victim): (Willing, Rank)) -> bool {
        let Claim { rank, opening, first, by_force } = claim;
        match willing {
            Willing::Resting => true,
            _ if !by_force && (opening || !first) => false,
            Willing::Spared if !first => false,
            // Whoever is first may take all that are worse, or sequences that were preempted too often
            // could keep everybody else from running and never run themselves.
            Willing::Limited if opening && !first => false,
            _ if opening => rank.outranks_by_level(&victim),
            // Other orders than that of rank let two sequences take each other's blocks, each in its turn. Not
            // for ever.
            Willing::Limited | Willing::Spared => rank <= victim,
            // Its own place in the list is no obstacle: the store never takes the requester.
            _ if self.by_rank => rank <= victim,
            _ => first || self.across_tiers || rank.level() <= victim.level(),
        }
    }
}

impl Scheduler {
    /// Sequences that may be preempted in this plan.
    pub(crate) fn victims(&self, now: Timestamp) -> Victims {
        let rule = self.preemption.victim;
        let across_tiers = matches!(rule, VictimRule::LatestArrival | VictimRule::ReverseFifo);
        // From the worst-ranked: for the rules that add nothing the order is nearly that already.
        let running = self.sequences.active().rev();
        let running = running.filter(|(_, sequence)| sequence.phase == Phase::Running);
        let mut places: Vec<(Place, Rank, &Sequence)> = (self.sequences.keeping().rev())
            .chain(running)
            .map(|(rank, sequence)| (self.turn_to_go(sequence, rank, rule, now), rank, sequence))
            .collect();
        places.sort_by_key(|(place, ..)| *place);
        let mut victims = Victims {
            victims: Vec::with_capacity(places.len()),
            places: Vec::with_capacity(places.len()),
            by_rank: rule == VictimRule::Rank,
            across_tiers,
        };
        for ((willing, Reverse(level), _), rank, sequence) in places {
            victims.victims.push(Victim {
                ticket: sequence.ticket(),
                swap: self.swaps(sequence),
                group: u16::from(level) | (willing as u16) << 8,
            });
            victims.places.push((willing, rank));
        }
        victims
    }

    fn turn_to_go(
        &self,
        sequence: &Sequence,
        rank: Rank,
        rule: VictimRule,
        now: Timestamp,
    ) -> Place {
        let willing = self.willing(sequence);
        let (level, key) = match rule {
            _ if willing != Willing::Usual => (rank.level(), 0),
            VictimRule::Rank | VictimRule::ResumeCost => (rank.level(), 0),
            VictimRule::LatestArrival => (0, u64::MAX - sequence.arrival.0),
            VictimRule::ReverseFifo => (0, u64::MAX - sequence.opened_number),
            VictimRule::LeastProgress => {
                let progress = u64::from(sequence.output_len()) << 32;
                (rank.level(), progress | u64::from(sequence.preemptions))
            }
            VictimRule::LeastRecent => {
                (rank.level(), sequence.last_token_at.unwrap_or(sequence.arrival).0)
            }
            VictimRule::LongestRemaining => {
                (rank.level(), u64::from(u32::MAX - sequence.output_left()))
            }
            VictimRule::Slack => (rank.level(), self.lateness(sequence, now)),
        };
        (willing, Reverse(level), key)
    }

    fn willing(&self, sequence: &Sequence) -> Willing {
        let limited = sequence.preemptions >= self.preemption.max_per_request
            && self.preemption.at_limit != AtLimit::Drop;
        let settles = sequence.tokens_since_open() < self.preemption.min_tokens;
        let keeps = sequence.tier <= Tier::Premium && !self.preemption.premium_yields;
        if sequence.held() || sequence.phase == Phase::Waiting {
            Willing::Resting
        } else if settles || keeps {
            Willing::Spared
        } else if limited {
            Willing::Limited
        } else {
            Willing::Usual
        }
    }

    /// Whether a waiting sequence may take blocks in order to start.
    pub(crate) fn may_start_by_force(&self, sequence: &Sequence, now: Timestamp) -> bool {
        let waited_us = now.since_us(sequence.arrival);
        self.preemption.to_start == ToStart::LowerTier
            && waited_us >= u64::from(self.preemption.delay_ms) * 1000
    }

    /// How much of its table a victim gives up.
    pub(crate) fn gives(&self) -> Gives {
        match self.preemption.victim_gives {
            VictimGives::All => Gives::All,
            VictimGives::Unshared => Gives::Unshared,
            VictimGives::Needed => Gives::Needed { unit: self.preemption.victim_gives_blocks },
        }
    }

    /// Whether preempting it ends it.
    pub(crate) fn drops(&self, preemptions: u32) -> bool {
        self.preemption.mode == PreemptionMode::Drop
            || self.preemption.at_limit == AtLimit::Drop
                && preemptions >= self.preemption.max_per_request
    }

    fn swaps(&self, sequence: &Sequence) -> bool {
        match self.preemption.mode {
            // Once it waits it is not dropped any more.
            _ if sequence.phase != Phase::Waiting && self.drops(sequence.preemptions) => false,
            PreemptionMode::Swap => true,
            PreemptionMode::Recompute | PreemptionMode::Drop => false,
            PreemptionMode::Auto => self.cost.swap_is_cheaper(sequence.computed.max(sequence.lost)),
        }
    }

    /// Blocks that may be copied ahead of need since this was last asked: their share of the link.
    pub(crate) fn blocks_to_mirror(&mut self, now: Timestamp) -> u32 {
        let (since, rest) = std::mem::replace(&mut self.mirrored, (now, 0.0));
        let share = f64::from(self.preemption.mirror_percent) / 100.0;
        let block_us = self.cost.copy_us(1);
        if share == 0.0 || !block_us.is_finite() {
            return 0;
        }
        let blocks = rest + now.since_us(since) as f64 * share / block_us;
        let blocks = blocks.min(f64::from(MOST_MIRRORED));
        self.mirrored.1 = blocks.fract();
        blocks as u32
    }
}
