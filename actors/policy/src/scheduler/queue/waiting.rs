//! Waiting sequences: their order of service, and indexes that spare a look at every one of them.
//!
//! Tens of thousands of sequences may wait while hundreds run. So the order of service is kept instead of being sorted
//! for every step, and counts and times are kept instead of being collected on every clock tick.

use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::sequence::Sequence;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use tiercel_device::{SeqId, Tier, Timestamp};

const TIERS: usize = Tier::ALL.len();

/// All sequences in phase `Waiting`, on hold or not.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    sequences: BTreeMap<SeqId, Sequence>,
    index: Index,
}

/// Index of the waiting sequences: ranks, times and sums, updated whenever a sequence is added or removed.
#[derive(Debug, Default, PartialEq)]
struct Index {
    /// Ranks of the waiting sequences that are not on hold.
    queue: BTreeSet<Rank>,
    /// Ranks of the waiting sequences that retain blocks.
    retaining: BTreeSet<Rank>,
    /// Times at which waiting sequences gain a tier by ageing, with their ids.
    ages: BTreeSet<(Timestamp, SeqId)>,
    /// Times at which the patience of waiting sequences without a first token ends, with their ids.
    patience_ends: BTreeSet<(Timestamp, SeqId)>,
    /// Number of waiting sequences that never had KV blocks, by tier.
    not_started: [u32; TIERS],
    /// Backlog: tokens left to compute of the waiting sequences that have no first token and are not on hold, by
    /// effective tier before ageing.
    backlog_tokens: [u64; TIERS],
}

impl Index {
    fn add(&mut self, sequence: &Sequence, rank: Rank) {
        if !sequence.held() {
            self.queue.insert(rank);
        }
        if sequence.kv.retained_tokens > 0 {
            self.retaining.insert(rank);
        }
        self.ages.extend(sequence.service.ages_at.map(|at| (at, sequence.id)));
        self.patience_ends.extend(patience_end(sequence).map(|at| (at, sequence.id)));
        self.not_started[sequence.tier.index()] += u32::from(!sequence.has_started());
        self.backlog_tokens[sequence.tier_before_ageing().index()] += backlog(sequence);
    }

    fn remove(&mut self, sequence: &Sequence, rank: Rank) {
        self.queue.remove(&rank);
        self.retaining.remove(&rank);
        if let Some(at) = sequence.service.ages_at {
            self.ages.remove(&(at, sequence.id));
        }
        if let Some(at) = patience_end(sequence) {
            self.patience_ends.remove(&(at, sequence.id));
        }
        self.not_started[sequence.tier.index()] -= u32::from(!sequence.has_started());
        self.backlog_tokens[sequence.tier_before_ageing().index()] -= backlog(sequence);
    }
}

impl Waiting {
    pub(crate) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.sequences.get(&seq)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Returns all sequences, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.values()
    }

    pub(crate) fn insert(&mut self, sequence: Sequence, rank: Rank) {
        self.index.add(&sequence, rank);
        self.sequences.insert(sequence.id, sequence);
    }

    /// Removes a sequence and returns it; `rank_of` must return the rank with which it was inserted.
    pub(crate) fn remove(
        &mut self,
        seq: SeqId,
        rank_of: impl FnOnce(&Sequence) -> Rank,
    ) -> Option<Sequence> {
        let sequence = self.sequences.remove(&seq)?;
        self.index.remove(&sequence, rank_of(&sequence));
        Some(sequence)
    }

    /// Removes all sequences and returns them, by id.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> + use<> {
        std::mem::take(self).sequences.into_values()
    }

    /// Returns the waiting sequences that are not on hold, from the rank `from` on, lowest rank first.
    pub(crate) fn queue_from(
        &self,
        from: Option<Rank>,
    ) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        let start = from.map_or(Bound::Unbounded, Bound::Included);
        self.ranked(self.index.queue.range((start, Bound::Unbounded)))
    }

    /// Whether any waiting sequence is not on hold.
    pub(crate) fn has_queue(&self) -> bool {
        !self.index.queue.is_empty()
    }

    /// Returns the waiting sequences that retain blocks, lowest rank first.
    pub(crate) fn retaining(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.ranked(self.index.retaining.iter())
    }

    fn ranked<'a>(
        &'a self,
        ranks: impl DoubleEndedIterator<Item = &'a Rank>,
    ) -> impl DoubleEndedIterator<Item = (Rank, &'a Sequence)> {
        ranks.filter_map(|rank| Some((*rank, self.sequences.get(&rank.seq())?)))
    }

    /// Returns the next sequence that gains a tier by ageing, at `now` or before.
    pub(crate) fn aged(&self, now: Timestamp) -> Option<SeqId> {
        self.index.ages.first().filter(|(at, _)| *at <= now).map(|(_, seq)| *seq)
    }

    /// Returns the sequences without a first token whose patience ends at `now` or before, by id.
    pub(crate) fn impatient(&self, now: Timestamp) -> BTreeSet<SeqId> {
        let ends = self.index.patience_ends.range(..=(now, SeqId(u64::MAX)));
        ends.map(|(_, seq)| *seq).collect()
    }

    /// Returns the number of waiting sequences that never had KV blocks, by tier.
    pub(crate) fn not_started(&self) -> [u32; TIERS] {
        self.index.not_started
    }

    /// Returns the tokens left to compute of the waiting sequences that have no first token and are not on hold, by
    /// effective tier before ageing.
    pub(crate) fn backlog_tokens(&self) -> [u64; TIERS] {
        self.index.backlog_tokens
    }

    /// Whether the index agrees with the waiting sequences.
    pub(crate) fn index_is_right(&self, rank_of: impl Fn(&Sequence) -> Rank) -> bool {
        let mut index = Index::default();
        self.iter().for_each(|sequence| index.add(sequence, rank_of(sequence)));
        index == self.index
    }
}

