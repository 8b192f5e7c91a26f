//! A map from sequences to what is known of them, for the hundreds that hold blocks: looked up several times
//! in every step, changed seldom.

use tiercel_device::SeqId;

/// Sorted by id, the ids side by side: a look-up touches one or two cache lines, and iteration is in order.
#[derive(Debug)]
pub(crate) struct ById<T> {
    ids: Vec<SeqId>,
    /// Boxed, so that making room moves pointers.
    items: Vec<Box<T>>,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        ById { ids: Vec::new(), items: Vec::new() }
    }
}

impl<T> ById<T> {
    pub(crate) fn get(&self, id: SeqId) -> Option<&T> {
        let at = self.ids.binary_search(&id).ok()?;
        Some(&self.items[at])
    }

    pub(crate) fn get_mut(&mut self, id: SeqId) -> Option<&mut T> {
        let at = self.ids.binary_search(&id).ok()?;
        Some(&mut self.items[at])
    }

    /// Puts an item in the place of the one before it, if there was one.
    pub(crate) fn insert(&mut self, id: SeqId, item: T) {
        match self.ids.binary_search(&id) {
            Ok(at) => *self.items[at] = item,
            Err(at) => {
                self.ids.insert(at, id);
                self.items.insert(at, Box::new(item));
            }
        }
    }

    pub(crate) fn remove(&mut self, id: SeqId) -> Option<T> {
        let at = self.ids.binary_search(&id).ok()?;
        self.ids.remove(at);
        Some(*self.items.remove(at))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Items in order of id.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|item| &**item)
    }

    /// Ids with their items, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqId, &T)> {
        self.ids.iter().copied().zip(self.values())
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.ids.clear();
        std::mem::take(&mut self.items).into_iter().map(|item| *item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_and_kept_in_order() {
        let mut map = ById::default();
        for id in [5, 1, 3] {
            map.insert(SeqId(id), id * 10);
        }
        map.insert(SeqId(3), 33);
        *map.get_mut(SeqId(1)).expect("it is there") += 1;
        let all: Vec<(u64, u64)> = map.iter().map(|(id, item)| (id.0, *item)).collect();
        assert_eq!(all, [(1, 11), (3, 33), (5, 50)]);
        assert_eq!(map.remove(SeqId(3)), Some(33));
        assert_eq!((map.remove(SeqId(3)), map.get(SeqId(4))), (None, None));
        assert_eq!(map.drain().collect::<Vec<_>>(), [11, 50]);
        assert!(map.is_empty());
    }
}
