//! All live sequences: those that hold blocks, and those that wait for some, in order of service.
//!
//! Thousands may wait while hundreds run, so the queue is kept in order instead of being sorted for every
//! step. Whatever changes a sequence's phase, holds or rank goes through [`Roster::change`].

use crate::by_id::ById;
use crate::scheduler::rank::Rank;
use crate::scheduler::sequence::{Phase, Sequence};
use std::collections::{BTreeMap, BTreeSet};
use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, Tier, Timestamp};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Roster {
    /// In every phase but `Waiting`.
    active: ById<Sequence>,
    /// Ranks of those and their places in `active`, best first.
    order: Vec<(Rank, u32)>,
    /// In phase `Waiting`, held or not.
    waiting: BTreeMap<SeqId, Sequence>,
    /// Those of `waiting` that are not held, best first.
    queue: BTreeSet<Rank>,
    /// Those of `waiting` that kept blocks, held or not, best first.
    keeping: BTreeSet<Rank>,
    /// When waiting sequences gain a tier, or are late.
    timers: BTreeSet<(Timestamp, SeqId)>,
    /// Tokens that those of `queue` that had no first token still have to compute, by tier.
    unstarted_tokens: [u64; Tier::ALL.len()],
    resume: ResumeOrder,
}

impl Roster {
    pub(crate) fn new(resume: ResumeOrder) -> Roster {
        Roster {
            active: ById::default(),
            order: Vec::new(),
            waiting: BTreeMap::new(),
            queue: BTreeSet::new(),
            keeping: BTreeSet::new(),
            timers: BTreeSet::new(),
            unstarted_tokens: [0; Tier::ALL.len()],
            resume,
        }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.active.get(seq).or_else(|| self.waiting.get(&seq))
    }

