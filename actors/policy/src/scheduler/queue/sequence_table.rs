//! The table of all live sequences: active ones, which hold blocks, and waiting ones, each in order of service.
//!
//! Thousands of sequences may wait while hundreds run, so the queue stays in order instead of being sorted for every
//! step. Every change of a sequence's phase, holds or rank goes through [`SequenceTable::change`].

use crate::by_id::ById;
use crate::scheduler::queue::priority_key::Rank;
use crate::scheduler::sequence::{Phase, Sequence};
use std::collections::{BTreeMap, BTreeSet};
use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, Tier, Timestamp};

/// All live sequences: active ones, which hold blocks, and waiting ones, each in order of service.
#[derive(Debug)]
pub(crate) struct SequenceTable {
    /// Sequences in every phase but `Waiting`.
    active: ById<Sequence>,
    /// Ranks of the active sequences and their positions in `active`, lowest rank first.
    order: Vec<(Rank, u32)>,
    /// Sequences in phase `Waiting`, on hold or not.
    waiting: BTreeMap<SeqId, Sequence>,
    /// Ranks of the waiting sequences that are not on hold.
    queue: BTreeSet<Rank>,
    /// Ranks of the waiting sequences that retain blocks, on hold or not.
    retaining: BTreeSet<Rank>,
    /// Times at which waiting sequences gain a tier by ageing.
    timers: BTreeSet<(Timestamp, SeqId)>,
    /// Tokens left to compute of the waiting sequences without a first token, by effective tier before ageing.
    unstarted_tokens: [u64; Tier::ALL.len()],
    /// Whether sequences that resume go before sequences that start, after them, or among them.
    resume: ResumeOrder,
}

impl SequenceTable {
    pub(crate) fn new(resume: ResumeOrder) -> SequenceTable {
        SequenceTable {
            active: ById::default(),
            order: Vec::new(),
            waiting: BTreeMap::new(),
            queue: BTreeSet::new(),
            retaining: BTreeSet::new(),
            timers: BTreeSet::new(),
            unstarted_tokens: [0; Tier::ALL.len()],
            resume,
        }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.active.get(seq).or_else(|| self.waiting.get(&seq))
    }

