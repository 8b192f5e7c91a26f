//! A pool of KV blocks, on the device or on the host: the holders and names of its blocks, and the order in which
//! blocks are reused.
//!
//! A block is *free* when nothing holds it. A free block that still has a name is *cached*: a prefix hit can take it
//! back until it is evicted. A holder either *stays* (a block table, a pin) or *leaves* (the table of a sequence that
//! is being preempted, a copy). A block that only leaving holders hold is *pending*, because it comes free without a
//! further preemption.

use super::BlockHash;
use super::cached::Cached;
use super::hash::ByName;
use std::collections::VecDeque;
use tiercel_device::StepId;

/// Name (content hash) of a full KV block, with the name of its parent block and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    /// Hash of the KV block's tokens and of all tokens before them in the sequence.
    pub(super) hash: BlockHash,
    /// Hash of the KV block before this one in the sequence; `None` for the first block.
    pub(super) parent: Option<BlockHash>,
    /// Index of the block in the block table of its sequence, from 0.
    pub(super) depth: u32,
}

impl Name {
    /// Returns the name of the block with index `depth`, given the names of a sequence's full blocks in order.
    pub(super) fn in_chain(chain: &[BlockHash], depth: usize) -> Name {
        Name {
            hash: chain[depth],
            parent: depth.checked_sub(1).map(|before| chain[before]),
            depth: depth as u32,
        }
    }
}

/// Bookkeeping of one KV block in a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot {
    /// Reference count of the block: block tables, pins and copies that hold it.
    pub(super) refs: u32,
    /// Number of holders of the block that are not about to give it up: pins and block tables, but not the table of a
    /// sequence whose prepared preemption takes the block.
    pub(super) staying: u32,
    /// Whether the block is the source or destination of a copy that is queued or running.
    pub(super) in_transit: bool,
    /// Name (content hash) of the block; `None` if the block is not full, or another block is registered under the
    /// name.
    pub(super) name: Option<Name>,
    /// Fence: last step that may still read or write the block for a former holder. No copy may touch the block before
    /// this step has completed.
    pub(super) fence: StepId,
    /// Logical time at which the last holder released the block, for the eviction order.
    pub(super) idle_since: u64,
}

impl Slot {
    fn is_pending(&self) -> bool {
        self.refs > 0 && self.staying == 0
    }
}

/// A pool of KV blocks, on the device or on the host.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) slots: Vec<Slot>,
    /// Free blocks without cached content, longest free first, because a block that was freed long ago is the least
    /// likely to be still in use by a step in flight.
    pub(super) empty: VecDeque<u32>,
    /// Free blocks with cached content, in the order of eviction.
    pub(super) cached: Cached,
    /// Index from block names (content hashes) to the blocks that hold the content.
    pub(super) index: ByName<u32>,
    /// Number of named blocks in this pool for each name of a parent block, whether or not the parent itself is in the
    /// pool.
    pub(super) children: ByName<u32>,
    pending: u32,
    in_transit: u32,
    now: u64,
}

impl Pool {
    /// Creates a pool of `total` free KV blocks without content.
    pub(super) fn new(total: u32) -> Pool {
        Pool {
            slots: vec![Slot::default(); total as usize],
            empty: (0..total).collect(),
            cached: Cached::default(),
            index: ByName::default(),
            children: ByName::default(),
            pending: 0,
            in_transit: 0,
            now: 0,
        }
    }

    /// Adds `count` free blocks without content. The new block numbers follow the highest number in the pool.
    pub(super) fn add(&mut self, count: u32) {
        let total = self.total();
        self.slots.resize(self.slots.len() + count as usize, Slot::default());
        self.empty.extend(total..total + count);
    }

    /// Returns the number of blocks in the pool.
    pub(super) fn total(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of blocks that nothing holds, those with cached content included.
    pub(super) fn free(&self) -> u32 {
        (self.empty.len() + self.cached.len()) as u32
    }

    /// Returns the number of pending blocks. A pending block comes free without a further preemption, when the copies
    /// that hold it have ended and the prepared preemptions that hold it are committed; after an abort it does not.
    pub(super) fn pending(&self) -> u32 {
        self.pending
    }

    /// Returns the number of blocks that are the source or destination of a queued or running copy.
    pub(super) fn in_transit(&self) -> u32 {
        self.in_transit
    }

    /// Returns the bookkeeping of one block: holders, name, fence.
    pub(super) fn slot(&self, id: u32) -> &Slot {
        &self.slots[id as usize]
    }

    /// Returns the block whose content has this name (hash), if the pool has one.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<u32> {
        self.index.get(hash).copied()
    }

