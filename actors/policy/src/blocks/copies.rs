//! The block store's part in copying KV blocks between the device pool and the host pool: chooses the copies that may
//! start, and records the copies that have ended.

use super::BlockStore;
use super::sequence::Phase;
use super::transfers::Transfer;
use crate::StoreEvent;
use tiercel_device::{CopyBatch, CopyDirection, CopyId, SeqId};

impl BlockStore {
    /// Hands out the copies that may start now: every step that uses their blocks has completed, and the limit on
    /// blocks in transit allows them. Copies of one direction start in order, and the two directions alternate.
    /// Mirroring copies (made ahead of need) go one batch at a time, while no sequence waits for a copy to the host.
    pub fn take_copies(&mut self) -> Vec<CopyBatch> {
        let room = self.config.max_copy_blocks_in_transit.max(1);
        let largest_batch = self.config.max_copy_blocks_per_batch.max(1);
        self.transfers.take(self.completed, room, largest_batch)
    }

    /// Ends a batch of copies that [`BlockStore::take_copies`] handed out. Returns an event, in order, for each
    /// prepared preemption and each opening of a sequence whose last copy ended with this batch. An unknown batch id is
    /// ignored.
    pub fn copy_done(&mut self, copy: CopyId, ok: bool) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        for (id, transfer) in self.transfers.end_batch(copy) {
            if ok {
                match transfer.direction {
                    CopyDirection::Out => self.host.name(transfer.host, transfer.name),
                    CopyDirection::In => self.device.name(transfer.device, transfer.name),
                }
            }
            self.device.end_transit(transfer.device);
            self.host.end_transit(transfer.host);
            for seq in &transfer.waiters {
                events.extend(self.copy_ended_for(*seq, id, &transfer, ok));
            }
        }
        events
    }

    fn copy_ended_for(
        &mut self,
        seq: SeqId,
        id: u64,
        transfer: &Transfer,
        ok: bool,
    ) -> Option<StoreEvent> {
        let mut sequence = self.sequences.remove(seq)?;
        // Searching from the front is fast: copies mostly end in the order in which they were queued.
        if let Some(at) = sequence.waits.iter().position(|wait| *wait == id) {
            sequence.waits.remove(at);
        }
        let all_ended = sequence.waits.is_empty();
        let depth = transfer.name.depth;
        match &mut sequence.phase {
            Phase::Preempting { tally, .. } => tally.add(ok),
            Phase::Opening { tally, valid_blocks, .. } => {
                tally.add(ok);
                if !ok {
                    *valid_blocks = (*valid_blocks).min(depth);
                }
            }
            Phase::Running | Phase::Parked => {}
        }
        if !ok && transfer.direction == CopyDirection::Out {
            self.unpin(&mut sequence, depth);
        }
        let phase = sequence.phase;
        let event = match phase {
            Phase::Preempting { ticket, tally, .. } if all_ended => {
                Some(StoreEvent::PreemptCopied {
                    ticket,
                    copied: tally.copied,
                    failed: tally.failed,
                    on_host: sequence.pins.len() as u32,
                })
            }
            Phase::Opening { ticket, tally, valid_blocks } if all_ended => {
                self.truncate_table(&mut sequence, valid_blocks as usize);
                self.unpin(&mut sequence, 0);
                sequence.names.truncate(valid_blocks as usize);
                sequence.computed = valid_blocks * self.config.block_size;
                sequence.phase = Phase::Running;
                Some(StoreEvent::Resumed {
                    ticket,
                    computed: sequence.computed,
                    copied: tally.copied,
                    failed: tally.failed,
                })
            }
            _ => None,
        };
        self.keep_if_useful(seq, sequence);
        event
    }
}
