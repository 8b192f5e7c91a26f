//! Reservations: KV blocks, and slots of a step, that are reserved for a tier.

use crate::scheduler::candidate::Candidate;
use crate::scheduler::queue::sequence_table::SequenceTable;
use crate::scheduler::rules::Limits;
use crate::scheduler::sequence::{Phase, Sequence};
use std::collections::HashSet;
use tiercel_config::{Reservation, ReservationSettings};
use tiercel_device::{BlockId, SeqId, Tier};

const TIERS: usize = Tier::ALL.len();

/// Numbers of KV blocks, and shares of a step's slots, that are reserved for each tier.
#[derive(Debug, Clone, Copy)]
pub struct Reservations {
    /// Number of KV blocks that are reserved for each tier.
    blocks: [u32; TIERS],
    /// Share of a step's slots (places for sequences in the batch) that is reserved for each tier, percent.
    slots_percent: [f64; TIERS],
    /// Whether other tiers may borrow reserved blocks, as long as they can give them back at once.
    lends: bool,
}

impl Reservations {
    /// Creates the reservations that the settings make on a device with `device_blocks` KV blocks.
    pub fn new(settings: &ReservationSettings, device_blocks: u32) -> Reservations {
        let share = |percent: f64| (f64::from(device_blocks) * percent / 100.0) as u32;
        Reservations {
            blocks: settings.blocks_percent().map(share),
            slots_percent: settings.slots_percent(),
            lends: settings.kind == Reservation::Lent,
        }
    }

    /// Whether KV blocks are reserved for any tier.
    pub(crate) fn any_blocks(&self) -> bool {
        self.blocks.iter().any(|blocks| *blocks > 0)
    }

    /// Whether other tiers may borrow reserved blocks, as long as they can give them back at once.
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// Returns the number of KV blocks that a tier cannot count on, because they are reserved for other tiers (it may
    /// at most borrow them); 0 for the system tier.
    pub fn reserved_for_others(&self, tier: Tier) -> u32 {
        if tier == Tier::System {
            return 0;
        }
        self.blocks.iter().sum::<u32>() - self.blocks[tier.index()]
    }

    /// Returns the number of slots of a step that are reserved for each tier; 0 if reservations are lent.
    fn slots(&self, max_num_seqs: u32) -> [u32; TIERS] {
        // Lent reservations keep no slot free: a slot comes free at the end of each step, so lending it costs nothing.
        match self.lends {
            true => [0; TIERS],
            false => self.slots_percent.map(|p| (f64::from(max_num_seqs) * p / 100.0) as u32),
        }
    }
}

/// Slots of a step (places for sequences in the batch), counted while a plan gives them to sequences.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Number of slots of the step that the plan may give out.
    most: u32,
    /// Number of slots of the step that are reserved for each tier.
    reserved: [u32; TIERS],
    /// Number of slots that the plan has given to sequences of each tier.
    taken: [u32; TIERS],
}

impl Slots {
    /// Gives a slot of the step to a sequence of the tier; returns `false` if every slot is taken or reserved for
    /// another tier. The system tier may take reserved slots.
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

/// Blocks that the counted sequences of each tier hold: a block that several sequences of one tier share counts once.
struct SeenBlocks(Vec<[bool; TIERS]>);

impl SeenBlocks {
    fn new(device_blocks: u32) -> SeenBlocks {
        SeenBlocks(vec![[false; TIERS]; device_blocks as usize])
    }

    /// Returns the number of a sequence's blocks that none of the counted sequences of its tier holds.
    fn count_new(&self, sequence: &Sequence) -> u32 {
        let seen =
            |block: &BlockId| self.0.get(block.0 as usize).is_none_or(|t| t[sequence.tier.index()]);
        sequence.kv.block_table.iter().filter(|block| !seen(block)).count() as u32
    }

    /// Counts a sequence.
    fn add(&mut self, sequence: &Sequence) {
        for block in sequence.kv.block_table.iter() {
            if let Some(tiers) = self.0.get_mut(block.0 as usize) {
                tiers[sequence.tier.index()] = true;
            }
        }
    }
}

impl Reservations {
    /// Returns the slots of a step in which `most` sequences may run. Reserved slots are a percentage of
    /// `max_num_seqs`, the usual number of slots.
    pub(crate) fn slots_of(&self, most: usize, max_num_seqs: u32) -> Slots {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Slots { most, reserved: self.slots(max_num_seqs), taken: [0; TIERS] }
    }

    /// Returns, for each tier, how many of its reserved blocks its sequences do not use now. A sequence whose block
    /// table is not known yet (see `Kv::block_table`) counts as using none.
    pub(crate) fn unused(&self, table: &SequenceTable, limits: Limits) -> [u32; TIERS] {
        let mut unused = self.blocks;
        if unused.iter().all(|blocks| *blocks == 0) {
            return unused;
        }
        let mut use_blocks = |tier: Tier, blocks: u32| {
            let left = &mut unused[tier.index()];
            *left = left.saturating_sub(blocks);
        };
        // Count each block once for a tier, even if several sequences of the tier share it.
        let mut seen = SeenBlocks::new(limits.device_blocks);
        for (_, sequence) in table.active() {
            use_blocks(sequence.tier, seen.count_new(sequence));
            seen.add(sequence);
        }
        for (_, sequence) in table.retaining() {
            use_blocks(sequence.tier, sequence.kv.retained_tokens / limits.block_size);
        }
        unused
    }

