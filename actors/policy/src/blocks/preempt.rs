//! Preemption: prepare, then commit or abort.

use super::BlockStore;
use super::pool::Name;
use super::sequence::{Phase, Pin, Sequence, Tally};
use super::transfers::Transfer;
use crate::{PreemptOutcome, Victim};
use std::sync::Arc;
use tiercel_device::{BlockId, CopyDirection, SeqId, Ticket};

impl BlockStore {
    /// Prepares the preemption of one sequence outside of a step request, whether or not that frees
    /// anything. `None` if the sequence has no table or is already being preempted or resumed.
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

    /// Drops the references of a prepared sequence: it must open again. It may be committed before
    /// its copies have ended; they go on, and no [`StoreEvent::PreemptCopied`](crate::StoreEvent)
    /// follows. Stale and repeated tickets do nothing and return `false`.
    pub fn commit_preempt(&mut self, ticket: Ticket) -> bool {
        let Some(mut sequence) = self.take_prepared(ticket) else { return false };
        self.park(&mut sequence);
        self.keep_if_useful(ticket.seq, sequence);
        true
    }

    /// Takes a preparation back: the sequence keeps its table and may run. Copies that have not started
    /// are cancelled; finished ones stay as unpinned cached content. Stale and repeated tickets do
    /// nothing and return `false`.
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

    /// Preempts a running sequence, or takes more from a parked one: its table beyond its first `kept` blocks
    /// has been marked as leaving. A parked one does not run, so that its blocks need not be frozen until
    /// they are copied: each comes free when its own copy has ended.
    pub(super) fn carry_out(&mut self, victim: Victim, kept: u32) -> PreemptOutcome {
        let seq = victim.ticket.seq;
        let mut sequence = self.sequences.remove(seq).expect("victims are chosen among sequences");
        let ran = sequence.phase == Phase::Running;
        let ticket = victim.ticket;
        sequence.phase = Phase::Preempting { ticket, kept, tally: Tally::default() };
        if victim.swap {
            self.save_to_host(seq, &mut sequence, kept);
        } else {
            // Beyond what is lost nothing can be used before that is computed again.
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

    /// Pins the host copies of the named blocks in a sequence's table from `kept` on, and queues copies of those
    /// that have none, as far as the host tier has room.
    fn save_to_host(&mut self, seq: SeqId, sequence: &mut Sequence, kept: u32) {
        let named = sequence.names.len().min(sequence.table.len());
        // Pin what is there first, or making room for the head could evict the tail.
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

    /// The host block that holds this content or will when a copy has ended.
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

    /// The copy of a full block of `sequence` to the host.
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

    /// Queues a copy, which holds both its blocks from here on.
    pub(super) fn start_transit(&mut self, transfer: Transfer) -> u64 {
        self.device.begin_transit(transfer.device);
        self.host.begin_transit(transfer.host);
        self.transfers.push(transfer)
    }

    /// Drops the table of a prepared sequence but for what it keeps; says how many blocks came free.
    fn park(&mut self, sequence: &mut Sequence) -> u32 {
        let freed = self.truncate_table(sequence, sequence.phase.stays());
        sequence.phase = Phase::Parked;
        sequence.computed = 0;
        freed
    }

    /// A parked sequence is remembered only for its pins and what it keeps.
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
