//! All live sequences: those that hold blocks, and those that wait for some, in order of service.
//!
//! Thousands may wait while hundreds run, so the queue is kept in order instead of being sorted for every
//! step. Whatever changes a sequence's phase, holds or rank goes through [`Roster::change`].

use crate::scheduler::rank::Rank;
use crate::scheduler::sequence::{Phase, Sequence};
use std::collections::{BTreeMap, BTreeSet};
use tiercel_config::ResumeOrder;
use tiercel_device::{SeqId, Timestamp};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Roster {
    /// In every phase but `Waiting`.
    active: BTreeMap<SeqId, Sequence>,
    /// In phase `Waiting`, held or not.
    waiting: BTreeMap<SeqId, Sequence>,
    /// Those of `waiting` that are not held, best first.
    queue: BTreeSet<Rank>,
    /// When waiting sequences gain a tier.
    ageing: BTreeSet<(Timestamp, SeqId)>,
    resume: ResumeOrder,
}

impl Roster {
    pub(crate) fn new(resume: ResumeOrder) -> Roster {
        Roster {
            active: BTreeMap::new(),
            waiting: BTreeMap::new(),
            queue: BTreeSet::new(),
            ageing: BTreeSet::new(),
            resume,
        }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.active.get(&seq).or_else(|| self.waiting.get(&seq))
    }

    /// One that is not in phase `Waiting`, to change what its place does not depend on.
    pub(crate) fn active_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.active.get_mut(&seq)
    }

    pub(crate) fn contains(&self, seq: SeqId) -> bool {
        self.get(seq).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// Those that hold blocks, oldest first.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Sequence> {
        self.active.values()
    }

    /// Those that wait and are not held, in order of service.
    pub(crate) fn queue(&self) -> impl Iterator<Item = (Rank, &Sequence)> {
        self.queue.iter().filter_map(|rank| Some((*rank, self.waiting.get(&rank.seq())?)))
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
            if !sequence.held() {
                self.queue.insert(Rank::of(&sequence, self.resume));
            }
            if let Some(at) = sequence.ages_at {
                self.ageing.insert((at, sequence.id));
            }
            self.waiting.insert(sequence.id, sequence);
        } else {
            self.active.insert(sequence.id, sequence);
        }
    }

    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        if let Some(sequence) = self.waiting.remove(&seq) {
            self.queue.remove(&Rank::of(&sequence, self.resume));
            if let Some(at) = sequence.ages_at {
                self.ageing.remove(&(at, seq));
            }
            return Some(sequence);
        }
        self.active.remove(&seq)
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
        self.ageing.clear();
        let active = std::mem::take(&mut self.active);
        active.into_values().chain(std::mem::take(&mut self.waiting).into_values())
    }

    /// The next sequence that has waited long enough by `now` to gain a tier.
    pub(crate) fn due_to_age(&self, now: Timestamp) -> Option<SeqId> {
        self.ageing.first().filter(|(at, _)| *at <= now).map(|(_, seq)| *seq)
    }

    /// Checks that everybody is where it belongs.
    pub(crate) fn violation(&self) -> Option<String> {
        let misplaced = |sequence: &&Sequence| sequence.phase == Phase::Waiting;
        if let Some(sequence) = self.active.values().find(misplaced) {
            return Some(format!("{} waits among those that hold blocks", sequence.id));
        }
        if let Some(sequence) = self.waiting.values().find(|s| !misplaced(s)) {
            return Some(format!("{} holds blocks among those that wait", sequence.id));
        }
        let waiting = self.waiting.values().filter(|sequence| !sequence.held());
        let queue: BTreeSet<Rank> = waiting.map(|s| Rank::of(s, self.resume)).collect();
        if queue != self.queue {
            return Some("the queue is not in order of rank".into());
        }
        let ages = self.waiting.values().filter_map(|s| Some((s.ages_at?, s.id)));
        let ages: BTreeSet<(Timestamp, SeqId)> = ages.collect();
        (ages != self.ageing).then(|| "who gains a tier by waiting is not known".into())
    }
}
