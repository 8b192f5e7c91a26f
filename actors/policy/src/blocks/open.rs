//! Opens a sequence, new or preempted: finds the longest prefix whose blocks still exist, then makes room for the step.

use super::pool::Name;
use super::reserve::Round;
use super::sequence::{Phase, Pin, Sequence, Tally};
use super::transfers::Transfer;
use super::victims::{Need, Verdict};
use super::{BlockHash, BlockStore};
use crate::{GrantOutcome, ResumeCosts, Victim, Want, WantKind};
use std::sync::Arc;
use tiercel_device::{BlockId, CopyDirection, SeqId, StepId};

/// Where one block of a sequence's prefix was found.
#[derive(Debug, Clone, Copy)]
enum Hit {
    /// In this block of the device pool.
    Device(u32),
    /// In a copy to this device block that is queued or under way, with the id of the copy.
    Incoming(u32, u64),
    /// In this block of the host pool only.
    Host(u32),
}

impl BlockStore {
    /// Opens a sequence that has no block table. Any other sequence is denied with 0 pending blocks. A denied sequence
    /// leaves no trace, not even in the order in which blocks are reused.
    pub(super) fn open(
        &mut self,
        want: &Want,
        victims: &[Victim],
        round: &mut Round,
    ) -> GrantOutcome {
        let WantKind::Open { hashes, keep_free, must_fit, own_only } = &want.kind else {
            return GrantOutcome::Denied { pending_blocks: 0 };
        };
        let seq = want.ticket.seq;
        if self.sequences.get(seq).is_some_and(|sequence| sequence.phase != Phase::Parked) {
            return GrantOutcome::Denied { pending_blocks: 0 };
        }
        let longest = (want.len.saturating_sub(1) / self.config.block_size) as usize;
        let hashes = &hashes[..hashes.len().min(longest)];
        let supply = self.device.free() + self.device.pending();
        let mut hits = self.hold_prefix(seq, hashes, *own_only);
        if let Some(costs) = round.resume_costs {
            self.drop_if_computed_sooner(&mut hits, costs);
        }
        let resident = hits.iter().filter(|hit| !matches!(hit, Hit::Host(_))).count() as u32;
        let computed = hits.len() as u32 * self.config.block_size;
        let cover = want.len.min(computed.saturating_add(want.new_tokens));
        let need = Need {
            seq,
            step: round.step,
            blocks: u64::from(
                self.blocks_for(cover.max(*must_fit).max(want.reserve)).saturating_sub(resident),
            ),
            keep_free: u64::from(*keep_free)
                + u64::from(want.kept_for_others.saturating_sub(round.lent)),
            held: u64::from(supply - self.device.free() - self.device.pending()),
            opens: true,
            by_cost: round.victim_costs,
            gives: round.gives,
        };
        match self.settle(need, victims, &mut round.ledger, &mut round.preempted) {
            Verdict::Unmet { pending_blocks } => {
                self.undo_prefix(&hits);
                GrantOutcome::Denied { pending_blocks }
            }
            Verdict::Met if hits.iter().all(|hit| matches!(hit, Hit::Device(_))) => {
                let table = self.open_at_once(want, hashes, &hits, cover, round.step);
                GrantOutcome::Run { computed, cover, table }
            }
            Verdict::Met => self.open_copying(want, hashes, hits),
        }
    }

    /// Opens a sequence whose whole prefix is on the device, with room for `cover` positions. Returns its block table.
    fn open_at_once(
        &mut self,
        want: &Want,
        hashes: &[BlockHash],
        hits: &[Hit],
        cover: u32,
        step: StepId,
    ) -> Option<Arc<[BlockId]>> {
        let more = self.blocks_for(cover.max(want.reserve)) - hits.len() as u32;
        let more = self.allocate(more);
        let mut sequence = self.opened(want.ticket.seq, hits, hashes, &more, Phase::Running);
        sequence.computed = hits.len() as u32 * self.config.block_size;
        sequence.last_step = step;
        self.unpin(&mut sequence, 0);
        let table = sequence.tell_table();
        self.sequences.insert(want.ticket.seq, sequence);
        table
    }

    /// Holds the blocks of the longest prefix of `hashes` that is on the device, on its way there, or in the host pool.
    /// With `own_only` the prefix consists of blocks that were retained or copied out for the sequence.
    fn hold_prefix(&mut self, seq: SeqId, hashes: &[BlockHash], own_only: bool) -> Vec<Hit> {
        let (kept, pins) = match self.sequences.get(seq) {
            Some(parked) => (Arc::clone(&parked.table), parked.pins.clone()),
            None => (Arc::from([]), Vec::new()),
        };
        let mut hits = Vec::new();
        for (depth, hash) in hashes.iter().enumerate() {
            // A retained block may have lost its name to a block of another sequence, so it is found by its position.
            let hit =
                kept.get(depth).map(|block| Hit::Device(block.0)).or_else(|| match own_only {
                    true => self.pinned(&pins, depth, hash),
                    false => self.found(hash),
                });
            match hit {
                Some(Hit::Device(device) | Hit::Incoming(device, _)) => self.device.hold(device),
                Some(Hit::Host(host)) => self.host.hold(host),
                None => break,
            }
            hits.extend(hit);
        }
        hits
    }