    /// Allocates a free block with one holder. If every free block has cached content, one is evicted, leaves of the
    /// prefix tree first.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let id = self.empty.pop_front().or_else(|| self.evict())?;
        let slot = &mut self.slots[id as usize];
        slot.refs = 1;
        slot.staying = 1;
        Some(id)
    }

    /// Adds to the block a holder that stays (a block table or a pin).
    pub(super) fn hold(&mut self, id: u32) {
        self.adjust(id, 1, 1);
    }

    /// Removes from the block a holder that stays (a block table or a pin). Returns whether the block came free.
    pub(super) fn drop_hold(&mut self, id: u32) -> bool {
        self.adjust(id, -1, -1)
    }

    /// Undoes a [`Pool::hold`] as if it had never happened: the eviction order is as before.
    pub(super) fn undo_hold(&mut self, id: u32) {
        let since = self.slot(id).idle_since;
        if self.drop_hold(id) {
            self.unlist(id);
            self.slots[id as usize].idle_since = since;
            self.list(id);
        }
    }

    /// Marks one holder of the block as leaving, because its sequence is being preempted. Returns whether the block is
    /// now pending (only leaving holders hold it).
    pub(super) fn leave(&mut self, id: u32) -> bool {
        self.adjust(id, 0, -1);
        self.slot(id).is_pending()
    }

    /// Marks one leaving holder of the block as staying again, because its sequence keeps the block after all. Returns
    /// whether the block was pending before (only leaving holders held it).
    pub(super) fn stay(&mut self, id: u32) -> bool {
        let was = self.slot(id).is_pending();
        self.adjust(id, 0, 1);
        was
    }

    /// Removes a leaving holder (a preempted sequence's table) from the block. Returns whether the block came free.
    pub(super) fn drop_left(&mut self, id: u32) -> bool {
        self.adjust(id, -1, 0)
    }

    /// Records that a queued copy holds the block, as its source or destination, until the copy ends.
    pub(super) fn begin_transit(&mut self, id: u32) {
        self.adjust(id, 1, 0);
        self.slots[id as usize].in_transit = true;
        self.in_transit += 1;
    }

    /// Ends the hold of a copy on the block.
    pub(super) fn end_transit(&mut self, id: u32) {
        self.slots[id as usize].in_transit = false;
        self.in_transit -= 1;
        self.adjust(id, -1, 0);
    }

    /// Sets the block's fence: steps up to `step` may still use the block although its holder has gone, so no copy may
    /// touch it before they complete.
    pub(super) fn fence(&mut self, id: u32, step: StepId) {
        let slot = &mut self.slots[id as usize];
        slot.fence = slot.fence.max(step);
    }

    /// Names a held block, so that its content can be found. If another block with equal content has the name already,
    /// the block stays private.
    pub(super) fn name(&mut self, id: u32, name: Name) {
        debug_assert!(self.slot(id).refs > 0, "only held blocks are named");
        if self.slot(id).name.is_some() || self.index.contains_key(&name.hash) {
            return;
        }
        self.index.insert(name.hash, id);
        self.slots[id as usize].name = Some(name);
        if let Some(parent) = name.parent {
            let children = self.children.entry(parent).or_insert(0);
            *children += 1;
            if *children == 1 {
                self.relist(parent);
            }
        }
    }

    /// Evicts the cached block that is first in the eviction order, and returns it for new content.
    fn evict(&mut self) -> Option<u32> {
        let id = self.cached.pop()?;
        let name = self.slots[id as usize].name.take().expect("cached blocks have a name");
        self.index.remove(&name.hash);
        if let Some(parent) = name.parent
            && let Some(children) = self.children.get_mut(&parent)
        {
            *children -= 1;
            if *children == 0 {
                self.children.remove(&parent);
                self.relist(parent);
            }
        }
        Some(id)
    }

    /// Changes a block's reference count by `refs` and its number of staying holders by `staying`, and updates the
    /// lists and counters of the pool. Returns whether the block came free.
    fn adjust(&mut self, id: u32, refs: i32, staying: i32) -> bool {
        let slot = &mut self.slots[id as usize];
        let (was_free, was_pending) = (slot.refs == 0, slot.is_pending());
        slot.refs = slot.refs.checked_add_signed(refs).expect("every drop has its hold");
        slot.staying = slot.staying.checked_add_signed(staying).expect("every leave has its hold");
        let (is_free, is_pending) = (slot.refs == 0, slot.is_pending());
        self.pending = self.pending + u32::from(is_pending) - u32::from(was_pending);
        match (was_free, is_free) {
            (true, false) => self.unlist(id),
            (false, true) => {
                self.now += 1;
                self.slots[id as usize].idle_since = self.now;
                self.list(id);
            }
            _ => {}
        }
        is_free && !was_free
    }

    fn list(&mut self, id: u32) {
        let slot = &self.slots[id as usize];
        match &slot.name {
            None => self.empty.push_back(id),
            Some(name) => {
                let leaf = !self.children.contains_key(&name.hash);
                self.cached.insert(id, leaf, slot.idle_since, name.depth);
            }
        }
    }

    /// Removes a cached block from the eviction order, because a holder takes it back or its place in the order
    /// changes. Free blocks without content never come here; only `allocate` takes them.
    fn unlist(&mut self, id: u32) {
        let slot = &self.slots[id as usize];
        let name = slot.name.as_ref().expect("a free block without a name is never held directly");
        self.cached.remove(id, slot.idle_since, name.depth);
    }

    /// Updates the eviction order after the block named `hash` gained its first child block in this pool, or lost its
    /// last.
    fn relist(&mut self, hash: BlockHash) {
        if let Some(id) = self.find(&hash)
            && self.slot(id).refs == 0
        {
            self.unlist(id);
            self.list(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(depth: u32, hash: u8, parent: Option<u8>) -> Name {
        let full = |byte: u8| BlockHash([byte; 16]);
        Name { hash: full(hash), parent: parent.map(full), depth }
    }

    #[test]
    fn cached_blocks_are_evicted_leaf_first_then_longest_idle() {
        let mut pool = Pool::new(4);
        let ids: Vec<u32> = (0..4).map(|_| pool.allocate().expect("room")).collect();
        pool.name(ids[0], name(0, 1, None));
        pool.name(ids[1], name(1, 2, Some(1)));
        pool.name(ids[2], name(0, 9, None));
        // Free the first block of a prefix before all others: although it is idle longest, it must be evicted after its
        // child, and the child after a block that was idle before it.
        for id in [ids[0], ids[2], ids[1], ids[3]] {
            assert!(pool.drop_hold(id));
        }
        let order: Vec<u32> = (0..4).map(|_| pool.allocate().expect("room")).collect();
        assert_eq!(order, [ids[3], ids[2], ids[1], ids[0]]);
        assert_eq!(pool.allocate(), None);
        assert!(pool.index.is_empty() && pool.children.is_empty());
    }

    #[test]
    fn a_free_block_with_only_held_children_can_still_be_reused() {
        let mut pool = Pool::new(2);
        let (head, child) = (pool.allocate().expect("room"), pool.allocate().expect("room"));
        pool.name(head, name(0, 1, None));
        pool.name(child, name(1, 2, Some(1)));
        pool.drop_hold(head);
        assert_eq!(pool.allocate(), Some(head));
        // Name the first block again while its child is still in the pool: it is no leaf, so its child must be evicted
        // before it.
        pool.name(head, name(0, 1, None));
        pool.drop_hold(head);
        pool.drop_hold(child);
        assert_eq!(pool.allocate(), Some(child));
    }

    #[test]
    fn an_undone_hold_leaves_the_order_of_reuse_alone() {
        let mut pool = Pool::new(2);
        let (a, b) = (pool.allocate().expect("room"), pool.allocate().expect("room"));
        pool.name(a, name(0, 1, None));
        pool.name(b, name(0, 2, None));
        pool.drop_hold(a);
        pool.drop_hold(b);
        pool.hold(a);
        pool.undo_hold(a);
        assert_eq!(pool.allocate(), Some(a));
    }

    #[test]
    fn blocks_held_only_by_leavers_are_pending() {
        let mut pool = Pool::new(1);
        let id = pool.allocate().expect("room");
        pool.hold(id);
        assert!(!pool.leave(id));
        assert!(pool.leave(id));
        assert_eq!((pool.free(), pool.pending()), (0, 1));
        assert!(pool.stay(id));
        assert!(!pool.drop_left(id));
        assert!(pool.drop_hold(id));
        assert_eq!((pool.free(), pool.pending()), (1, 0));
    }
}
