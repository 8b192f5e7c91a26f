//! Opens a waiting sequence (gives it a block table), be it new or preempted: finds the longest prefix whose KV blocks
//! still exist, then makes room for the step.

use super::pool::Name;
use super::reserve::Round;
use super::sequence::{Phase, Pin, Sequence, Tally};
use super::transfers::Transfer;
use super::victims::{Need, Verdict};
use super::{BlockHash, BlockStore};
use crate::{GrantOutcome, ResumeCosts, Victim, Want, WantKind};
use std::sync::Arc;
use tiercel_device::{BlockId, CopyDirection, SeqId, StepId};

/// Cache hit: where the KV of one block of a sequence's prefix was found.
#[derive(Debug, Clone, Copy)]
enum Hit {
    /// Cache hit in this block of the device pool.
    Device(u32),
    /// Cache hit in a block that a queued or running copy fills from the host pool. Holds the index of this block in
    /// the device pool, and the id of the copy.
    Incoming(u32, u64),
    /// Cache hit in this block of the host pool only; it must be copied to the device.
    Host(u32),
}

impl BlockStore {
    /// Opens a waiting sequence: gives it a block table with its cached prefix and room for the step. A sequence that
    /// already has a table is denied with `pending_blocks` 0. A denial gives up the cache hits again, so that they keep
    /// their places in the eviction order; victims that were preempted for the request stay preempted.
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
            release: round.release,
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

    /// Opens a sequence whose whole cached prefix is on the device, with room for at least `cover` token positions.
    /// Returns its block table.
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

    /// Finds the longest cached prefix of the block names `hashes`, on the device, on its way there or in the host
    /// pool, and takes references to its blocks. With `own_only` only blocks count that were retained on the device or
    /// pinned on the host when this sequence was preempted.
    fn hold_prefix(&mut self, seq: SeqId, hashes: &[BlockHash], own_only: bool) -> Vec<Hit> {
        let (retained, pins) = match self.sequences.get(seq) {
            Some(parked) => (Arc::clone(&parked.table), parked.pins.clone()),
            None => (Arc::from([]), Vec::new()),
        };
        let mut hits = Vec::new();
        for (depth, hash) in hashes.iter().enumerate() {
            // Blocks that the preempted sequence retained on the device are found by position, because another
            // sequence's equal block may have taken over the name.
            let hit =
                retained.get(depth).map(|block| Hit::Device(block.0)).or_else(|| match own_only {
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

    /// Drops the host hits, and every hit after the first of them, if recomputing these blocks is faster than waiting
    /// for the link to copy them in. Copies to the device run one after the other, so copies of other sequences count
    /// in the wait.
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
        // No hit if the copy out to the pinned host block has not ended: the block holds no content yet.
        self.host.slot(pins[at].host).name.as_ref()?;
        // If a copy of the same content to the device is queued or under way, the sequence shares it, because there is
        // at most one copy per content.
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

    /// Opens a sequence part of whose cached prefix is in the host pool or on its way to the device: allocates device
    /// blocks for the host blocks, and queues copies to them. Blocks for new tokens are allocated later, when the
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
        // The queued copy now holds its source block on the host, so the hold of the cache look-up ends.
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

    /// Returns the store's entry of an opened sequence: its block table is the cached prefix plus the blocks `more`.
    /// The sequence keeps its host pins, and no longer waits for copies of its last preemption.
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
            // Dropping the old table frees only retained blocks that are not used again, because the cache hits hold
            // the others.
            sequence.pins = std::mem::take(&mut parked.pins);
            self.drop_table(&mut parked);
        }
        sequence
    }
}
