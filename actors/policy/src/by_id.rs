//! Map from sequence ids to data, for the hundreds of sequences that hold KV blocks. The map is read several times in
//! every step and changed seldom.

use tiercel_device::{BySeq, SeqId};

/// Map of sequence ids to items: an array of items, an index from ids to array positions, and a sorted list of the ids.
/// A look-up costs one multiplication and one or two cache lines, and iteration is in the order of the ids.
#[derive(Debug)]
pub(crate) struct ById<T> {
    places: BySeq<u32>,
    /// Items in boxes, at stable array positions, so that unused array entries cost little memory.
    items: Vec<Option<Box<T>>>,
    free: Vec<u32>,
    ids: Vec<SeqId>,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        ById { places: BySeq::default(), items: Vec::new(), free: Vec::new(), ids: Vec::new() }
    }
}

impl<T> ById<T> {
    /// Returns the array position of the item with the sequence id `id`. The position stays the same until the item is
    /// removed.
    pub(crate) fn place_of(&self, id: SeqId) -> Option<u32> {
        self.places.get(&id).copied()
    }

    /// Returns the item at an array position.
    pub(crate) fn at(&self, place: u32) -> Option<&T> {
        self.items.get(place as usize)?.as_deref()
    }

    pub(crate) fn get(&self, id: SeqId) -> Option<&T> {
        self.at(self.place_of(id)?)
    }

    pub(crate) fn get_mut(&mut self, id: SeqId) -> Option<&mut T> {
        let place = self.place_of(id)?;
        self.items[place as usize].as_deref_mut()
    }

    /// Inserts an item, in place of the earlier item with the same id if there is one. Returns its array position.
    pub(crate) fn insert(&mut self, id: SeqId, item: T) -> u32 {
        if let Some(place) = self.place_of(id) {
            self.items[place as usize] = Some(Box::new(item));
            return place;
        }
        let place = self.free.pop().unwrap_or(self.items.len() as u32);
        if place as usize == self.items.len() {
            self.items.push(None);
        }
        self.items[place as usize] = Some(Box::new(item));
        self.places.insert(id, place);
        let at = self.ids.partition_point(|other| *other < id);
        self.ids.insert(at, id);
        place
    }

    pub(crate) fn remove(&mut self, id: SeqId) -> Option<T> {
        let place = self.places.remove(&id)?;
        if let Ok(at) = self.ids.binary_search(&id) {
            self.ids.remove(at);
        }
        self.free.push(place);
        self.items[place as usize].take().map(|item| *item)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Iterates over the items in the order of their ids.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, item)| item)
    }

    /// Iterates over the items mutably, in no particular order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten().map(Box::as_mut)
    }

    /// Iterates over the ids with their items, in the order of the ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqId, &T)> {
        self.ids.iter().filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// Removes all items and returns them in the order of their ids.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        let ids = std::mem::take(&mut self.ids);
        let all: Vec<T> = ids.into_iter().filter_map(|id| self.remove(id)).collect();
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_and_kept_in_order() {
        let mut map = ById::default();
        let places = [5, 1, 3].map(|id| map.insert(SeqId(id), id * 10));
        assert!(!map.is_empty());
        assert_eq!(map.insert(SeqId(3), 33), places[2], "in the place of the one before");
        *map.get_mut(SeqId(1)).expect("it is there") += 1;
        let all: Vec<(u64, u64)> = map.iter().map(|(id, item)| (id.0, *item)).collect();
        assert_eq!(all, [(1, 11), (3, 33), (5, 50)]);
        assert_eq!(map.remove(SeqId(3)), Some(33));
        assert_eq!(
            (map.remove(SeqId(3)), map.get(SeqId(4)), map.at(places[2])),
            (None, None, None)
        );
        assert_eq!(map.insert(SeqId(4), 40), places[2], "places are used again");
        assert_eq!(map.place_of(SeqId(5)), Some(places[0]));
        assert_eq!(map.drain().collect::<Vec<_>>(), [11, 40, 50]);
        assert!(map.is_empty() && map.get(SeqId(5)).is_none());
    }
}
