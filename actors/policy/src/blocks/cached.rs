//! Eviction order of free, named KV blocks (the prefix cache). No block is evicted before its cached children. Among
//! blocks without named children in the pool (leaves), the least recently used one is evicted first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Free KV blocks with a name (cached content), in the order in which they are evicted.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// Cached blocks without named children in the pool, least recently used first.
    leaves: BTreeSet<(u64, u32)>,
    /// Cached blocks with named children in the pool, deepest first; evicted when no leaf is left. Then every
    /// descendant of the first entry is in use, because a cached descendant would be deeper, so evicting the first
    /// entry orphans no cached content.
    inner: BTreeSet<(Reverse<u32>, u32)>,
}

impl Cached {
    /// Returns the number of cached blocks (free blocks with content that can still be found).
    pub(super) fn len(&self) -> usize {
        self.leaves.len() + self.inner.len()
    }

    /// Adds a named block that came free to the eviction order.
    pub(super) fn insert(&mut self, id: u32, leaf: bool, idle_since: u64, depth: u32) {
        if leaf {
            self.leaves.insert((idle_since, id));
        } else {
            self.inner.insert((Reverse(depth), id));
        }
    }

    /// Removes a cached block from the eviction order, because something holds it again or its place in the order
    /// changes.
    pub(super) fn remove(&mut self, id: u32, idle_since: u64, depth: u32) {
        if !self.leaves.remove(&(idle_since, id)) {
            self.inner.remove(&(Reverse(depth), id));
        }
    }

    /// Removes the cached block that is first in the eviction order, and returns it.
    pub(super) fn pop(&mut self) -> Option<u32> {
        match self.leaves.pop_first() {
            Some((_, id)) => Some(id),
            None => self.inner.pop_first().map(|(_, id)| id),
        }
    }

    /// Whether the cached block is listed exactly where it belongs in the eviction order.
    pub(super) fn lists(&self, id: u32, leaf: bool, idle_since: u64, depth: u32) -> bool {
        self.leaves.contains(&(idle_since, id)) == leaf
            && self.inner.contains(&(Reverse(depth), id)) != leaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_one_place_in_the_order_of_eviction() {
        let mut cached = Cached::default();
        cached.insert(1, true, 7, 0);
        cached.insert(2, false, 8, 3);
        assert!(cached.lists(1, true, 7, 0) && cached.lists(2, false, 8, 3));
        assert!(!cached.lists(1, false, 7, 0) && !cached.lists(2, true, 8, 3), "the wrong kind");
        assert!(!cached.lists(3, true, 7, 0) && !cached.lists(3, false, 7, 0), "not listed");
        cached.insert(1, false, 7, 0);
        assert!(!cached.lists(1, true, 7, 0) && !cached.lists(1, false, 7, 0), "listed twice");
    }
}
