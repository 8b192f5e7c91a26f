//! Mirroring: full KV blocks of possible preemption victims are copied to the host pool ahead of need, so that a
//! preemption can discard the device blocks at once.

use super::BlockStore;
use super::sequence::{Phase, Sequence};
use super::transfers::Transfer;
use crate::Victim;

impl BlockStore {
    /// Queues mirroring copies (device to host, ahead of need) of at most `most` blocks, for the victims that would be
    /// swapped, in the order of `victims`. While any copy to the host is queued, nothing is mirrored, so that sequences
    /// do not wait longer for their copies. Mirrored host blocks belong to no sequence: once copied they are cached
    /// content of the host pool, evicted in its usual order.
    pub(super) fn mirror(&mut self, victims: &[Victim], most: u32) {
        if self.transfers.waits_out() || self.config.host_blocks == 0 {
            return;
        }
        let mut left = most;
        for victim in victims.iter().filter(|victim| victim.swap) {
            let seq = victim.ticket.seq;
            while left > 0 {
                let Some(depth) = self.next_to_mirror(victim) else { break };
                let Some(host) = self.host.allocate() else { return };
                let sequence = self.sequences.get_mut(seq).expect("it was looked at just now");
                sequence.mirrored = depth + 1;
                let sequence = self.sequences.get(seq).expect("it was looked at just now");
                let name = super::pool::Name::in_chain(&sequence.names, depth);
                let transfer = self.out_of(sequence, name, host);
                self.start_transit(Transfer { ahead_of_need: true, ..transfer });
                // The queued copy now holds the host block, so the hold of the allocation ends.
                self.host.drop_hold(host);
                left -= 1;
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Cancels mirroring copies that have not started and that are the only holders of their device blocks, so that
    /// these blocks come free. Called when free blocks are too few for a sequence's request. No sequence holds these
    /// blocks any more, and nothing waits for the copies.
    pub(super) fn give_up_mirroring(&mut self) {
        let device = &self.device;
        let given_up = self.transfers.cancel_ahead(|copy| device.slot(copy.device).refs == 1);
        for copy in given_up {
            self.device.end_transit(copy.device);
            self.host.end_transit(copy.host);
            let depth = copy.name.depth as usize;
            for sequence in self.sequences.values_mut() {
                // Another sequence with the same content in a different device block counted the cancelled copy as
                // mirrored: correct its count.
                if sequence.names.get(depth) == Some(&copy.name.hash) {
                    sequence.mirrored = sequence.mirrored.min(depth);
                }
            }
        }
    }

    /// Returns how many full blocks at the front of a sequence's block table are known to mirroring and are in the host
    /// pool, so that a preemption could discard them at once.
    pub(super) fn mirrored_blocks(&self, sequence: &Sequence) -> u32 {
        let names = sequence.names.iter().take(sequence.mirrored);
        names.take_while(|name| self.host.find(name).is_some()).count() as u32
    }

    /// Returns how many full blocks of running victims that would be swapped mirroring has not looked at yet.
    pub(super) fn left_to_mirror(&self, victims: &[Victim]) -> u32 {
        let swapped = victims.iter().filter(|victim| victim.swap);
        let sequences = swapped.filter_map(|victim| self.sequences.get(victim.ticket.seq));
        let running = sequences.filter(|sequence| sequence.phase == Phase::Running);
        running
            .map(|sequence| {
                (sequence.names.len() - sequence.mirrored.min(sequence.names.len())) as u32
            })
            .sum()
    }

    /// Returns the position of the first full block of a running victim that mirroring has not looked at yet, that the
    /// host pool does not have and that is not being copied. `None` if there is none, or if the victim does not run.
    fn next_to_mirror(&mut self, victim: &Victim) -> Option<usize> {
        let sequence = self.sequences.get_mut(victim.ticket.seq)?;
        if sequence.phase != Phase::Running {
            return None;
        }
        while let Some(name) = sequence.names.get(sequence.mirrored) {
            if self.host.find(name).is_none() && self.transfers.find(name).is_none() {
                return Some(sequence.mirrored);
            }
            sequence.mirrored += 1;
        }
        None
    }
}
