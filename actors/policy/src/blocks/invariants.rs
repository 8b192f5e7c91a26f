//! Invariants of the block store, recomputed from scratch. Tests, the simulator and debug builds check them.

use super::hash::ByName;
use super::pool::Pool;
use super::sequence::{Phase, Pin, Sequence};
use super::{BlockHash, BlockStore, Violation};
use std::collections::{BTreeSet, HashMap};
use tiercel_device::{CopyDirection, SeqId};

macro_rules! hold {
    ($condition:expr, $($what:tt)*) => {
        if !$condition {
            return Err(Violation(format!($($what)*)));
        }
    };
}

/// Numbers of holders of one KV block, counted from the sequences and the copies, to be compared with the counts in the
/// pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Holders {
    staying: u32,
    leaving: u32,
    copies: u32,
}

impl BlockStore {
    /// Checks every invariant of the block store.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        let (device, host) = self.count_holders();
        check_pool("device", &self.device, &device)?;
        check_pool("host", &self.host, &host)?;
        let jobs = self.transfers.jobs.values();
        let arriving = jobs.map(|job| (job.host, job.name.hash)).collect();
        for (seq, sequence) in self.sequences.iter() {
            self.check_sequence(seq, sequence)?;
            self.check_pins(seq, sequence, &arriving)?;
        }
        self.check_shared_entries()?;
        self.check_transfers()
    }

    fn count_holders(&self) -> (Vec<Holders>, Vec<Holders>) {
        let mut device = vec![Holders::default(); self.device.slots.len()];
        let mut host = vec![Holders::default(); self.host.slots.len()];
        for sequence in self.sequences.values() {
            for (depth, block) in sequence.table.iter().enumerate() {
                let holders = &mut device[block.0 as usize];
                if depth < sequence.phase.stays() {
                    holders.staying += 1;
                } else {
                    holders.leaving += 1;
                }
            }
            for pin in &sequence.pins {
                host[pin.host as usize].staying += 1;
            }
        }
        for job in self.transfers.jobs.values() {
            device[job.device as usize].copies += 1;
            host[job.host as usize].copies += 1;
        }
        (device, host)
    }

    fn check_sequence(&self, seq: SeqId, sequence: &Sequence) -> Result<(), Violation> {
        let block_size = self.config.block_size;
        let full = (sequence.computed / block_size) as usize;
        let names = sequence.names.len();
        hold!(
            sequence.computed as usize <= sequence.table.len() * block_size as usize,
            "{seq} has more valid tokens than its table covers"
        );
        match sequence.phase {
            Phase::Parked => {
                hold!(sequence.table.len() <= names, "{seq} is parked with more than full blocks");
                let nothing = sequence.pins.is_empty()
                    && sequence.waits.is_empty()
                    && sequence.table.is_empty();
                hold!(!nothing, "{seq} is parked without blocks, pins or copies");
            }
            Phase::Opening { valid_blocks, .. } => {
                hold!(!sequence.waits.is_empty(), "{seq} opens but waits for no copy");
                hold!(valid_blocks as usize <= names, "{seq} has valid blocks without a name");
                hold!(names == sequence.table.len(), "{seq} opens with blocks beyond its prefix");
            }
            Phase::Running => {
                let idle = sequence.pins.is_empty() && sequence.waits.is_empty();
                hold!(idle, "{seq} runs with pins or copies");
                hold!(names <= full, "{seq} has names for blocks that are not full");
            }
            Phase::Preempting { retained, .. } => {
                hold!(names <= full, "{seq} has names for blocks that are not full");
                hold!(retained as usize <= names, "{seq} keeps blocks that are not full");
            }
        }
        if sequence.phase.computes() {
            for (depth, block) in sequence.table.iter().enumerate().skip(full) {
                let slot = self.device.slot(block.0);
                hold!(slot.refs == 1, "{seq} may write {block}, which has {} holders", slot.refs);
                hold!(
                    slot.name.is_none(),
                    "{seq} may write {block} (entry {depth}), which is named"
                );
                hold!(!slot.in_transit, "{seq} may write {block}, which is frozen");
            }
        }
        for (depth, block) in sequence.table.iter().enumerate().take(names) {
            if let Some(name) = &self.device.slot(block.0).name {
                let same = name.hash == sequence.names[depth] && name.depth as usize == depth;
                hold!(same, "{block} does not hold what entry {depth} of {seq} is named");
            }
        }
        Ok(())
    }

    /// Checks that each host block that is pinned for a preempted sequence holds the content it is pinned for, or will
    /// hold it when a copy ends. `arriving` maps host blocks to the content that copies bring.
    fn check_pins(
        &self,
        seq: SeqId,
        sequence: &Sequence,
        arriving: &HashMap<u32, BlockHash>,
    ) -> Result<(), Violation> {
        // Skip sequences that are being opened or resumed: they may still have the pins on host blocks that a
        // preemption made, and the block names of their new prefix need not match these pins.
        if matches!(sequence.phase, Phase::Opening { .. }) {
            return Ok(());
        }
        let mut next = 0;
        for Pin { depth, host } in &sequence.pins {
            hold!(*depth >= next, "pins of {seq} are out of order");
            next = depth + 1;
            let expected = sequence.names.get(*depth as usize);
            let copied = self.host.slot(*host).name.as_ref().map(|name| name.hash);
            let content = copied.or_else(|| arriving.get(host).copied());
            hold!(content.as_ref() == expected, "pin {depth} of {seq} holds other content");
        }
        Ok(())
    }

    /// Checks that a block in the block tables of two sequences is a full block with the same name and position in
    /// both.
    fn check_shared_entries(&self) -> Result<(), Violation> {
        let mut owners: Vec<Option<(SeqId, usize)>> = vec![None; self.device.slots.len()];
        for (seq, sequence) in self.sequences.iter() {
            for (depth, block) in sequence.table.iter().enumerate() {
                let Some((other, other_depth)) = owners[block.0 as usize].replace((seq, depth))
                else {
                    continue;
                };
                let name = sequence.names.get(depth);
                let other_name = self.sequences.get(other).and_then(|s| s.names.get(other_depth));
                let same = name.is_some() && name == other_name && depth == other_depth;
                hold!(same, "{block} is shared by {other} and {seq} but not as one named block");
            }
        }
        Ok(())
    }

    fn check_transfers(&self) -> Result<(), Violation> {
        let transfers = &self.transfers;
        hold!(transfers.queues_agree(), "the copy queues differ from the copies not started");
        let started: Vec<u64> = transfers.batches.values().flatten().copied().collect();
        let distinct: BTreeSet<u64> = started.iter().copied().collect();
        hold!(distinct.len() == started.len(), "a copy is in two batches");
        hold!(
            transfers.started() as usize == started.len(),
            "the count of started copies is wrong"
        );
        let room = self.config.max_copy_blocks_in_transit.max(1);
        hold!(transfers.started() <= room, "more blocks are in transit than allowed");
        hold!(transfers.by_name.len() == transfers.jobs.len(), "two copies have the same content");
        for (id, job) in &transfers.jobs {
            hold!(job.started == distinct.contains(id), "copy {id} and its batch disagree");
            hold!(transfers.find(&job.name.hash) == Some(*id), "copy {id} is not found by name");
            let wanted = job.started || job.ahead_of_need || !job.waiters.is_empty();
            hold!(wanted, "copy {id} is queued, but nothing needs it");
            let (source, target) = (self.device.slot(job.device), self.host.slot(job.host));
            let (source, target) = match job.direction {
                CopyDirection::Out => (source, target),
                CopyDirection::In => (target, source),
            };
            hold!(target.name.is_none(), "copy {id} overwrites a named block");
            let intact = source.name.as_ref().is_none_or(|name| name.hash == job.name.hash);
            hold!(intact, "copy {id} reads other content than it was queued for");
            for waiter in &job.waiters {
                let knows = self.sequences.get(*waiter).is_some_and(|s| s.waits.contains(id));
                hold!(knows, "{waiter} does not know of copy {id} that it waits for");
            }
        }
        for (seq, sequence) in self.sequences.iter() {
            for id in &sequence.waits {
                let known = transfers.jobs.get(id).is_some_and(|job| job.waiters.contains(&seq));
                hold!(known, "{seq} waits for copy {id} for ever");
            }
        }
        Ok(())
    }
}

