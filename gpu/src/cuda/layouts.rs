//! Which step layouts have CUDA graphs, and which graph goes when there are too many.

use std::collections::HashMap;
use std::hash::Hash;

/// Most layouts that occurred once and are remembered. At the limit, the one that occurred longest ago is forgotten.
const SEEN_MAX: usize = 192;
/// Most layouts that have a CUDA graph. At the limit, the graph that was used longest ago is dropped.
pub(super) const GRAPHS_MAX: usize = 192;

/// What is known of a step layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// No step of the layout is remembered.
    Nothing,
    /// A step of the layout has run once, without a CUDA graph.
    Seen,
    /// Number of the CUDA graph that was made for the layout.
    Graph(usize),
}

/// Step layouts that occurred, with the numbers of their CUDA graphs. Layouts that occur once do not displace graphs,
/// however many of them there are.
#[derive(Debug)]
pub(super) struct Layouts<K> {
    seen: Recent<K, ()>,
    graphs: Recent<K, usize>,
}

impl<K: Eq + Hash + Copy> Layouts<K> {
    pub(super) fn new() -> Layouts<K> {
        Layouts { seen: Recent::new(SEEN_MAX), graphs: Recent::new(GRAPHS_MAX) }
    }

    /// Notes that a step of the layout is made, and returns what was known of the layout before.
    pub(super) fn note(&mut self, layout: K) -> Known {
        if let Some(graph) = self.graphs.touch(&layout) {
            return Known::Graph(graph);
        }
        if self.seen.touch(&layout).is_some() {
            return Known::Seen;
        }
        self.seen.insert(layout, ());
        Known::Nothing
    }

    /// Keeps the number of a layout's new graph. Returns the number of the graph that has to go for it, if one has.
    pub(super) fn keep(&mut self, layout: K, graph: usize) -> Option<usize> {
        self.seen.entries.remove(&layout);
        self.graphs.insert(layout, graph)
    }
}

/// Map with room for a number of entries, from which the entry that was used longest ago goes first.
#[derive(Debug)]
struct Recent<K, V> {
    entries: HashMap<K, Used<V>>,
    most: usize,
    /// Number of uses so far; the age of an entry is the number at its last use.
    uses: u64,
}

#[derive(Debug)]
struct Used<V> {
    value: V,
    last: u64,
}

impl<K: Eq + Hash + Copy, V: Copy> Recent<K, V> {
    fn new(most: usize) -> Recent<K, V> {
        Recent { entries: HashMap::new(), most, uses: 0 }
    }

    /// Returns the value of a key, which becomes the entry that was used last.
    fn touch(&mut self, key: &K) -> Option<V> {
        self.uses += 1;
        let used = self.entries.get_mut(key)?;
        used.last = self.uses;
        Some(used.value)
    }

    /// Inserts an entry. Returns the value of the entry that went for it, if the map was full.
    fn insert(&mut self, key: K, value: V) -> Option<V> {
        let full = self.entries.len() >= self.most && !self.entries.contains_key(&key);
        let gone = full.then(|| self.oldest()).flatten();
        self.uses += 1;
        let gone = gone.and_then(|key| self.entries.remove(&key));
        self.entries.insert(key, Used { value, last: self.uses });
        gone.map(|used| used.value)
    }

    fn oldest(&self) -> Option<K> {
        self.entries.iter().min_by_key(|(_, used)| used.last).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a layout occur twice, so that it gets the graph of its own number; returns the graph that goes for it.
    fn make(layouts: &mut Layouts<usize>, layout: usize) -> Option<usize> {
        assert_eq!(layouts.note(layout), Known::Nothing);
        assert_eq!(layouts.note(layout), Known::Seen);
        layouts.keep(layout, layout)
    }

    #[test]
    fn a_full_cache_drops_the_graph_that_was_used_longest_ago_and_no_other() {
        let mut layouts = Layouts::new();
        for layout in 0..GRAPHS_MAX {
            assert_eq!(make(&mut layouts, layout), None);
        }
        assert_eq!(layouts.note(0), Known::Graph(0));
        assert_eq!(make(&mut layouts, 1_000), Some(1), "graph 0 was used after graph 1");
        assert_eq!(make(&mut layouts, 1_001), Some(2));
        assert_eq!(layouts.note(1), Known::Nothing);
        for layout in [0, 1_000, 1_001].into_iter().chain(3..GRAPHS_MAX) {
            assert_eq!(layouts.note(layout), Known::Graph(layout));
        }
    }

    #[test]
    fn layouts_that_occur_once_displace_one_another_but_no_graph() {
        let mut layouts = Layouts::new();
        assert_eq!(make(&mut layouts, 0), None);
        for layout in 1..=SEEN_MAX + 1 {
            assert_eq!(layouts.note(layout), Known::Nothing);
        }
        assert_eq!(layouts.note(0), Known::Graph(0));
        assert_eq!(layouts.note(2), Known::Seen);
        assert_eq!(layouts.note(1), Known::Nothing, "the oldest was forgotten");
    }
}