    /// Lets go of the host hits, and of all hits after the first of them, if computing these blocks is done before the
    /// link has copied them in. Copies to the device run one after the other, and other sequences may be waiting for
    /// theirs.
    fn drop_if_computed_sooner(&mut self, hits: &mut Vec<Hit>, costs: ResumeCosts) {
        let is_host = |hit: &Hit| matches!(hit, Hit::Host(_));
        let Some(first) = hits.iter().position(is_host) else { return };
        let to_copy = hits.iter().filter(|hit| is_host(hit)).count() + self.transfers.coming_in();
        if to_copy as f64 * costs.copy_us > costs.recompute_us(first..hits.len()) {
            self.undo_prefix(&hits[first..]);
            hits.truncate(first);
        }
    }

    fn found(&self, hash: &BlockHash) -> Option<Hit> {
        let device = self.device.find(hash).map(Hit::Device);
        device
            .or_else(|| self.incoming(hash).map(|(device, job)| Hit::Incoming(device, job)))
            .or_else(|| self.host.find(hash).map(Hit::Host))
    }

    fn pinned(&self, pins: &[Pin], depth: usize, hash: &BlockHash) -> Option<Hit> {
        let at = pins.binary_search_by_key(&(depth as u32), |pin| pin.depth).ok()?;
        // The copy out to the pinned host block may not have ended yet.
        self.host.slot(pins[at].host).name.as_ref()?;
        // At most one copy of a content is under way at a time, so a copy to the device that is under way is used.
        let incoming = self.incoming(hash).map(|(device, job)| Hit::Incoming(device, job));
        incoming.or(Some(Hit::Host(pins[at].host)))
    }

    fn incoming(&self, hash: &BlockHash) -> Option<(u32, u64)> {
        let id = self.transfers.find(hash)?;
        let job = self.transfers.jobs.get(&id)?;
        (job.direction == CopyDirection::In).then_some((job.device, id))
    }

    fn undo_prefix(&mut self, hits: &[Hit]) {
        for hit in hits.iter().rev() {
            match *hit {
                Hit::Device(device) | Hit::Incoming(device, _) => self.device.undo_hold(device),
                Hit::Host(host) => self.host.undo_hold(host),
            }
        }
    }

    /// Allocates device blocks for the host hits and queues their copies. Room for the step is allocated when the
    /// sequence grows.
    fn open_copying(
        &mut self,
        want: &Want,
        hashes: &[BlockHash],
        mut hits: Vec<Hit>,
    ) -> GrantOutcome {
        let seq = want.ticket.seq;
        for (depth, hit) in hits.iter_mut().enumerate() {
            if let Hit::Host(host) = *hit {
                let device = self.device.allocate().expect("the need was met from free blocks");
                *hit = Hit::Incoming(device, self.push_in(device, host, hashes, depth));
            }
        }
        let phase = Phase::Opening {
            ticket: want.ticket,
            tally: Tally::default(),
            valid_blocks: hits.len() as u32,
        };
        let mut sequence = self.opened(seq, &hits, hashes, &[], phase);
        for hit in &hits {
            if let Hit::Incoming(_, job) = hit {
                self.transfers.wait_for(*job, seq);
                sequence.waits.push(*job);
            }
        }
        let blocks = sequence.waits.len() as u32;
        self.sequences.insert(seq, sequence);
        GrantOutcome::Copying { blocks }
    }

    fn push_in(&mut self, device: u32, host: u32, hashes: &[BlockHash], depth: usize) -> u64 {
        self.device.begin_transit(device);
        self.host.begin_transit(host);
        // From here on the copy holds its source block.
        self.host.drop_hold(host);
        self.transfers.push(Transfer {
            direction: CopyDirection::In,
            device,
            host,
            name: Name::in_chain(hashes, depth),
            fence: self.device.slot(device).fence,
            waiters: Vec::new(),
            ahead_of_need: false,
            started: false,
        })
    }

    /// Returns the opened sequence with its prefix and the blocks `more` in its table. The sequence keeps its pins, and
    /// no longer waits for copies of its last preemption.
    fn opened(
        &mut self,
        seq: SeqId,
        hits: &[Hit],
        hashes: &[BlockHash],
        more: &[u32],
        phase: Phase,
    ) -> Sequence {
        let prefix = hits.iter().map(|hit| match hit {
            Hit::Device(device) | Hit::Incoming(device, _) => *device,
            Hit::Host(_) => unreachable!("host hits were given a destination"),
        });
        let table = prefix.chain(more.iter().copied()).map(BlockId).collect();
        let mut sequence = Sequence::opened(phase, table, hashes[..hits.len()].to_vec());
        if let Some(mut parked) = self.sequences.remove(seq) {
            self.leave_transfers(seq, &mut parked);
            // The hits hold those retained blocks that are used again.
            sequence.pins = std::mem::take(&mut parked.pins);
            self.drop_table(&mut parked);
        }
        sequence
    }
}
