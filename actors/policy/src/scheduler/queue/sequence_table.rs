//! The table of all live sequences: active ones (which hold KV blocks) and waiting ones, each in order of service.
//!
//! Thousands of sequences may wait while hundreds run, so the queue stays in order instead of being sorted for every
//! step. To change its phase, holds or rank, a sequence is removed and inserted again, as [`SequenceTable::change`]
//! does.

use crate::by_id::ById;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::queue::waiting::Waiting;
use crate::scheduler::sequence::{Phase, Sequence};
use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, Tier, Timestamp};

/// All live sequences: active ones (which hold KV blocks) and waiting ones, each in order of service.
#[derive(Debug)]
pub(crate) struct SequenceTable {
    /// Active sequences: those in every phase but `Waiting`.
    active: ById<Sequence>,
    /// Ranks of the active sequences, in order of service, with their array positions in `active`.
    order: Vec<(Rank, u32)>,
    /// Sequences in phase `Waiting`, those on hold included.
    waiting: Waiting,
    /// Whether preempted sequences go before sequences that have not run yet, after them, or among them.
    resume: ResumeOrder,
}

impl SequenceTable {
    pub(crate) fn new(resume: ResumeOrder) -> SequenceTable {
        SequenceTable {
            active: ById::default(),
            order: Vec::new(),
            waiting: Waiting::default(),
            resume,
        }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.active.get(seq).or_else(|| self.waiting.get(seq))
    }

    /// Returns an active sequence, for changes of fields other than its phase and those that decide its rank.
    pub(crate) fn active_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.active.get_mut(seq)
    }

    /// Changes a sequence. Of an active sequence, the phase and the fields that decide its rank must stay as they are.
    /// Returns `None` if the sequence is unknown.
    pub(crate) fn update<T>(
        &mut self,
        seq: SeqId,
        change: impl FnOnce(&mut Sequence) -> T,
    ) -> Option<T> {
        match self.active.get_mut(seq) {
            Some(sequence) => Some(change(sequence)),
            None => self.change(seq, change),
        }
    }

    pub(crate) fn contains(&self, seq: SeqId) -> bool {
        self.get(seq).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// Returns the number of active sequences (those that hold KV blocks).
    pub(crate) fn active_len(&self) -> usize {
        self.order.len()
    }

    /// Returns the active sequences (those that hold KV blocks) in order of service.
    pub(crate) fn active(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.order.iter().filter_map(|(rank, place)| Some((*rank, self.active.at(*place)?)))
    }

    /// Returns the preempted sequences that retain blocks on the device, in order of service.
    pub(crate) fn retaining(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.waiting.retaining()
    }

    /// Returns the waiting sequences that are not on hold, in order of service.
    pub(crate) fn queue(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.waiting.queue_from(None)
    }

    /// Returns the waiting sequences whose payer is `tier`, in order of service; none if tiers do not share time.
    pub(crate) fn queue_paid_by(&self, tier: Tier) -> impl Iterator<Item = (Rank, &Sequence)> {
        // No sequence has the system tier as its payer.
        let pays = tier > Tier::System;
        let from = pays.then(|| self.waiting.queue_from(Some(Rank::first_paid_by(tier))));
        let all = from.into_iter().flatten();
        all.take_while(move |(rank, _)| rank.class().payer() == Some(tier))
    }

    /// Returns the backlog of each tier: tokens left to compute of all waiting sequences that have no first token and
    /// are not on hold, by effective tier before ageing.
    pub(crate) fn backlog_tokens(&self) -> [u64; Tier::ALL.len()] {
        self.waiting.backlog_tokens()
    }

    /// Returns the number of waiting sequences, and by tier how many of them never had KV blocks.
    pub(crate) fn waiting_count(&self) -> (usize, [u32; Tier::ALL.len()]) {
        (self.waiting.len(), self.waiting.not_started())
    }

    /// Returns the sequences whose patience may have ended at `now`, which the caller must check: all active ones, then
    /// waiting ones without a first token whose patience has ended, each by id.
    pub(crate) fn impatient(&self, now: Timestamp) -> impl Iterator<Item = &Sequence> {
        let waiting = self.waiting.impatient(now);
        self.active.values().chain(waiting.into_iter().filter_map(|seq| self.waiting.get(seq)))
    }

    /// Whether any sequence waits for blocks and is not on hold.
    pub(crate) fn has_queue(&self) -> bool {
        self.waiting.has_queue()
    }

    /// Returns all live sequences, active ones (which hold KV blocks) first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.active.values().chain(self.waiting.iter())
    }

    /// Adds a sequence to the active or the waiting ones, by its phase, at its place in the order of service.
    pub(crate) fn insert(&mut self, sequence: Sequence) {
        let rank = rank_of(&sequence, self.resume);
        if sequence.phase == Phase::Waiting {
            self.waiting.insert(sequence, rank);
        } else {
            let place = self.active.insert(sequence.id, sequence);
            let at = self.order.partition_point(|(other, _)| *other < rank);
            self.order.insert(at, (rank, place));
        }
    }

    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        let resume = self.resume;
        let waiting = self.waiting.remove(seq, |sequence| rank_of(sequence, resume));
        if waiting.is_some() {
            return waiting;
        }
        let sequence = self.active.remove(seq)?;
        let rank = rank_of(&sequence, self.resume);
        if let Ok(at) = self.order.binary_search_by_key(&rank, |(rank, _)| *rank) {
            self.order.remove(at);
        }
        Some(sequence)
    }

    /// Changes any field of a sequence, and moves the sequence to its new place in the table. Returns `None` if the
    /// sequence is unknown.
    pub(crate) fn change<T>(
        &mut self,
        seq: SeqId,
        change: impl FnOnce(&mut Sequence) -> T,
    ) -> Option<T> {
        let mut sequence = self.remove(seq)?;
        let result = change(&mut sequence);
        self.insert(sequence);
        Some(result)
    }

    /// Removes all sequences from the table and returns them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> + use<> {
        self.order.clear();
        self.active.drain().chain(self.waiting.drain())
    }

    /// Returns a waiting sequence that has to gain a tier by ageing at `now` or before, if there is one.
    pub(crate) fn aged(&self, now: Timestamp) -> Option<SeqId> {
        self.waiting.aged(now)
    }

    /// Checks that the table's orders, sets and sums agree with its sequences. Returns the violation in words; `None`
    /// if there is none.
    pub(crate) fn violation(&self) -> Option<String> {
        let misplaced = |sequence: &&Sequence| sequence.phase == Phase::Waiting;
        if let Some(sequence) = self.active.values().find(misplaced) {
            return Some(format!("{} waits among active sequences", sequence.id));
        }
        if let Some(sequence) = self.waiting.iter().find(|s| !misplaced(s)) {
            return Some(format!("{} is active among waiting sequences", sequence.id));
        }
        if !self.waiting.index_is_right(|sequence| rank_of(sequence, self.resume)) {
            return Some("the index of waiting sequences is wrong".into());
        }
        let place = |sequence: &Sequence| self.active.place_of(sequence.id);
        let active =
            self.active.values().filter_map(|s| Some((rank_of(s, self.resume), place(s)?)));
        let mut order: Vec<(Rank, u32)> = active.collect();
        order.sort_unstable();
        (order != self.order).then(|| "active sequences are not in order of rank".into())
    }
}