    /// Returns the sequences whose blocks are covered by the reservation of their tier: of the tier's running sequences
    /// that are not on hold, the first ones, in order of service, that together hold fewer blocks than are reserved.
    /// The sequences after these are not covered: if a tier uses up its reservation, its first sequences can take
    /// blocks of its last ones to grow.
    pub(crate) fn covered(&self, table: &SequenceTable, limits: Limits) -> HashSet<SeqId> {
        let mut covered = HashSet::new();
        if !self.any_blocks() {
            return covered;
        }
        let mut left = self.blocks;
        let mut seen = SeenBlocks::new(limits.device_blocks);
        let running = table.active().map(|(_, sequence)| sequence);
        for sequence in running.filter(|s| s.phase == Phase::Running && !s.held()) {
            let left = &mut left[sequence.tier.index()];
            // The blocks of a sequence whose table is not known yet follow from its computed tokens.
            let new = match sequence.kv.block_table.is_empty() {
                true => sequence.kv.computed.div_ceil(limits.block_size),
                false => seen.count_new(sequence),
            };
            *left = left.saturating_sub(new);
            if *left > 0 {
                seen.add(sequence);
                covered.insert(sequence.id);
            }
        }
        covered
    }

    /// Returns the number of blocks that a sequence must leave free for other tiers; 0 for a sequence of the system
    /// tier, or one that could never fit beside the reservations. `unused`: the unused part of each tier's reservation,
    /// blocks.
    pub(crate) fn kept_for_others(
        &self,
        sequence: &Sequence,
        unused: &[u32; TIERS],
        limits: Limits,
    ) -> u32 {
        // Ignore reservations for a sequence that is too large to fit beside them (an operator may have moved it to
        // this tier), so that it does not wait for ever.
        let most = sequence.longest().min(limits.max_model_len);
        let needed = most.div_ceil(limits.block_size) + self.reserved_for_others(sequence.tier);
        if sequence.tier == Tier::System || needed > limits.device_blocks {
            return 0;
        }
        unused.iter().sum::<u32>() - unused[sequence.tier.index()]
    }

