//! Preemption of a sequence: prepare, then commit or abort.

use super::BlockStore;
use super::pool::Name;
use super::sequence::{Phase, Pin, Sequence, Tally};
use super::transfers::Transfer;
use crate::{PreemptOutcome, Victim};
use std::sync::Arc;
use tiercel_device::{BlockId, CopyDirection, SeqId, Ticket};

impl BlockStore {
    /// Prepares the preemption of one sequence outside of a step request, whether or not that frees any block. Returns
    /// `None` if the sequence has no table, or is already being preempted or resumed.
    pub fn prepare_preempt(&mut self, victim: Victim) -> Option<PreemptOutcome> {
        let sequence = self.sequences.get(victim.ticket.seq)?;
        if sequence.phase != Phase::Running {
            return None;
        }
        for block in Arc::clone(&sequence.table).iter() {
            self.device.leave(block.0);
        }
        Some(self.carry_out(victim, 0))
    }

    /// Commits a preemption: drops the references of a prepared sequence, which must then open again. A preemption may
    /// be committed before its copies have ended. The copies go on, and no
    /// [`StoreEvent::PreemptCopied`](crate::StoreEvent) follows. A stale or repeated ticket does nothing and returns
    /// `false`.
    pub fn commit_preempt(&mut self, ticket: Ticket) -> bool {
        let Some(mut sequence) = self.take_prepared(ticket) else { return false };
        self.park(&mut sequence);
        self.keep_if_useful(ticket.seq, sequence);
        true
    }

    /// Aborts a preemption: the prepared sequence keeps its table and may run. Copies that have not started are
    /// cancelled. Finished copies stay in the host pool as cached content without a pin. A stale or repeated ticket
    /// does nothing and returns `false`.
    pub fn abort_preempt(&mut self, ticket: Ticket) -> bool {
        let Some(mut sequence) = self.take_prepared(ticket) else { return false };
        for block in sequence.table.iter().skip(sequence.phase.stays()) {
            self.device.stay(block.0);
        }
        sequence.phase = Phase::Running;
        self.leave_transfers(ticket.seq, &mut sequence);
        self.unpin(&mut sequence, 0);
        self.sequences.insert(ticket.seq, sequence);
        true
    }

    /// Preempts a running sequence, or takes more blocks from a parked (already preempted) one. The caller has marked
    /// the table beyond its first `kept` blocks as leaving. A parked sequence does not run, so its blocks need not be
    /// frozen until all are copied: each block comes free when its own copy has ended.
    pub(super) fn carry_out(&mut self, victim: Victim, kept: u32) -> PreemptOutcome {
        let seq = victim.ticket.seq;
        let mut sequence = self.sequences.remove(seq).expect("victims are chosen among sequences");
        let ran = sequence.phase == Phase::Running;
        let ticket = victim.ticket;
        sequence.phase = Phase::Preempting { ticket, kept, tally: Tally::default() };
        if victim.swap {
            self.save_to_host(seq, &mut sequence, kept);
        } else {
            // Host copies of blocks behind a lost block are useless until the lost block is computed again.
            self.leave_transfers(seq, &mut sequence);
            self.unpin(&mut sequence, kept);
        }
        let blocks = sequence.waits.len() as u32;
        if blocks > 0 && ran {
            self.sequences.insert(seq, sequence);
            return PreemptOutcome::Copying { blocks, kept };
        }
        let on_host = sequence.pins.len() as u32;
        let blocks = self.park(&mut sequence);
        self.keep_if_useful(seq, sequence);
        PreemptOutcome::Freed { blocks, on_host, kept }
    }

    /// Pins the host copies of the named blocks in a sequence's table from `kept` on. Queues copies of blocks that have
    /// none, as far as the host pool has room.
    fn save_to_host(&mut self, seq: SeqId, sequence: &mut Sequence, kept: u32) {
        let named = sequence.names.len().min(sequence.table.len());
        // Pin the existing host copies first. Otherwise making room for copies of the table's head could evict copies
        // of its tail.
        let given = sequence.names.iter().take(named).skip(kept as usize);
        let there: Vec<Option<(u32, Option<u64>)>> =
            given.map(|hash| self.host_copy(hash)).collect();
        for (host, _) in there.iter().flatten() {
            self.host.hold(*host);
        }
        let mut pins = Vec::with_capacity(there.len() + sequence.pins.len());
        for (depth, found) in (kept..).zip(&there) {
            let name = Name::in_chain(&sequence.names, depth as usize);
            let (host, job) = match *found {
                Some(found) => found,
                None => match self.host.allocate() {
                    Some(host) => (host, Some(self.push_out(sequence, name, host))),
                    None => break,
                },
            };
            pins.push(Pin { depth, host });
            if let Some(job) = job {
                self.transfers.wait_for(job, seq);
                sequence.waits.push(job);
            }
        }
        for (host, _) in there.iter().skip(pins.len()).flatten().rev() {
            self.host.undo_hold(*host);
        }
        if pins.len() < there.len() {
            self.unpin(sequence, kept);
        }
        pins.append(&mut sequence.pins);
        sequence.pins = pins;
    }

    /// Returns the host block that holds this content, or that will hold it when the returned copy has ended.
    fn host_copy(&self, hash: &super::BlockHash) -> Option<(u32, Option<u64>)> {
        if let Some(host) = self.host.find(hash) {
            return Some((host, None));
        }
        let id = self.transfers.find(hash)?;
        let job = self.transfers.jobs.get(&id)?;
        (job.direction == CopyDirection::Out).then_some((job.host, Some(id)))
    }

    fn push_out(&mut self, sequence: &Sequence, name: Name, host: u32) -> u64 {
        let transfer = self.out_of(sequence, name, host);
        self.start_transit(transfer)
    }

    /// Returns a copy of a full block of `sequence` to the host.
    pub(super) fn out_of(&self, sequence: &Sequence, name: Name, host: u32) -> Transfer {
        let BlockId(device) = sequence.table[name.depth as usize];
        Transfer {
            direction: CopyDirection::Out,
            device,
            host,
            name,
            fence: sequence.last_step.max(self.device.slot(device).fence),
            waiters: Vec::new(),
            ahead_of_need: false,
            started: false,
        }
    }

    /// Queues a copy, which from here on holds its source block and its destination block.
    pub(super) fn start_transit(&mut self, transfer: Transfer) -> u64 {
        self.device.begin_transit(transfer.device);
        self.host.begin_transit(transfer.host);
        self.transfers.push(transfer)
    }

    /// Parks a prepared sequence: drops its table except for its retained blocks. Returns how many blocks came free.
    fn park(&mut self, sequence: &mut Sequence) -> u32 {
        let freed = self.truncate_table(sequence, sequence.phase.stays());
        sequence.phase = Phase::Parked;
        sequence.computed = 0;
        freed
    }

    /// Remembers a sequence, unless it is parked and has no pins, copies or retained blocks.
    pub(super) fn keep_if_useful(&mut self, seq: SeqId, sequence: Sequence) {
        let forgotten = sequence.phase == Phase::Parked
            && sequence.pins.is_empty()
            && sequence.waits.is_empty()
            && sequence.table.is_empty();
        if !forgotten {
            self.sequences.insert(seq, sequence);
        }
    }

    fn take_prepared(&mut self, ticket: Ticket) -> Option<Sequence> {
        match self.sequences.get(ticket.seq)?.phase {
            Phase::Preempting { ticket: open, .. } if open == ticket => {
                self.sequences.remove(ticket.seq)
            }
            _ => None,
        }
    }
}
