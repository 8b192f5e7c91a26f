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
    never_open: [u32; TIERS],
    /// Tokens left to compute of the waiting sequences that have no first token and are not on hold, by effective tier
    /// before ageing.
    unstarted_tokens: [u64; TIERS],
}

impl Index {
    fn add(&mut self, sequence: &Sequence, rank: Rank) {
        if !sequence.held() {
            self.queue.insert(rank);
        }
        if sequence.kv.retained > 0 {
            self.retaining.insert(rank);
        }
        self.ages.extend(sequence.service.ages_at.map(|at| (at, sequence.id)));
        self.patience_ends.extend(patience_end(sequence).map(|at| (at, sequence.id)));
        self.never_open[sequence.tier.index()] += u32::from(!sequence.was_open());
        self.unstarted_tokens[sequence.tier_before_ageing().index()] += unstarted(sequence);
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
        self.never_open[sequence.tier.index()] -= u32::from(!sequence.was_open());
        self.unstarted_tokens[sequence.tier_before_ageing().index()] -= unstarted(sequence);
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
    pub(crate) fn never_open(&self) -> [u32; TIERS] {
        self.index.never_open
    }

    /// Returns the tokens left to compute of the waiting sequences that have no first token and are not on hold, by
    /// effective tier before ageing.
    pub(crate) fn unstarted_tokens(&self) -> [u64; TIERS] {
        self.index.unstarted_tokens
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
    let us = sequence.service.patience.us.filter(|_| sequence.first_token_at.is_none())?;
    Some(Timestamp(sequence.arrival.0.saturating_add(us)))
}

/// Returns the number of tokens left to compute of a sequence without a first token; 0 for a sequence on hold or with a
/// first token.
fn unstarted(sequence: &Sequence) -> u64 {
    let waits = sequence.output_len() == 0 && !sequence.held();
    if waits { u64::from(sequence.left_to_compute()) } else { 0 }
}
