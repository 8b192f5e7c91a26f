//! Queues of copies between the device pool and the host pool. Copies of one direction are queued in order. They start
//! when the steps that use their block have completed and the limit on blocks in transit allows it. Sequences that wait
//! for the same content share one copy.
//!
//! Mirroring copies (made ahead of need) have a queue of their own with the lowest priority: they go one batch at a
//! time, and only while no sequence waits for a copy to the host. Copies to the device do not delay mirroring
//! copies, because the link copies in both directions at once.

use super::BlockHash;
use super::hash::ByName;
use super::pool::Name;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tiercel_device::{
    BlockId, CopyBatch, CopyDirection, CopyId, CopyPair, HostBlockId, SeqId, StepId,
};

/// Copy of one KV block between device and host. It holds its source block and its destination block until it ends.
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    /// Direction of the copy: out to the host, or in to the device.
    pub(super) direction: CopyDirection,
    /// Device block that is the source or destination of the copy.
    pub(super) device: u32,
    /// Host block that is the source or destination of the copy.
    pub(super) host: u32,
    /// Name (hash) of the content that is copied.
    pub(super) name: Name,
    /// Fence: step that must have completed before the copy may start.
    pub(super) fence: StepId,
    /// Sequences that wait for the block copy to end. Empty for a copy made ahead of need (mirroring), or if all
    /// waiting sequences gave up.
    pub(super) waiters: Vec<SeqId>,
    /// Whether the copy is for mirroring, so that it goes on although no sequence waits for it.
    pub(super) ahead_of_need: bool,
    /// Whether the copy has started: it is in a batch that was handed out to the device.
    pub(super) started: bool,
}

/// All copies of KV blocks that have not ended. There is at most one copy for each content, hence at most one for each
/// block.
#[derive(Debug)]
pub(super) struct Transfers {
    pub(super) jobs: BTreeMap<u64, Transfer>,
    queues: [VecDeque<u64>; 3],
    pub(super) by_name: ByName<u64>,
    pub(super) batches: BTreeMap<CopyId, Vec<u64>>,
    started: u32,
    next_job: u64,
    next_batch: u64,
    /// Direction of the next batch of copies. Directions alternate, so that neither uses up the limit on blocks in
    /// transit alone.
    turn: CopyDirection,
}

/// Index of the queue of mirroring copies (made ahead of need); the other two queues have the indices of their
/// directions.
const AHEAD: usize = 2;

fn other(direction: CopyDirection) -> CopyDirection {
    match direction {
        CopyDirection::Out => CopyDirection::In,
        CopyDirection::In => CopyDirection::Out,
    }
}

impl Transfers {
    /// Creates the copy queues, without copies.
    pub(super) fn new() -> Transfers {
        Transfers {
            jobs: BTreeMap::new(),
            queues: Default::default(),
            by_name: ByName::default(),
            batches: BTreeMap::new(),
            started: 0,
            next_job: 0,
            next_batch: 0,
            turn: CopyDirection::Out,
        }
    }

    /// Returns the number of copies (one block each) that were handed out to the device and have not ended.
    pub(super) fn started(&self) -> u32 {
        self.started
    }

    /// Returns the number of copies (one block each) that are queued and have not started.
    pub(super) fn queued(&self) -> u32 {
        self.jobs.len() as u32 - self.started
    }

    /// Whether copies to the host, needed or ahead of need, are queued and have not started.
    pub(super) fn waits_out(&self) -> bool {
        [CopyDirection::Out.index(), AHEAD].iter().any(|queue| !self.queues[*queue].is_empty())
    }

    /// Whether a batch of copies to the host is at the device.
    fn runs_out(&self) -> bool {
        let first = |ids: &Vec<u64>| self.jobs.get(ids.first()?).map(|job| job.direction);
        self.batches.values().any(|ids| first(ids) == Some(CopyDirection::Out))
    }

    /// Returns the number of host-to-device copies that are queued or running.
    pub(super) fn coming_in(&self) -> usize {
        self.jobs.values().filter(|job| job.direction == CopyDirection::In).count()
    }

