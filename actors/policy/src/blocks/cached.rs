//! The order in which free, named blocks are reused: never a block before its cached descendants, and
//! among leaves the one that was idle longest.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Free blocks with a name.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// Blocks without named children in the tier, longest idle first.
    leaves: BTreeSet<(u64, u32)>,
    /// Blocks with named children, deepest first. When no leaf is free, every descendant of the first
    /// one is held (a descendant is deeper), so that it can be reused without orphaning cached content.
    inner: BTreeSet<(Reverse<u32>, u32)>,
}

impl Cached {
    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.leaves.len() + self.inner.len()
    }

    /// Adds a block.
    pub(super) fn insert(&mut self, id: u32, leaf: bool, idle_since: u64, depth: u32) {
        if leaf {
            self.leaves.insert((idle_since, id));
        } else {
            self.inner.insert((Reverse(depth), id));
        }
    }

    /// Removes a block that has found a holder.
    pub(super) fn remove(&mut self, id: u32, idle_since: u64, depth: u32) {
        if !self.leaves.remove(&(idle_since, id)) {
            self.inner.remove(&(Reverse(depth), id));
        }
    }

    /// Removes the block to reuse next.
    pub(super) fn pop(&mut self) -> Option<u32> {
        match self.leaves.pop_first() {
            Some((_, id)) => Some(id),
            None => self.inner.pop_first().map(|(_, id)| id),
        }
    }

    /// Whether the block is listed exactly where it belongs.
    pub(super) fn lists(&self, id: u32, leaf: bool, idle_since: u64, depth: u32) -> bool {
        self.leaves.contains(&(idle_since, id)) == leaf
            && self.inner.contains(&(Reverse(depth), id)) != leaf
    }
}
