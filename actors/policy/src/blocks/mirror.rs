//! Mirroring: full blocks of possible victims are copied to the host pool ahead of need, so that they can be dropped at
//! once in a preemption.

use super::BlockStore;
use super::sequence::{Phase, Sequence};
use super::transfers::Transfer;
use crate::Victim;

impl BlockStore {
    /// Queues copies of at most `most` blocks, first of the victims that would be preempted first. Copies that a
    /// sequence waits for take precedence: while any copy is queued, nothing is done. The mirrored copies belong to no
    /// sequence. They stay in the host pool as cached content, the first to be reused there.
    pub(super) fn mirror(&mut self, victims: &[Victim], most: u32) {
        if self.transfers.queued() > 0 || self.config.host_blocks == 0 {
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
                // From here on the copy holds the host block.
                self.host.drop_hold(host);
                left -= 1;
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Cancels copies ahead of need that have not started and that alone hold their device blocks. Called when a want
    /// lacks blocks. The sequences of these copies are gone, and no want would wait for the copies to start.
    pub(super) fn give_up_mirroring(&mut self) {
        let device = &self.device;
        let given_up = self.transfers.cancel_ahead(|copy| device.slot(copy.device).refs == 1);
        for copy in given_up {
            self.device.end_transit(copy.device);
            self.host.end_transit(copy.host);
            let depth = copy.name.depth as usize;
            for sequence in self.sequences.values_mut() {
                // A sequence with the same content in another block relied on this copy.
                if sequence.names.get(depth) == Some(&copy.name.hash) {
                    sequence.mirrored = sequence.mirrored.min(depth);
                }
            }
        }
    }

    /// Returns how many full blocks at the front of a sequence's table the host pool has too. A preemption would drop
    /// these at once.
    pub(super) fn mirrored_blocks(&self, sequence: &Sequence) -> u32 {
        let names = sequence.names.iter().take(sequence.mirrored);
        names.take_while(|name| self.host.find(name).is_some()).count() as u32
    }

    /// Returns the first full block of a victim that the host pool neither has nor is getting.
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