    /// Returns an active sequence, to change fields that its rank and its phase do not depend on.
    pub(crate) fn active_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.active.get_mut(seq)
    }

    /// Changes a sequence: of an active one only fields that its rank and its phase do not depend on. Returns `None` if
    /// the sequence is not live.
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

    /// Returns the number of active sequences.
    pub(crate) fn active_len(&self) -> usize {
        self.order.len()
    }

    /// Returns the active sequences, lowest rank first.
    pub(crate) fn active(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.order.iter().filter_map(|(rank, place)| Some((*rank, self.active.at(*place)?)))
    }

    /// Returns the waiting sequences that retain blocks, lowest rank first.
    pub(crate) fn retaining(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.retaining.iter().filter_map(|rank| Some((*rank, self.waiting.get(&rank.seq())?)))
    }

    /// Returns the waiting sequences that are not on hold, lowest rank first.
    pub(crate) fn queue(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.queue.iter().filter_map(|rank| Some((*rank, self.waiting.get(&rank.seq())?)))
    }

    /// Returns the waiting best-effort sequences of a tier in order of service; none if tiers do not share time.
    pub(crate) fn best_effort_queue(&self, tier: Tier) -> impl Iterator<Item = (Rank, &Sequence)> {
        let from = Rank::first_of_best_effort(tier);
        // System requests have no share.
        let from_there = (tier > Tier::System).then(|| self.queue.range(from..));
        let all = from_there.into_iter().flatten();
        let all = all.take_while(move |rank| rank.best_effort_tier() == tier.index() as u8);
        all.filter_map(|rank| Some((*rank, self.waiting.get(&rank.seq())?)))
    }

    /// Returns the tokens left to compute of the waiting sequences without a first token, by tier.
    pub(crate) fn unstarted_tokens(&self) -> [u64; Tier::ALL.len()] {
        self.unstarted_tokens
    }

    /// Whether a sequence waits that is not on hold.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns all sequences, active ones first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.active.values().chain(self.waiting.values())
    }

    /// Adds a sequence where its phase, its holds and its rank put it.
    pub(crate) fn insert(&mut self, sequence: Sequence) {
        if sequence.phase == Phase::Waiting {
            let rank = rank_of(&sequence, self.resume);
            if !sequence.held() {
                self.queue.insert(rank);
            }
            if sequence.kv.retained > 0 {
                self.retaining.insert(rank);
            }
            if let Some(at) = sequence.service.ages_at {
                self.timers.insert((at, sequence.id));
            }
            self.unstarted_tokens[sequence.effective_tier().index()] += unstarted(&sequence);
            self.waiting.insert(sequence.id, sequence);
        } else {
            let rank = rank_of(&sequence, self.resume);
            let place = self.active.insert(sequence.id, sequence);
            let at = self.order.partition_point(|(other, _)| *other < rank);
            self.order.insert(at, (rank, place));
        }
    }

    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        if let Some(sequence) = self.waiting.remove(&seq) {
            let rank = rank_of(&sequence, self.resume);
            self.queue.remove(&rank);
            self.retaining.remove(&rank);
            self.unstarted_tokens[sequence.effective_tier().index()] -= unstarted(&sequence);
            if let Some(at) = sequence.service.ages_at {
                self.timers.remove(&(at, seq));
            }
            return Some(sequence);
        }
        let sequence = self.active.remove(seq)?;
        let rank = rank_of(&sequence, self.resume);
        if let Ok(at) = self.order.binary_search_by_key(&rank, |(rank, _)| *rank) {
            self.order.remove(at);
        }
        Some(sequence)
    }

    /// Changes a sequence in any way and moves it to where it then belongs. Returns `None` if the sequence is not live.
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

    /// Removes all sequences and returns them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> + use<> {
        self.queue.clear();
        self.retaining.clear();
        self.timers.clear();
        self.order.clear();
        self.unstarted_tokens = [0; Tier::ALL.len()];
        self.active.drain().chain(std::mem::take(&mut self.waiting).into_values())
    }

    /// Returns the next sequence that gains a tier by ageing, at `now` or before.
    pub(crate) fn aged(&self, now: Timestamp) -> Option<SeqId> {
        self.timers.first().filter(|(at, _)| *at <= now).map(|(_, seq)| *seq)
    }

    /// Returns what is wrong with the order of the table, in words; `None` if nothing is.
    pub(crate) fn violation(&self) -> Option<String> {
        let misplaced = |sequence: &&Sequence| sequence.phase == Phase::Waiting;
        if let Some(sequence) = self.active.values().find(misplaced) {
            return Some(format!("{} waits among active sequences", sequence.id));
        }
        if let Some(sequence) = self.waiting.values().find(|s| !misplaced(s)) {
            return Some(format!("{} is active among waiting sequences", sequence.id));
        }
        let waiting = self.waiting.values().filter(|sequence| !sequence.held());
        let queue: BTreeSet<Rank> = waiting.map(|s| rank_of(s, self.resume)).collect();
        if queue != self.queue {
            return Some("the queue is not in order of rank".into());
        }
        let retaining = self.waiting.values().filter(|sequence| sequence.kv.retained > 0);
        let retaining: BTreeSet<Rank> = retaining.map(|s| rank_of(s, self.resume)).collect();
        if retaining != self.retaining {
            return Some("the set of waiting sequences that retain blocks is wrong".into());
        }
        let place = |sequence: &Sequence| self.active.place_of(sequence.id);
        let active =
            self.active.values().filter_map(|s| Some((rank_of(s, self.resume), place(s)?)));
        let mut order: Vec<(Rank, u32)> = active.collect();
        order.sort_unstable();
        if order != self.order {
            return Some("active sequences are not in order of rank".into());
        }
        let mut tokens = [0; Tier::ALL.len()];
        for sequence in self.waiting.values() {
            tokens[sequence.effective_tier().index()] += unstarted(sequence);
        }
        if tokens != self.unstarted_tokens {
            return Some("the tokens of waiting sequences are wrong".into());
        }
        let timers = self.waiting.values().filter_map(|s| Some((s.service.ages_at?, s.id)));
        let timers: BTreeSet<(Timestamp, SeqId)> = timers.collect();
        (timers != self.timers).then(|| "the times at which sequences gain a tier are wrong".into())
    }
}

/// Returns the rank of a sequence. Only a waiting sequence ranks as preempted: once it runs, it ranks as it did before.
fn rank_of(sequence: &Sequence, resume: ResumeOrder) -> Rank {
    let preempted = sequence.phase == Phase::Waiting && sequence.was_open();
    Rank::new(sequence.service.key, (preempted, resume), sequence.arrival, sequence.id)
}

/// Returns the tokens that a sequence without a first token still has to compute; 0 for a sequence on hold.
fn unstarted(sequence: &Sequence) -> u64 {
    let waits = sequence.output_len() == 0 && !sequence.held();
    if waits { u64::from(sequence.left_to_compute()) } else { 0 }
}
