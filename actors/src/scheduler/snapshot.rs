//! Snapshots of all live sequences, for listings. The Scheduler takes a snapshot in slices. Between two slices all
//! actors of its thread handle the messages that they have, so that a listing of thousands of requests delays a step by
//! a slice at most.

use crate::request::Snapshot;
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use tiercel_device::{SeqId, Tier, Timestamp};
use tiercel_policy::scheduler::Scheduler;
use tokio::sync::watch;

/// Most sequences in a slice: those that are added to a snapshot at once, which takes some 10 us.
const SLICE: usize = 64;

/// Channel on which an engine publishes its latest snapshot.
pub type Snapshots = watch::Sender<Arc<Snapshot>>;

/// Live sequences, and the snapshot of them that is being taken.
#[derive(Debug)]
pub(crate) struct SnapshotTaker {
    /// Ids of all live sequences. A snapshot goes through them in order, so it misses no sequence and holds none twice,
    /// whatever happens to them meanwhile.
    live: BTreeSet<SeqId>,
    /// Snapshot that is being taken.
    partial: Option<Snapshot>,
    published: Snapshots,
}

impl SnapshotTaker {
    pub(crate) fn new(published: Snapshots) -> SnapshotTaker {
        SnapshotTaker { live: BTreeSet::new(), partial: None, published }
    }

    pub(crate) fn enters(&mut self, seq: SeqId) {
        self.live.insert(seq);
    }

    pub(crate) fn leaves(&mut self, seq: SeqId) {
        self.live.remove(&seq);
    }

    /// Begins a snapshot, unless one is being taken; returns whether it began one.
    pub(crate) fn begin(&mut self, core: &Scheduler, now: Timestamp) -> bool {
        if self.partial.is_some() {
            return false;
        }
        let drain_us = Tier::ALL.map(|tier| core.drain_us(tier, now));
        let sequences = Vec::with_capacity(self.live.len());
        self.partial = Some(Snapshot { at: now, step: core.last_step(), sequences, drain_us });
        true
    }

    /// Adds the next sequences to the snapshot that is being taken. If no sequence is left, publishes the snapshot
    /// instead and returns false. Returns true as long as another call is needed.
    pub(crate) fn next_slice(&mut self, core: &Scheduler, now: Timestamp) -> bool {
        let Some(mut snapshot) = self.partial.take() else { return false };
        let last = snapshot.sequences.last().map(|view| view.seq);
        let rest = self.live.range((last.map_or(Unbounded, Excluded), Unbounded));
        let before = snapshot.sequences.len();
        snapshot.sequences.extend(rest.take(SLICE).filter_map(|seq| core.inspect(*seq, now)));
        if snapshot.sequences.len() > before {
            self.partial = Some(snapshot);
            return true;
        }
        // Replace the value also if no handle of the engine is left to read it.
        self.published.send_replace(Arc::new(snapshot));
        false
    }
}
