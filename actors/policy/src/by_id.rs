//! A map from sequences to what is known of them, for the hundreds that hold blocks: looked up several times
//! in every step, changed seldom.

use tiercel_device::{BySeq, SeqId};

/// Items in places of their own, an index by id, and the ids in order: a look-up is one multiplication and one or
/// two cache lines, and iteration is in order.
#[derive(Debug)]
pub(crate) struct ById<T> {
    places: BySeq<u32>,
    /// Boxed, so that many places cost little.
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
    /// Where an item is; it stays there until it is removed.
    pub(crate) fn place_of(&self, id: SeqId) -> Option<u32> {
        self.places.get(&id).copied()
    }

    /// The item at a place.
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

    /// Puts an item in the place of the one before it, if there was one; says where it is.
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

    /// Items in order of id.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, item)| item)
    }

    /// Items to be changed, in no order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten().map(Box::as_mut)
    }

    /// Ids with their items, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqId, &T)> {
        self.ids.iter().filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// Takes everything out, in order of id.
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