fn check_pool(tier: &str, pool: &Pool, holders: &[Holders]) -> Result<(), Violation> {
    let (mut free, mut in_transit, mut used, mut pending, mut cached) = (0, 0, 0, 0, 0);
    let mut children: ByName<u32> = ByName::default();
    let mut empty = vec![false; pool.slots.len()];
    for id in &pool.empty {
        let twice = std::mem::replace(&mut empty[*id as usize], true);
        hold!(!twice, "{tier} {id}: in the free list twice");
    }
    for (id, (slot, holder)) in pool.slots.iter().zip(holders).enumerate() {
        let id = id as u32;
        let refs = holder.staying + holder.leaving + holder.copies;
        hold!(slot.refs == refs, "{tier} {id}: {} references, {refs} holders", slot.refs);
        hold!(slot.staying == holder.staying, "{tier} {id}: holders that stay are miscounted");
        hold!(holder.copies <= 1, "{tier} {id}: two copies touch the block");
        hold!(slot.in_transit == (holder.copies == 1), "{tier} {id}: transit mark is wrong");
        free += u32::from(refs == 0);
        in_transit += holder.copies;
        used += u32::from(refs > 0 && holder.copies == 0);
        pending += u32::from(refs > 0 && holder.staying == 0);
        hold!(
            empty[id as usize] == (refs == 0 && slot.name.is_none()),
            "{tier} {id}: free list is wrong"
        );
        let Some(name) = &slot.name else { continue };
        hold!(pool.find(&name.hash) == Some(id), "{tier} {id}: the name belongs to another block");
        if let Some(parent) = name.parent {
            *children.entry(parent).or_insert(0) += 1;
        }
        if refs == 0 {
            let leaf = !pool.children.contains_key(&name.hash);
            let listed = pool.cached.lists(id, leaf, slot.idle_since, name.depth);
            hold!(listed, "{tier} {id}: the place in the order of reuse is wrong");
            cached += 1;
        }
    }
    let named = pool.slots.iter().filter(|slot| slot.name.is_some()).count();
    hold!(pool.index.len() == named, "{tier}: names without a block");
    hold!(pool.children == children, "{tier}: children are miscounted");
    hold!(pool.cached.len() == cached, "{tier}: the order of reuse lists other blocks");
    hold!(pool.free() == free, "{tier}: {} free blocks, counted {free}", pool.free());
    hold!(pool.in_transit() == in_transit, "{tier}: blocks in transit are miscounted");
    hold!(pool.pending() == pending, "{tier}: pending blocks are miscounted");
    hold!(free + used + in_transit == pool.total(), "{tier}: blocks do not add up");
    Ok(())
}

#[cfg(test)]
mod tests;
