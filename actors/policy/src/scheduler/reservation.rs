//! What is kept for a tier, in blocks and in places.

use crate::scheduler::prompts::Share;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::state::Scheduler;
use tiercel_config::{Reservation, ReservationSettings};
use tiercel_device::{BlockId, Tier};

const TIERS: usize = Tier::ALL.len();

/// What is kept for each tier.
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    blocks: [u32; TIERS],
    slots_percent: [f64; TIERS],
    lends: bool,
}

impl Kept {
    /// What these settings keep of a device's blocks.
    pub fn new(settings: &ReservationSettings, device_blocks: u32) -> Kept {
        let share = |percent: f64| (f64::from(device_blocks) * percent / 100.0) as u32;
        Kept {
            blocks: settings.blocks_percent().map(share),
            slots_percent: settings.slots_percent(),
            lends: settings.kind == Reservation::Lent,
        }
    }

    /// Whether any blocks are kept for anybody.
    pub(crate) fn something(&self) -> bool {
        self.blocks.iter().any(|blocks| *blocks > 0)
    }

    /// Whether blocks that are kept for a tier may be used by others as far as they can be given back at once.
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Blocks that a tier can never have: those kept for others.
    pub fn never_of(&self, tier: Tier) -> u32 {
        if tier == Tier::System {
            return 0;
        }
        self.blocks.iter().sum::<u32>() - self.blocks[tier.index()]
    }

    fn slots(&self, max_num_seqs: u32) -> [u32; TIERS] {
        // Places are given back at the end of a step: who lends them loses nothing.
        match self.lends {
            true => [0; TIERS],
            false => self.slots_percent.map(|p| (f64::from(max_num_seqs) * p / 100.0) as u32),
        }
    }
}

/// Places of a step as they are given away.
#[derive(Debug)]
pub(crate) struct Places {
    most: u32,
    kept: [u32; TIERS],
    taken: [u32; TIERS],
}

impl Places {
    /// Takes a place for a sequence of the tier; whether there is one.
    pub(crate) fn take(&mut self, tier: Tier) -> bool {
        let taken: u32 = self.taken.iter().sum();
        let others = Tier::ALL.into_iter().filter(|other| *other != tier && tier != Tier::System);
        let unused: u32 = others
            .map(|other| self.kept[other.index()].saturating_sub(self.taken[other.index()]))
            .sum();
        let free = taken.saturating_add(unused) < self.most;
        self.taken[tier.index()] += u32::from(free);
        free
    }
}

impl Scheduler {
    /// So many places of a step.
    pub(crate) fn places(&self, most: usize) -> Places {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Places { most, kept: self.kept.slots(self.settings.max_num_seqs), taken: [0; TIERS] }
    }

    /// Blocks that are kept for each tier and that it does not use.
    pub(crate) fn kept_unused(&self) -> [u32; TIERS] {
        let mut unused = self.kept.blocks;
        if unused.iter().all(|blocks| *blocks == 0) {
            return unused;
        }
        let mut use_blocks = |tier: Tier, blocks: u32| {
            let left = &mut unused[tier.index()];
            *left = left.saturating_sub(blocks);
        };
        // What requests of a tier share counts once.
        let mut seen = vec![[false; TIERS]; self.limits.device_blocks as usize];
        for (_, sequence) in self.sequences.active() {
            let tier = sequence.tier.index();
            let new = |block: &&BlockId| {
                let seen = seen.get_mut(block.0 as usize);
                seen.is_some_and(|tiers| !std::mem::replace(&mut tiers[tier], true))
            };
            use_blocks(sequence.tier, sequence.table.iter().filter(new).count() as u32);
        }
        for (_, sequence) in self.sequences.keeping() {
            use_blocks(sequence.tier, sequence.kept / self.limits.block_size);
        }
        unused
    }

    /// Of these, what a sequence must leave.
    pub(crate) fn kept_for_others(&self, sequence: &Sequence, unused: &[u32; TIERS]) -> u32 {
        // One that an operator moved here and that could never fit beside them is not made to wait for ever.
        let most = sequence.longest().min(self.limits.max_model_len);
        let fits = most.div_ceil(self.limits.block_size) + self.kept.never_of(sequence.tier);
        if sequence.tier == Tier::System || fits > self.limits.device_blocks {
            return 0;
        }
        unused.iter().sum::<u32>() - unused[sequence.tier.index()]
    }

    /// The most that any of these must leave.
    pub(crate) fn most_kept(&self, shares: &[Share<'_>], unused: &[u32; TIERS]) -> u32 {
        let kept = shares.iter().map(|share| self.kept_for_others(share.sequence, unused));
        kept.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(kind: Reservation) -> Places {
        let settings = ReservationSettings {
            kind,
            premium_slots_percent: 30.0,
            standard_slots_percent: 20.0,
            ..ReservationSettings::default()
        };
        let most = 10;
        let kept = Kept::new(&settings, 100).slots(most);
        Places { most, kept, taken: [0; TIERS] }
    }

    #[test]
    fn places_that_are_kept_are_for_their_tier_alone() {
        let mut hard = places(Reservation::Hard);
        let taken = (0..10).filter(|_| hard.take(Tier::Background)).count();
        assert_eq!(taken, 5);
        let taken = (0..10).filter(|_| hard.take(Tier::Standard)).count();
        assert_eq!(taken, 2, "what is kept for premium is not for standard either");
        let taken = (0..10).filter(|_| hard.take(Tier::Premium)).count();
        assert_eq!(taken, 3);
        let mut hard = places(Reservation::Hard);
        assert!(
            (0..8).all(|_| hard.take(Tier::Premium)),
            "a tier may have more than is kept for it"
        );
        assert!(!hard.take(Tier::Premium) && !hard.take(Tier::Background));
        let mut lent = places(Reservation::Lent);
        assert!((0..10).all(|_| lent.take(Tier::Background)) && !lent.take(Tier::Premium));
    }
}
