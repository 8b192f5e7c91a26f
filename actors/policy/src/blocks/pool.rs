//! A pool of blocks, on the device or on the host: the holders and names of its blocks, and the order in which blocks
//! are reused.
//!
//! A block is *free* when nothing holds it. A free block that still has a name is *cached*: a prefix hit can take it
//! back until its space is needed. A holder either *stays* (the table of a sequence that runs, a pin) or *leaves* (the
//! table of a sequence that is being preempted, a copy). A block that only leaving holders hold is *pending*, because
//! it comes free without a further preemption.

use super::BlockHash;
use super::cached::Cached;
use super::hash::ByName;
use std::collections::VecDeque;
use tiercel_device::StepId;

/// Name of a full block and its place in the chain of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    /// Name of the block.
    pub(super) hash: BlockHash,
    /// Name of the block before this one; `None` for the first block of a sequence.
    pub(super) parent: Option<BlockHash>,
    /// Position of the block in its sequence, in blocks.
    pub(super) depth: u32,
}

impl Name {
    /// Returns the name of block `depth` in a chain of names.
    pub(super) fn in_chain(chain: &[BlockHash], depth: usize) -> Name {
        Name {
            hash: chain[depth],
            parent: depth.checked_sub(1).map(|before| chain[before]),
            depth: depth as u32,
        }
    }
}

/// State of one block in a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot {
    /// Number of holders of all kinds: tables, pins and copies.
    pub(super) refs: u32,
    /// Number of holders that stay: tables of running sequences, and pins.
    pub(super) staying: u32,
    /// Whether the block is the source or destination of a copy that is queued or under way.
    pub(super) in_transit: bool,
    /// Name of the block, if the pool's index of names points to this block.
    pub(super) name: Option<Name>,
    /// Last step that may name the block on behalf of a holder that has dropped the block.
    pub(super) fence: StepId,
    /// When the last holder let go of the block, for the order of reuse.
    pub(super) idle_since: u64,
}

impl Slot {
    fn is_pending(&self) -> bool {
        self.refs > 0 && self.staying == 0
    }
}

/// A pool of blocks, on the device or on the host.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) slots: Vec<Slot>,
    /// Free blocks without a name, longest free first, because a new use of these is the least likely to wait for a
    /// step that still names them.
    pub(super) empty: VecDeque<u32>,
    /// Free blocks with a name.
    pub(super) cached: Cached,
    /// Block that has each name.
    pub(super) index: ByName<u32>,
    /// Number of named blocks in this pool per name of their parent, whether or not the parent is in the pool.
    pub(super) children: ByName<u32>,
    pending: u32,
    in_transit: u32,
    now: u64,
}

impl Pool {
    /// Returns a pool of `total` empty blocks.
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

    /// Returns the number of blocks in the pool.
    pub(super) fn total(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of blocks that nothing holds, cached ones included.
    pub(super) fn free(&self) -> u32 {
        (self.empty.len() + self.cached.len()) as u32
    }

    /// Returns the number of pending blocks: blocks that come free when their leaving holders have gone.
    pub(super) fn pending(&self) -> u32 {
        self.pending
    }

    /// Returns the number of blocks that copies touch.
    pub(super) fn in_transit(&self) -> u32 {
        self.in_transit
    }

    /// Returns the state of one block.
    pub(super) fn slot(&self, id: u32) -> &Slot {
        &self.slots[id as usize]
    }

    /// Returns the block with this name.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<u32> {
        self.index.get(hash).copied()
    }

    /// Takes a free block for a holder that stays. If no block is empty, a cached block is evicted, one without
    /// children first.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let id = self.empty.pop_front().or_else(|| self.evict())?;
        let slot = &mut self.slots[id as usize];
        slot.refs = 1;
        slot.staying = 1;
        Some(id)
    }

    /// Adds a staying holder to the block.
    pub(super) fn hold(&mut self, id: u32) {
        self.adjust(id, 1, 1);
    }

    /// Removes a staying holder from the block. Returns whether the block came free.
    pub(super) fn drop_hold(&mut self, id: u32) -> bool {
        self.adjust(id, -1, -1)
    }

    /// Takes a [`Pool::hold`] back as if it had never happened: the order of reuse is as before.
    pub(super) fn undo_hold(&mut self, id: u32) {
        let since = self.slot(id).idle_since;
        if self.drop_hold(id) {
            self.unlist(id);
            self.slots[id as usize].idle_since = since;
            self.list(id);
        }
    }

    /// Turns a staying holder of the block into a leaving one. Returns whether the block is pending now.
    pub(super) fn leave(&mut self, id: u32) -> bool {
        self.adjust(id, 0, -1);
        self.slot(id).is_pending()
    }

    /// Turns a leaving holder of the block back into a staying one. Returns whether the block was pending before.
    pub(super) fn stay(&mut self, id: u32) -> bool {
        let was = self.slot(id).is_pending();
        self.adjust(id, 0, 1);
        was
    }

    /// Removes a leaving holder from the block. Returns whether the block came free.
    pub(super) fn drop_left(&mut self, id: u32) -> bool {
        self.adjust(id, -1, 0)
    }

    /// Makes a copy hold the block from now on.
    pub(super) fn begin_transit(&mut self, id: u32) {
        self.adjust(id, 1, 0);
        self.slots[id as usize].in_transit = true;
        self.in_transit += 1;
    }

    /// Ends the copy that holds the block.
    pub(super) fn end_transit(&mut self, id: u32) {
        self.slots[id as usize].in_transit = false;
        self.in_transit -= 1;
        self.adjust(id, -1, 0);
    }

    /// Records that steps up to `step` may name the block although its holder has gone.
    pub(super) fn fence(&mut self, id: u32, step: StepId) {
        let slot = &mut self.slots[id as usize];
        slot.fence = slot.fence.max(step);
    }

    /// Names a held block. The first block with a name keeps the name; later blocks with equal content stay private.
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

    /// Evicts a cached block, so that it can take new content.
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

    /// Changes the numbers of a block's holders, and updates the lists and counters. Returns whether the block came
    /// free.
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

    /// Removes a cached block from the order of reuse, because a holder takes it back. Empty blocks are taken by
    /// `allocate` only.
    fn unlist(&mut self, id: u32) {
        let slot = &self.slots[id as usize];
        let name = slot.name.as_ref().expect("a free block without a name is never held directly");
        self.cached.remove(id, slot.idle_since, name.depth);
    }

    /// Updates the order of reuse after the block named `hash` gained its first child in this pool or lost its last.
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
        // The head is idle longest, but it is reused after its child, and the child after a block that was idle before
        // it.
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
        // The head gets its name back while its child is still in the pool, so the head is no leaf.
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
