//! Preemption of a sequence in the block store: prepare (copy its KV blocks out), then commit (free them) or abort.

use super::BlockStore;
use super::pool::Name;
use super::sequence::{Phase, Pin, Sequence, Tally};
use super::transfers::Transfer;
use crate::{PreemptOutcome, Victim};
use tiercel_device::{BlockId, CopyDirection, SeqId, Ticket};

impl BlockStore {
    /// Commits a prepared preemption: drops the sequence's references to its blocks, except those that it retains; it
    /// needs a new block table to run again. A preemption may be committed before its copies to the host have ended:
    /// the copies go on, and no [`StoreEvent::PreemptCopied`](crate::StoreEvent) follows. A stale or repeated ticket
    /// does nothing and returns `false`.
    pub fn commit_preempt(&mut self, ticket: Ticket) -> bool {
        let Some(mut sequence) = self.take_prepared(ticket) else { return false };
        self.park(&mut sequence);
        self.keep_if_useful(ticket.seq, sequence);
        true
    }

    /// Aborts a prepared preemption: the sequence keeps its block table and may run. Copies to the host that have not
    /// started, and that nothing else needs, are cancelled; ended ones stay in the host pool as cached content without
    /// a pin. A stale or repeated ticket does nothing and returns `false`.
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

    /// Preempts a running sequence, or takes retained blocks from one that is preempted already. The caller has marked
    /// the holds on the table's blocks beyond the first `retained` as leaving. A preemption of a running sequence that
    /// needs copies is only prepared; all others are committed at once. A sequence that is preempted already does not
    /// run, so each of its blocks may come free when its own copy has ended.
    pub(super) fn carry_out(&mut self, victim: Victim, retained: u32) -> PreemptOutcome {
        let seq = victim.ticket.seq;
        let mut sequence = self.sequences.remove(seq).expect("victims are chosen among sequences");
        let ran = sequence.phase == Phase::Running;
        let ticket = victim.ticket;
        sequence.phase = Phase::Preempting { ticket, retained, tally: Tally::default() };
        if victim.swap {
            self.save_to_host(seq, &mut sequence, retained);
        } else {
            // Without a swap the blocks are lost. Host copies of later blocks are useless until the lost blocks are
            // recomputed, so their pins and copies end.
            self.leave_transfers(seq, &mut sequence);
            self.unpin(&mut sequence, retained);
        }
        let blocks = sequence.waits.len() as u32;
        if blocks > 0 && ran {
            self.sequences.insert(seq, sequence);
            return PreemptOutcome::Copying { blocks, retained };
        }
        let on_host = sequence.pins.len() as u32;
        let blocks = self.park(&mut sequence);
        self.keep_if_useful(seq, sequence);
        PreemptOutcome::Freed { blocks, on_host, retained }
    }

    /// Pins host copies of the full blocks in a victim's block table, from position `retained` on. For blocks that have
    /// none, queues copies to the host, as far as the host pool has room.
    fn save_to_host(&mut self, seq: SeqId, sequence: &mut Sequence, retained: u32) {
        let named = sequence.names.len().min(sequence.table.len());
        // Pin the existing host copies first. Otherwise making host room for the table's first blocks could evict
        // copies of its last ones.
        let given = sequence.names.iter().take(named).skip(retained as usize);
        let there: Vec<Option<(u32, Option<u64>)>> =
            given.map(|hash| self.host_copy(hash)).collect();
        for (host, _) in there.iter().flatten() {
            self.host.hold(*host);
        }
        let mut pins = Vec::with_capacity(there.len() + sequence.pins.len());
        for (depth, found) in (retained..).zip(&there) {
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
            self.unpin(sequence, retained);
        }
        pins.append(&mut sequence.pins);
        sequence.pins = pins;
    }

    /// Returns the host block that holds the content named `hash`, or the destination of a copy of it that is queued or
    /// running, with the id of that copy.
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

    /// Returns a copy, not yet queued, of a full block of `sequence` from the device to the host block `host`.
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

    /// Queues a copy, which holds its source block and its destination block until it ends. Returns its id.
    pub(super) fn start_transit(&mut self, transfer: Transfer) -> u64 {
        self.device.begin_transit(transfer.device);
        self.host.begin_transit(transfer.host);
        self.transfers.push(transfer)
    }

    /// Ends the block table of a sequence whose preemption is committed, except for the blocks that it retains on the
    /// device. Returns how many blocks came free.
    fn park(&mut self, sequence: &mut Sequence) -> u32 {
        let freed = self.truncate_table(sequence, sequence.phase.stays());
        sequence.phase = Phase::Parked;
        sequence.computed = 0;
        freed
    }

    /// Puts a sequence's entry back into the store. Drops the entry of a preempted sequence that has no pins, copies or
    /// retained blocks, because nothing of it is left.
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
