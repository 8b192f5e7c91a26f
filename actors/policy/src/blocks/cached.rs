//! Order in which free, named blocks are reused. No block is reused before its cached descendants. Among blocks without
//! named children (leaves), the one that was idle longest is reused first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Free blocks with a name, in the order in which they are reused.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// Blocks without named children in the pool, longest idle first.
    leaves: BTreeSet<(u64, u32)>,
    /// Blocks with named children in the pool, deepest first. They are reused when no leaf is free. Then every
    /// descendant of the first entry is held, because a descendant is deeper, so reusing the first entry orphans no
    /// cached content.
    inner: BTreeSet<(Reverse<u32>, u32)>,
}

impl Cached {
    /// Returns the number of cached blocks.
    pub(super) fn len(&self) -> usize {
        self.leaves.len() + self.inner.len()
    }

    /// Adds a block that came free.
    pub(super) fn insert(&mut self, id: u32, leaf: bool, idle_since: u64, depth: u32) {
        if leaf {
            self.leaves.insert((idle_since, id));
        } else {
            self.inner.insert((Reverse(depth), id));
        }
    }

    /// Removes a block from the order of reuse, because it has found a holder.
    pub(super) fn remove(&mut self, id: u32, idle_since: u64, depth: u32) {
        if !self.leaves.remove(&(idle_since, id)) {
            self.inner.remove(&(Reverse(depth), id));
        }
    }

    /// Removes the block that is to be reused next, and returns it.
    pub(super) fn pop(&mut self) -> Option<u32> {
        match self.leaves.pop_first() {
            Some((_, id)) => Some(id),
            None => self.inner.pop_first().map(|(_, id)| id),
        }
    }

    /// Whether the block is listed exactly where it belongs in the order of reuse.
    pub(super) fn lists(&self, id: u32, leaf: bool, idle_since: u64, depth: u32) -> bool {
        self.leaves.contains(&(idle_since, id)) == leaf
            && self.inner.contains(&(Reverse(depth), id)) != leaf
    }
}
