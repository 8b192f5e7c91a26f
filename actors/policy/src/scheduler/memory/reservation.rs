//! Reservations: blocks and slots that are reserved for a tier.

use crate::scheduler::candidate::Candidate;
use crate::scheduler::queue::sequence_table::SequenceTable;
use crate::scheduler::rules::Limits;
use crate::scheduler::sequence::Sequence;
use tiercel_config::{Reservation, ReservationSettings};
use tiercel_device::{BlockId, Tier};

const TIERS: usize = Tier::ALL.len();

/// Blocks and slots that are reserved for each tier.
#[derive(Debug, Clone, Copy)]
pub struct Reservations {
    /// Blocks that are reserved for each tier.
    blocks: [u32; TIERS],
    /// Slots that are reserved for each tier, percent of a step's slots.
    slots_percent: [f64; TIERS],
    /// Whether other tiers may use reserved blocks as far as they can give them back at once.
    lends: bool,
}

impl Reservations {
    /// Creates the reservations that these settings make of a device's blocks.
    pub fn new(settings: &ReservationSettings, device_blocks: u32) -> Reservations {
        let share = |percent: f64| (f64::from(device_blocks) * percent / 100.0) as u32;
        Reservations {
            blocks: settings.blocks_percent().map(share),
            slots_percent: settings.slots_percent(),
            lends: settings.kind == Reservation::Lent,
        }
    }

    /// Whether blocks are reserved for any tier.
    pub(crate) fn any_blocks(&self) -> bool {
        self.blocks.iter().any(|blocks| *blocks > 0)
    }

    /// Whether other tiers may use reserved blocks as far as they can give them back at once.
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Returns the number of blocks that a tier can never have, because they are reserved for other tiers.
    pub fn never_of(&self, tier: Tier) -> u32 {
        if tier == Tier::System {
            return 0;
        }
        self.blocks.iter().sum::<u32>() - self.blocks[tier.index()]
    }

    /// Returns the number of slots that are reserved for each tier.
    fn slots(&self, max_num_seqs: u32) -> [u32; TIERS] {
        // A slot is free again at the end of a step, so lending it costs nothing.
        match self.lends {
            true => [0; TIERS],
            false => self.slots_percent.map(|p| (f64::from(max_num_seqs) * p / 100.0) as u32),
        }
    }
}

/// Slots of a step, while a plan gives them to sequences.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Number of slots of the step.
    most: u32,
    /// Slots that are reserved for each tier.
    reserved: [u32; TIERS],
    /// Slots that sequences of each tier have taken.
    taken: [u32; TIERS],
}

impl Slots {
    /// Takes a slot for a sequence of the tier, and returns whether there was one.
    pub(crate) fn take(&mut self, tier: Tier) -> bool {
        let taken: u32 = self.taken.iter().sum();
        let others = Tier::ALL.into_iter().filter(|other| *other != tier && tier != Tier::System);
        let unused: u32 = others
            .map(|other| self.reserved[other.index()].saturating_sub(self.taken[other.index()]))
            .sum();
        let free = taken.saturating_add(unused) < self.most;
        self.taken[tier.index()] += u32::from(free);
        free
    }
}

impl Reservations {
    /// Returns `most` slots of a step, of which some are reserved for tiers.
    pub(crate) fn slots_of(&self, most: usize, max_num_seqs: u32) -> Slots {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Slots { most, reserved: self.slots(max_num_seqs), taken: [0; TIERS] }
    }

    /// Returns the number of blocks that are reserved for each tier and that the tier does not use.
    pub(crate) fn unused(&self, table: &SequenceTable, limits: Limits) -> [u32; TIERS] {
        let mut unused = self.blocks;
        if unused.iter().all(|blocks| *blocks == 0) {
            return unused;
        }
        let mut use_blocks = |tier: Tier, blocks: u32| {
            let left = &mut unused[tier.index()];
            *left = left.saturating_sub(blocks);
        };
        // A block that sequences of one tier share counts once.
        let mut seen = vec![[false; TIERS]; limits.device_blocks as usize];
        for (_, sequence) in table.active() {
            let tier = sequence.tier.index();
            let new = |block: &&BlockId| {
                let seen = seen.get_mut(block.0 as usize);
                seen.is_some_and(|tiers| !std::mem::replace(&mut tiers[tier], true))
            };
            use_blocks(sequence.tier, sequence.kv.table.iter().filter(new).count() as u32);
        }
        for (_, sequence) in table.retaining() {
            use_blocks(sequence.tier, sequence.kv.retained / limits.block_size);
        }
        unused
    }

    /// Returns the number of blocks of `unused` reservations that a sequence must leave free.
    pub(crate) fn for_others(
        &self,
        sequence: &Sequence,
        unused: &[u32; TIERS],
        limits: Limits,
    ) -> u32 {
        // A sequence that an operator moved to this tier may be too large to fit beside the reservations. It ignores
        // them, so that it does not wait for ever.
        let most = sequence.longest().min(limits.max_model_len);
        let fits = most.div_ceil(limits.block_size) + self.never_of(sequence.tier);
        if sequence.tier == Tier::System || fits > limits.device_blocks {
            return 0;
        }
        unused.iter().sum::<u32>() - unused[sequence.tier.index()]
    }

    /// Returns the most blocks of `unused` reservations that any of these candidates must leave free.
    pub(crate) fn most_for_others(
        &self,
        candidates: &[Candidate<'_>],
        unused: &[u32; TIERS],
        limits: Limits,
    ) -> u32 {
        let blocks = candidates.iter().map(|c| self.for_others(c.sequence, unused, limits));
        blocks.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(kind: Reservation) -> Slots {
        let settings = ReservationSettings {
            kind,
            premium_slots_percent: 30.0,
            standard_slots_percent: 20.0,
            ..ReservationSettings::default()
        };
        let most = 10;
        let reserved = Reservations::new(&settings, 100).slots(most);
        Slots { most, reserved, taken: [0; TIERS] }
    }

    #[test]
    fn reserved_slots_are_for_their_tier_alone() {
        let mut hard = slots(Reservation::Hard);
        let taken = (0..10).filter(|_| hard.take(Tier::Background)).count();
        assert_eq!(taken, 5);
        let taken = (0..10).filter(|_| hard.take(Tier::Standard)).count();
        assert_eq!(taken, 2, "slots reserved for premium are not for standard either");
        let taken = (0..10).filter(|_| hard.take(Tier::Premium)).count();
        assert_eq!(taken, 3);
        let mut hard = slots(Reservation::Hard);
        assert!(
            (0..8).all(|_| hard.take(Tier::Premium)),
            "a tier may have more than its reservation"
        );
        assert!(!hard.take(Tier::Premium) && !hard.take(Tier::Background));
        let mut lent = slots(Reservation::Lent);
        assert!((0..10).all(|_| lent.take(Tier::Background)) && !lent.take(Tier::Premium));
    }
}
