//! Cache of the most recently used compiled grammars, limited in the number of entries and in bytes.

use std::collections::VecDeque;

/// Hash of a source.
pub(crate) type Key = [u8; 32];

/// Cache of the most recently used values.
#[derive(Debug)]
pub(crate) struct Cache<T> {
    /// Entries, the most recently used first. The number of entries is so small that a linear search is as fast as a
    /// map.
    entries: VecDeque<Entry<T>>,
    entries_max: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Entry<T> {
    key: Key,
    bytes: usize,
    value: T,
}

impl<T: Clone> Cache<T> {
    /// Creates an empty cache for at most `entries_max` entries with at most `bytes_max` bytes in total.
    pub(crate) fn new(entries_max: usize, bytes_max: usize) -> Cache<T> {
        Cache { entries: VecDeque::new(), entries_max, bytes_max }
    }

    /// Returns the value of a key, and makes the entry the most recently used one.
    pub(crate) fn get(&mut self, key: &Key) -> Option<T> {
        let at = self.entries.iter().position(|entry| entry.key == *key)?;
        let entry = self.entries.remove(at)?;
        let value = entry.value.clone();
        self.entries.push_front(entry);
        Some(value)
    }

    /// Inserts a value of about `bytes` bytes, and drops the least recently used entries beyond the limits. A value
    /// that is larger than the whole cache is not inserted.
    pub(crate) fn insert(&mut self, key: Key, bytes: usize, value: T) {
        self.entries.retain(|entry| entry.key != key);
        if bytes <= self.bytes_max {
            self.entries.push_front(Entry { key, bytes, value });
        }
        while self.entries.len() > self.entries_max || self.bytes() > self.bytes_max {
            self.entries.pop_back();
        }
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_leave_first() {
        let mut cache = Cache::new(3, 100);
        let key = |n: u8| [n; 32];
        (0..3).for_each(|n| cache.insert(key(n), 10, n));
        assert_eq!(cache.get(&key(0)), Some(0));
        cache.insert(key(3), 10, 3);
        assert_eq!([0, 1, 2, 3].map(|n| cache.get(&key(n))), [Some(0), None, Some(2), Some(3)]);
        cache.insert(key(4), 80, 4);
        assert_eq!([0, 2, 3, 4].map(|n| cache.get(&key(n))), [None, Some(2), Some(3), Some(4)]);
        cache.insert(key(5), 101, 5);
        assert_eq!(cache.get(&key(5)), None, "larger than the cache");
        cache.insert(key(3), 50, 6);
        assert_eq!(cache.get(&key(3)), Some(6), "replaced");
        assert_eq!(cache.get(&key(4)), None, "no room beside the larger one");
    }
}