    /// Returns the id of the copy of the content named `hash`, if one is queued or running.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<u64> {
        self.by_name.get(hash).copied()
    }

    /// Queues a copy of one block and returns its id.
    pub(super) fn push(&mut self, transfer: Transfer) -> u64 {
        self.next_job += 1;
        let id = self.next_job;
        self.by_name.insert(transfer.name.hash, id);
        let queue = if transfer.ahead_of_need { AHEAD } else { transfer.direction.index() };
        self.queues[queue].push_back(id);
        self.jobs.insert(id, transfer);
        id
    }

    /// Makes the sequence `seq` wait for a copy. A mirroring copy that has not started moves to the queue of needed
    /// copies of its direction.
    pub(super) fn wait_for(&mut self, id: u64, seq: SeqId) {
        let job = self.jobs.get_mut(&id).expect("it was found or queued just now");
        job.waiters.push(seq);
        let queue = job.direction.index();
        if let Some(at) = self.queues[AHEAD].iter().position(|ahead| *ahead == id) {
            self.queues[AHEAD].remove(at);
            self.queues[queue].push_back(id);
        }
    }

    /// Cancels the mirroring copies that have not started and that `is_needless` selects. Returns them; the caller
    /// releases their blocks.
    pub(super) fn cancel_ahead(
        &mut self,
        is_needless: impl Fn(&Transfer) -> bool,
    ) -> Vec<Transfer> {
        let jobs = &self.jobs;
        let needless = |id: &u64| jobs.get(id).is_some_and(&is_needless);
        let given_up: Vec<u64> = self.queues[AHEAD].iter().copied().filter(needless).collect();
        self.queues[AHEAD].retain(|id| !given_up.contains(id));
        given_up.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Makes the sequence `seq` stop waiting for the copies `ids`. Cancels those that have not started and that no
    /// other sequence waits for, except mirroring copies. Returns the cancelled copies; the caller releases their
    /// blocks.
    pub(super) fn leave(&mut self, seq: SeqId, ids: &[u64]) -> Vec<Transfer> {
        let mut cancelled = Vec::new();
        for id in ids {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            job.waiters.retain(|waiter| *waiter != seq);
            if job.waiters.is_empty() && !job.started && !job.ahead_of_need {
                cancelled.extend(self.remove(*id));
            }
        }
        if !cancelled.is_empty() {
            let jobs = &self.jobs;
            for queue in &mut self.queues {
                queue.retain(|id| jobs.contains_key(id));
            }
        }
        cancelled
    }

    /// Hands out batches of copies to start, in order for each direction, while at most `room` blocks are in transit. A
    /// copy may start once the steps that use its block have completed, that is, its fence is at most `completed`.
    pub(super) fn take(
        &mut self,
        completed: StepId,
        room: u32,
        largest_batch: u32,
    ) -> Vec<CopyBatch> {
        let mut batches = Vec::new();
        let mut dry = 0;
        while dry < 2 && self.started < room {
            let most = largest_batch.min(room - self.started);
            match self.next_batch(self.turn.index(), completed, most) {
                Some(batch) => {
                    batches.push(batch);
                    dry = 0;
                }
                None => dry += 1,
            }
            self.turn = other(self.turn);
        }
        let idle = self.queues[CopyDirection::Out.index()].is_empty();
        if idle && !self.queues[AHEAD].is_empty() && self.started < room && !self.runs_out() {
            let most = largest_batch.min(room - self.started);
            batches.extend(self.next_batch(AHEAD, completed, most));
        }
        batches
    }

    fn next_batch(&mut self, queue: usize, completed: StepId, most: u32) -> Option<CopyBatch> {
        let ahead_of_need = queue == AHEAD;
        let queue = &mut self.queues[queue];
        let (mut ids, mut pairs) = (Vec::new(), Vec::new());
        let (mut direction, mut after) = (CopyDirection::Out, StepId(0));
        while let Some(&id) = queue.front()
            && (ids.len() as u32) < most
        {
            let job = self.jobs.get_mut(&id).expect("queued copies are known");
            if job.fence > completed {
                break;
            }
            job.started = true;
            direction = job.direction;
            after = after.max(job.fence);
            pairs.push(CopyPair { device: BlockId(job.device), host: HostBlockId(job.host) });
            ids.push(id);
            queue.pop_front();
        }
        if ids.is_empty() {
            return None;
        }
        self.next_batch += 1;
        let id = CopyId(self.next_batch);
        self.started += ids.len() as u32;
        self.batches.insert(id, ids);
        Some(CopyBatch { id, direction, ahead_of_need, after, pairs })
    }

    /// Ends a batch of copies and returns its copies, in order; none if the batch id is unknown.
    pub(super) fn end_batch(&mut self, batch: CopyId) -> Vec<(u64, Transfer)> {
        let ids = self.batches.remove(&batch).unwrap_or_default();
        self.started -= ids.len() as u32;
        ids.into_iter().filter_map(|id| Some((id, self.remove(id)?))).collect()
    }

    fn remove(&mut self, id: u64) -> Option<Transfer> {
        let job = self.jobs.remove(&id)?;
        self.by_name.remove(&job.name.hash);
        Some(job)
    }

    /// Invariant: the queues hold exactly the copies that have not started, each in the queue of its direction or of
    /// mirroring.
    pub(super) fn queues_agree(&self) -> bool {
        let queued = self.queues.iter().flatten().collect::<BTreeSet<_>>();
        let waiting = self.jobs.iter().filter(|(_, job)| !job.started).map(|(id, _)| id);
        let belongs = |(queue, ids): (usize, &VecDeque<u64>)| {
            ids.iter().filter_map(|id| self.jobs.get(id)).all(|job| match queue {
                AHEAD => job.ahead_of_need && job.waiters.is_empty(),
                _ => queue == job.direction.index(),
            })
        };
        let count: usize = self.queues.iter().map(VecDeque::len).sum();
        queued.len() == count && waiting.eq(queued) && self.queues.iter().enumerate().all(belongs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a copy of the content number `content`.
    fn copy(direction: CopyDirection, content: u8, ahead_of_need: bool) -> Transfer {
        Transfer {
            direction,
            device: u32::from(content),
            host: u32::from(content),
            name: Name { hash: BlockHash([content; 16]), parent: None, depth: 0 },
            fence: StepId(0),
            waiters: Vec::new(),
            ahead_of_need,
            started: false,
        }
    }

    /// Whether the queues agree after `change`. Before it, copy 1 is queued to the host, copy 2 to the device, and copy
    /// 3 to the host ahead of need.
    fn agree(change: impl FnOnce(&mut Transfers)) -> bool {
        let mut transfers = Transfers::new();
        transfers.push(copy(CopyDirection::Out, 1, false));
        transfers.push(copy(CopyDirection::In, 2, false));
        transfers.push(copy(CopyDirection::Out, 3, true));
        change(&mut transfers);
        transfers.queues_agree()
    }

    fn job(transfers: &mut Transfers, id: u64) -> &mut Transfer {
        transfers.jobs.get_mut(&id).expect("the copy is queued")
    }

    #[test]
    fn each_copy_that_has_not_started_is_once_in_the_queue_of_its_kind() {
        assert!(agree(|_| ()));
        assert!(!agree(|t| t.queues[0].clear()), "copy 1 is in no queue");
        assert!(!agree(|t| t.queues[0].push_back(1)), "copy 1 is queued twice");
        assert!(!agree(|t| t.queues.swap(0, 1)), "the directions are confused");
        assert!(!agree(|t| t.queues[0].push_back(9)), "there is no copy 9");
        assert!(!agree(|t| job(t, 1).started = true), "copy 1 has started");
        assert!(!agree(|t| job(t, 3).waiters.push(SeqId(1))), "a sequence waits for copy 3");
        assert!(!agree(|t| job(t, 3).ahead_of_need = false), "copy 3 is needed");
    }

    #[test]
    fn looking_for_copies_in_vain_does_not_change_whose_turn_it_is() {
        let mut transfers = Transfers::new();
        assert!(transfers.take(StepId(0), 4, 4).is_empty());
        transfers.push(copy(CopyDirection::In, 1, false));
        transfers.push(copy(CopyDirection::Out, 2, false));
        let directions: Vec<CopyDirection> =
            transfers.take(StepId(0), 4, 4).iter().map(|batch| batch.direction).collect();
        assert_eq!(directions, [CopyDirection::Out, CopyDirection::In]);
    }

    #[test]
    fn mirroring_goes_on_beside_copies_to_the_device_and_not_beside_copies_to_the_host() {
        let mut transfers = Transfers::new();
        let mut take = |direction, content, ahead| {
            let fence = StepId(u64::from(content));
            transfers.push(Transfer { fence, ..copy(direction, content, ahead) });
            let batches = transfers.take(StepId(9), 9, 4);
            let told = batches.iter().map(|b| (b.direction, b.ahead_of_need, b.after));
            told.collect::<Vec<_>>()
        };
        assert_eq!(take(CopyDirection::In, 1, false), [(CopyDirection::In, false, StepId(1))]);
        assert_eq!(take(CopyDirection::Out, 2, true), [(CopyDirection::Out, true, StepId(2))]);
        assert!(take(CopyDirection::Out, 3, true).is_empty(), "one batch at a time");
        assert_eq!(take(CopyDirection::Out, 4, false), [(CopyDirection::Out, false, StepId(4))]);
    }
}