/// Returns the rank of a sequence. A preempted sequence ranks as preempted only until it gets its blocks back.
pub(crate) fn rank_of(sequence: &Sequence, resume: ResumeOrder) -> Rank {
    let preempted = sequence.phase == Phase::Waiting && sequence.has_started();
    Rank::new(sequence.service.key, (preempted, resume), sequence.arrival, sequence.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::budget::fixtures::prompt;

    /// Returns a table of three running sequences and two that wait, one of which was preempted.
    fn table() -> SequenceTable {
        let mut table = SequenceTable::new(ResumeOrder::Rank);
        for id in 1..=5 {
            let mut sequence = prompt(id, Tier::Standard, 9, 0);
            if id > 3 {
                sequence.phase = Phase::Waiting;
                sequence.kv.cached_tokens = (id == 4).then_some(0);
            }
            table.insert(sequence);
        }
        table
    }

    #[test]
    fn active_and_waiting_sequences_are_counted() {
        let table = table();
        assert_eq!(table.active_len(), 3);
        assert_eq!(table.waiting_count(), (2, [0, 0, 1, 0]));
    }

    #[test]
    fn a_table_out_of_order_is_found() {
        let mut table = table();
        assert_eq!(table.violation(), None);
        table.order.swap(0, 2);
        let violation = table.violation().expect("the order is wrong");
        assert_eq!(violation, "active sequences are not in order of rank");
    }

    #[test]
    fn a_sequence_in_the_wrong_phase_is_found() {
        let mut waits = table();
        waits.active_mut(SeqId(2)).expect("the sequence runs").phase = Phase::Waiting;
        let violation = waits.violation().expect("the sequence is in the wrong place");
        assert!(violation.ends_with("waits among active sequences"), "{violation}");
    }
}