    /// Returns the most blocks that any of the candidates must leave free for other tiers; `unused` is the unused part
    /// of each tier's reservation.
    pub(crate) fn most_kept_for_others(
        &self,
        candidates: &[Candidate<'_>],
        unused: &[u32; TIERS],
        limits: Limits,
    ) -> u32 {
        let blocks = candidates.iter().map(|c| self.kept_for_others(c.sequence, unused, limits));
        blocks.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::prompt;
    use crate::scheduler::queue::priority_key::{PriorityKey, Rank};
    use std::sync::Arc;
    use tiercel_config::ResumeOrder;
    use tiercel_device::Timestamp;

    /// A device pool of 40 blocks of 4 tokens.
    const LIMITS: Limits =
        Limits { block_size: 4, device_blocks: 40, max_model_len: 1000, step_tokens: 1000 };

    /// Reserves 12 of the 40 blocks for premium, and 8 for standard.
    fn blocks(kind: Reservation) -> Reservations {
        let settings = ReservationSettings {
            kind,
            premium_blocks_percent: 30.0,
            standard_blocks_percent: 20.0,
            ..ReservationSettings::default()
        };
        Reservations::new(&settings, LIMITS.device_blocks)
    }

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

    #[test]
    fn only_lent_reservations_lend_and_without_any_no_block_is_reserved() {
        assert!(blocks(Reservation::Lent).lends() && !blocks(Reservation::Hard).lends());
        assert!(blocks(Reservation::Hard).any_blocks());
        let none = Reservations::new(&ReservationSettings::default(), LIMITS.device_blocks);
        assert!(!none.any_blocks());
        assert_eq!(none.unused(&SequenceTable::new(ResumeOrder::Rank), LIMITS), [0; TIERS]);
    }

    #[test]
    fn a_tier_cannot_count_on_the_blocks_of_the_others() {
        // 12 blocks are reserved for premium and 8 for standard.
        let never = Tier::ALL.map(|tier| blocks(Reservation::Hard).reserved_for_others(tier));
        assert_eq!(never, [0, 8, 12, 20]);
    }

    #[test]
    fn a_tier_uses_its_reservation_by_each_block_once_and_by_whole_retained_blocks() {
        let mut table = SequenceTable::new(ResumeOrder::Rank);
        let runs = [
            (1, Tier::Premium, &[0, 1, 2][..]),
            (2, Tier::Premium, &[0, 1, 5]),
            (3, Tier::Standard, &[0]),
            (4, Tier::Background, &[7, 8]),
        ];
        for (id, tier, held) in runs {
            let mut sequence = prompt(id, tier, 12, 4);
            sequence.kv.block_table = held.iter().copied().map(BlockId).collect::<Vec<_>>().into();
            table.insert(sequence);
        }
        let mut retains = prompt(5, Tier::Standard, 12, 0);
        retains.phase = Phase::Waiting;
        retains.kv.block_table = Arc::from([]);
        retains.kv.retained_tokens = 9;
        table.insert(retains);
        // Premium holds the four blocks 0, 1, 2 and 5 of its 12. Standard holds block 0 of its 8, and retains 9 tokens:
        // 2 whole blocks.
        assert_eq!(blocks(Reservation::Hard).unused(&table, LIMITS), [0, 8, 5, 0]);
    }

    #[test]
    fn a_reservation_covers_the_first_sequences_that_hold_less_than_it_together() {
        let mut table = SequenceTable::new(ResumeOrder::Rank);
        let runs = [
            (1, Tier::Standard, 0..4),
            (2, Tier::Background, 0..9),
            (3, Tier::Standard, 0..6),
            (4, Tier::Standard, 6..8),
            (5, Tier::Standard, 0..1),
            (6, Tier::Premium, 0..11),
        ];
        for (id, tier, held) in runs {
            let mut sequence = prompt(id, tier, 12, 4);
            sequence.kv.block_table = held.map(BlockId).collect::<Vec<_>>().into();
            table.insert(sequence);
        }
        let mut held = prompt(0, Tier::Standard, 12, 4);
        held.kv.block_table = (9..16).map(BlockId).collect::<Vec<_>>().into();
        held.held_by_stream = true;
        table.insert(held);
        // Of the 8 blocks for standard, sequence 1 holds 4, and sequence 3 holds 2 more. With sequence 4 all 8 are in
        // use, so neither sequence 4 nor sequence 5 is covered. A sequence on hold does not count.
        let covered = blocks(Reservation::Lent).covered(&table, LIMITS);
        assert_eq!(covered, HashSet::from([1, 3, 6].map(SeqId)));
        let none = Reservations::new(&ReservationSettings::default(), LIMITS.device_blocks);
        assert!(none.covered(&table, LIMITS).is_empty());
    }

    #[test]
    fn a_sequence_of_unknown_table_counts_by_its_computed_tokens() {
        let covered = |computed| {
            let mut table = SequenceTable::new(ResumeOrder::Rank);
            let mut resumed = prompt(1, Tier::Standard, 40, computed);
            resumed.kv.block_table = Arc::from([]);
            table.insert(resumed);
            blocks(Reservation::Hard).covered(&table, LIMITS).len()
        };
        // Eight blocks of 4 tokens are reserved.
        assert_eq!([covered(28), covered(29)], [1, 0]);
    }

    /// Returns how many blocks a sequence of `tier` that can become `longest` tokens long leaves free for other tiers,
    /// while premium does not use 8 blocks of its reservation, and standard 5.
    fn kept(tier: Tier, longest: u32, limits: Limits) -> u32 {
        let mut sequence = prompt(1, tier, 4, 0);
        sequence.text.max_tokens = longest - 4;
        blocks(Reservation::Hard).kept_for_others(&sequence, &[0, 8, 5, 0], limits)
    }

    #[test]
    fn a_sequence_leaves_other_tiers_what_they_do_not_use_of_their_reservations() {
        assert_eq!(Tier::ALL.map(|tier| kept(tier, 12, LIMITS)), [0, 5, 8, 13]);
    }

    #[test]
    fn a_sequence_that_cannot_fit_beside_the_reservations_ignores_them() {
        // Background can count on 20 of the 40 blocks: 80 tokens.
        assert_eq!(kept(Tier::Background, 80, LIMITS), 13);
        assert_eq!(kept(Tier::Background, 81, LIMITS), 0);
        let short_context = Limits { max_model_len: 80, ..LIMITS };
        assert_eq!(kept(Tier::Background, 81, short_context), 13);
    }

    #[test]
    fn the_most_that_a_candidate_leaves_free_counts_for_all() {
        let rank = |id| {
            let resume = (false, ResumeOrder::Rank);
            Rank::new(PriorityKey::UNPLACED, resume, Timestamp(0), SeqId(id))
        };
        let sequences = [Tier::Standard, Tier::Background, Tier::Premium];
        let sequences = sequences.map(|tier| prompt(1, tier, 4, 0));
        let candidates: Vec<Candidate<'_>> =
            sequences.iter().map(|sequence| Candidate::new(rank(1), sequence)).collect();
        let most = |candidates: &[Candidate<'_>]| {
            blocks(Reservation::Hard).most_kept_for_others(candidates, &[0, 8, 5, 0], LIMITS)
        };
        assert_eq!((most(&candidates), most(&candidates[..1]), most(&[])), (13, 8, 0));
    }
}