    /// One that is not in phase `Waiting`, to change what its place does not depend on.
    pub(crate) fn active_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.active.get_mut(seq)
    }

    /// Changes what the place of one that holds blocks does not depend on; `None` if it is not live.
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

    /// How many hold blocks.
    pub(crate) fn active_len(&self) -> usize {
        self.order.len()
    }

    /// Those that hold blocks, best-ranked first.
    pub(crate) fn active(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.order.iter().filter_map(|(rank, place)| Some((*rank, self.active.at(*place)?)))
    }

    /// Those that wait and kept blocks, in order of service.
    pub(crate) fn keeping(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.keeping.iter().filter_map(|rank| Some((*rank, self.waiting.get(&rank.seq())?)))
    }

    /// Those that wait and are not held, in order of service.
    pub(crate) fn queue(&self) -> impl DoubleEndedIterator<Item = (Rank, &Sequence)> {
        self.queue.iter().filter_map(|rank| Some((*rank, self.waiting.get(&rank.seq())?)))
    }

    /// Those of them that have a tier's share of what work with targets leaves, in order of service.
    pub(crate) fn queue_of_rest(&self, tier: Tier) -> impl Iterator<Item = (Rank, &Sequence)> {
        let from = Rank::first_of_rest(tier);
        // The system's own have no share.
        let from_there = (tier > Tier::System).then(|| self.queue.range(from..));
        let all = from_there.into_iter().flatten();
        let all = all.take_while(move |rank| rank.rest() == tier.index() as u8);
        all.filter_map(|rank| Some((*rank, self.waiting.get(&rank.seq())?)))
    }

    /// Tokens that those that wait and had no first token still have to compute, by tier.
    pub(crate) fn unstarted_tokens(&self) -> [u64; Tier::ALL.len()] {
        self.unstarted_tokens
    }

    /// Whether anybody waits who is not held.
    pub(crate) fn somebody_waits(&self) -> bool {
        !self.queue.is_empty()
    }

    /// All of them, those that hold blocks first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.active.values().chain(self.waiting.values())
    }

    /// A new one.
    pub(crate) fn insert(&mut self, sequence: Sequence) {
        if sequence.phase == Phase::Waiting {
            let rank = Rank::of(&sequence, self.resume);
            if !sequence.held() {
                self.queue.insert(rank);
            }
            if sequence.kept > 0 {
                self.keeping.insert(rank);
            }
            if let Some(at) = sequence.timer() {
                self.timers.insert((at, sequence.id));
            }
            self.unstarted_tokens[sequence.served_as().index()] += unstarted(&sequence);
            self.waiting.insert(sequence.id, sequence);
        } else {
            let rank = Rank::of(&sequence, self.resume);
            let place = self.active.insert(sequence.id, sequence);
            let at = self.order.partition_point(|(other, _)| *other < rank);
            self.order.insert(at, (rank, place));
        }
    }

    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        if let Some(sequence) = self.waiting.remove(&seq) {
            let rank = Rank::of(&sequence, self.resume);
            self.queue.remove(&rank);
            self.keeping.remove(&rank);
            self.unstarted_tokens[sequence.served_as().index()] -= unstarted(&sequence);
            if let Some(at) = sequence.timer() {
                self.timers.remove(&(at, seq));
            }
            return Some(sequence);
        }
        let sequence = self.active.remove(seq)?;
        let rank = Rank::of(&sequence, self.resume);
        if let Ok(at) = self.order.binary_search_by_key(&rank, |(rank, _)| *rank) {
            self.order.remove(at);
        }
        Some(sequence)
    }

    /// Changes a sequence in any way and puts it where it then belongs; `None` if it is not live.
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

    /// Takes everybody out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> + use<> {
        self.queue.clear();
        self.keeping.clear();
        self.timers.clear();
        self.order.clear();
        self.unstarted_tokens = [0; Tier::ALL.len()];
        self.active.drain().chain(std::mem::take(&mut self.waiting).into_values())
    }

    /// The next sequence that has waited by `now` until it gains a tier or is late.
    pub(crate) fn timed_out(&self, now: Timestamp) -> Option<SeqId> {
        self.timers.first().filter(|(at, _)| *at <= now).map(|(_, seq)| *seq)
    }

    /// Checks that everybody is where it belongs.
    pub(crate) fn violation(&self) -> Option<String> {
        let misplaced = |sequence: &&Sequence| sequence.phase == Phase::Waiting;
        if let Some(sequence) = self.active.values().find(misplaced) {
            return Some(format!("{} waits, but is listed as holding blocks", sequence.id));
        }
        if let Some(sequence) = self.waiting.values().find(|s| !misplaced(s)) {
            return Some(format!("{} holds blocks, but is listed as waiting", sequence.id));
        }
        let waiting = self.waiting.values().filter(|sequence| !sequence.held());
        let queue: BTreeSet<Rank> = waiting.map(|s| Rank::of(s, self.resume)).collect();
        if queue != self.queue {
            return Some("the queue is not in order of rank".into());
        }
        let keeping = self.waiting.values().filter(|sequence| sequence.kept > 0);
        let keeping: BTreeSet<Rank> = keeping.map(|s| Rank::of(s, self.resume)).collect();
        if keeping != self.keeping {
            return Some("the list of waiting sequences with retained blocks is wrong".into());
        }
        let place = |sequence: &Sequence| self.active.place_of(sequence.id);
        let active =
            self.active.values().filter_map(|s| Some((Rank::of(s, self.resume), place(s)?)));
        let mut order: Vec<(Rank, u32)> = active.collect();
        order.sort_unstable();
        if order != self.order {
            return Some("sequences that hold blocks are not in order of rank".into());
        }
        let mut tokens = [0; Tier::ALL.len()];
        for sequence in self.waiting.values() {
            tokens[sequence.served_as().index()] += unstarted(sequence);
        }
        if tokens != self.unstarted_tokens {
            return Some("the number of tokens that wait is wrong".into());
        }
        let timers = self.waiting.values().filter_map(|s| Some((s.timer()?, s.id)));
        let timers: BTreeSet<(Timestamp, SeqId)> = timers.collect();
        (timers != self.timers)
            .then(|| "the times at which sequences age or become late are wrong".into())
    }
}

/// Tokens that a sequence without a first token still has to compute. One that is held takes nobody's time.
fn unstarted(sequence: &Sequence) -> u64 {
    let waits = sequence.output_len() == 0 && !sequence.held();
    if waits { u64::from(sequence.left_to_compute()) } else { 0 }
}