/// Returns the end of a sequence's patience; `None` if the sequence has its first token or waits for ever.
fn patience_end(sequence: &Sequence) -> Option<Timestamp> {
    let us = sequence.service.patience.left_us().filter(|_| sequence.first_token_at.is_none())?;
    Some(Timestamp(sequence.arrival.0.saturating_add(us)))
}

/// Returns the number of tokens left to compute of a sequence without a first token; 0 for a sequence on hold or with a
/// first token.
fn backlog(sequence: &Sequence) -> u64 {
    let waits = sequence.output_len() == 0 && !sequence.held();
    if waits { u64::from(sequence.left_to_compute()) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::queue::priority_key::PriorityKey;
    use crate::scheduler::tests::{BLOCK, sequence};
    use tiercel_config::ResumeOrder;

    fn rank(sequence: &Sequence) -> Rank {
        let resume = (sequence.has_started(), ResumeOrder::Rank);
        Rank::new(PriorityKey::UNPLACED, resume, sequence.arrival, sequence.id)
    }

    /// Returns two standard sequences and a background one that wait; the first was preempted.
    fn three() -> Waiting {
        let mut waiting = Waiting::default();
        for (id, tier) in [(1, Tier::Standard), (2, Tier::Standard), (3, Tier::Background)] {
            let mut sequence = Sequence::new(sequence(id, tier, 9), BLOCK);
            sequence.kv.cached_tokens = (id == 1).then_some(0);
            let rank = rank(&sequence);
            waiting.insert(sequence, rank);
        }
        waiting
    }

    #[test]
    fn sequences_that_never_ran_are_counted_by_tier_and_all_sequences_together() {
        let mut waiting = three();
        assert_eq!((waiting.len(), waiting.not_started()), (3, [0, 0, 1, 1]));
        waiting.remove(SeqId(2), rank).expect("the sequence waits");
        assert_eq!((waiting.len(), waiting.not_started()), (2, [0, 0, 0, 1]));
    }

    #[test]
    fn a_wrong_index_is_found() {
        let mut waiting = three();
        assert!(waiting.index_is_right(rank));
        waiting.index.not_started[0] += 1;
        assert!(!waiting.index_is_right(rank));
    }

    #[test]
    fn patience_ends_after_the_arrival_unless_a_sequence_has_a_token_or_waits_for_ever() {
        let mut sequence = Sequence::new(sequence(7, Tier::Standard, 9), BLOCK);
        assert_eq!(patience_end(&sequence), Some(Timestamp(100_000_007)));
        sequence.first_token_at = Some(Timestamp(8));
        assert_eq!(patience_end(&sequence), None);
        sequence.first_token_at = None;
        sequence.service.patience.us = None;
        assert_eq!(patience_end(&sequence), None);
    }
}
