//! An open-addressed table with linear probing (Knuth, The Art of Computer Programming, volume 3, section
//! 6.4, algorithms L and R). A lookup usually reads one place only. A table that keeps parts of the hashes
//! apart reads two, and with thousands of entries in use each further place is another access to memory.

use std::{mem, ops::DerefMut};

/// The number of places of the smallest table that has any.
const FEWEST: usize = 4;

/// Entries by a hash that the caller computes. The table grows, and never shrinks.
///
/// ```
/// use paceway_limit::probing::ProbingTable;
///
/// let hash_of = |(id, _): &(u64, &str)| *id;
/// let mut table = ProbingTable::<Box<[Option<(u64, &str)>]>>::default();
/// table.insert((7, "seven"), hash_of);
/// let place = table.find(7, |(id, _)| *id == 7).expect("it was inserted");
/// assert_eq!(table.get(place), Some(&(7, "seven")));
/// assert_eq!(table.remove(place, hash_of), Some((7, "seven")));
/// assert!(table.is_empty());
/// ```
#[derive(Debug, Default)]
pub struct ProbingTable<R> {
    /// Empty, or a power of two of places, at least a quarter of which are empty.
    places: R,
    len: usize,
}

/// The type of the entries of a row.
type Thing<R> = <<R as Row>::Place as Place>::Thing;

/// One place of a table: empty, or with an entry.
pub trait Place {
    /// The type of the entry.
    type Thing;

    /// Makes an empty place.
    fn empty() -> Self;
    /// The entry of the place, if it has one.
    fn get(&self) -> Option<&Self::Thing>;
    /// The entry of the place, to be changed.
    fn get_mut(&mut self) -> Option<&mut Self::Thing>;
    /// Puts an entry into the place.
    fn put(&mut self, thing: Self::Thing);
    /// Empties the place, and returns its entry.
    fn take(&mut self) -> Option<Self::Thing>;
}

/// All places of a table, one after the other.
pub trait Row: Default + DerefMut<Target = [Self::Place]> {
    /// The type of the places.
    type Place: Place;

    /// Makes a row of `count` empty places.
    fn empty(count: usize) -> Self;
}

// === impl Place ===

impl<T> Place for Option<T> {
    type Thing = T;

    fn empty() -> Self {
        None
    }

    fn get(&self) -> Option<&T> {
        self.as_ref()
    }

    fn get_mut(&mut self) -> Option<&mut T> {
        self.as_mut()
    }

    fn put(&mut self, thing: T) {
        *self = Some(thing);
    }

    fn take(&mut self) -> Option<T> {
        Self::take(self)
    }
}

// === impl Row ===

impl<P: Place> Row for Box<[P]> {
    type Place = P;

    fn empty(count: usize) -> Self {
        (0..count).map(|_| P::empty()).collect()
    }
}

// === impl ProbingTable ===

impl<R: Row> ProbingTable<R> {
    /// How many entries the table has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many places the table has, with and without an entry.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The place of the entry with this hash for which `is_it` is true. It is valid until the next insertion
    /// or removal.
    pub fn find(&self, hash: u64, is_it: impl Fn(&Thing<R>) -> bool) -> Option<usize> {
        let places = &self.places[..];
        if places.is_empty() {
            return None;
        }
        let mut at = home(places, hash);
        while let Some(thing) = places[at].get() {
            if is_it(thing) {
                return Some(at);
            }
            at = after(places, at);
        }
        None
    }

    /// The entry at a place that [`Self::find`] returned.
    pub fn get(&self, place: usize) -> Option<&Thing<R>> {
        self.places.get(place)?.get()
    }

    /// The same entry, to be changed in all parts that its hash does not depend on.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut Thing<R>> {
        self.places.get_mut(place)?.get_mut()
    }

    /// All entries, to be changed in the same way.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Thing<R>> {
        self.places.iter_mut().filter_map(Place::get_mut)
    }

    /// Inserts an entry that the table does not have yet.
    pub fn insert(&mut self, thing: Thing<R>, hash: impl Fn(&Thing<R>) -> u64) {
        if (self.len + 1) * 4 > self.places.len() * 3 {
            self.spread(&hash);
        }
        self.len += 1;
        put(&mut self.places, thing, hash);
    }

    /// Removes the entry at a place. An entry of a later place may be there afterwards.
    pub fn remove(&mut self, place: usize, hash: impl Fn(&Thing<R>) -> u64) -> Option<Thing<R>> {
        let places = &mut self.places[..];
        let removed = places.get_mut(place)?.take()?;
        self.len -= 1;
        let (mut hole, mut next) = (place, after(places, place));
        // An entry that had to take a place after the hole would no longer be found there.
        while let Some(thing) = places[next].get() {
            let home = home(places, hash(thing));
            if distance(places, home, next) >= distance(places, hole, next) {
                places.swap(hole, next);
                hole = next;
            }
            next = after(places, next);
        }
        Some(removed)
    }

    /// Doubles the number of places: fewer entries have to take a later place than their own.
    pub fn spread(&mut self, hash: impl Fn(&Thing<R>) -> u64) {
        let count = (self.places.len() * 2).max(FEWEST);
        let mut before = mem::replace(&mut self.places, R::empty(count));
        for thing in before.iter_mut().filter_map(Place::take) {
            put(&mut self.places, thing, &hash);
        }
    }
}

/// Puts the entry into the first empty place from its own on; the table has one.
fn put<P: Place>(places: &mut [P], thing: P::Thing, hash: impl Fn(&P::Thing) -> u64) {
    let mut at = home(places, hash(&thing));
    while places[at].get().is_some() {
        at = after(places, at);
    }
    places[at].put(thing);
}

/// The place of an entry in a table without other entries.
fn home<P>(places: &[P], hash: u64) -> usize {
    hash as usize & (places.len() - 1)
}

/// The next place; the first one follows the last one.
fn after<P>(places: &[P], place: usize) -> usize {
    (place + 1) & (places.len() - 1)
}

/// How many places lie between two places, counted from the first one on.
fn distance<P>(places: &[P], from: usize, to: usize) -> usize {
    to.wrapping_sub(from) & (places.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    type Table = ProbingTable<Box<[Option<(u64, u32)>]>>;

    const KEYS: u64 = 60;

    #[derive(Debug, Clone)]
    enum Step {
        Put(u64, u32),
        Remove(u64),
        Spread,
    }

    /// Many entries have the same place, also the last one of a table.
    fn hash(key: u64) -> u64 {
        key / 3 * 7
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            20 => (0..KEYS, any::<u32>()).prop_map(|(key, value)| Step::Put(key, value)),
            20 => (0..KEYS).prop_map(Step::Remove),
            1 => Just(Step::Spread),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn a_probing_table_behaves_like_a_map(steps in steps()) {
            let hash_of = |(key, _): &(u64, u32)| hash(*key);
            let find = |table: &Table, key| {
                table.find(hash(key), |(other, _)| *other == key)
            };
            let (mut table, mut map) = (Table::default(), HashMap::new());
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        map.insert(key, value);
                        match find(&table, key) {
                            Some(place) => table.get_mut(place).expect("it").1 = value,
                            None => table.insert((key, value), hash_of),
                        }
                    }
                    Step::Remove(key) => {
                        let place = find(&table, key);
                        let removed = place.and_then(|place| table.remove(place, hash_of));
                        prop_assert_eq!(removed.map(|(_, value)| value), map.remove(&key));
                    }
                    Step::Spread => table.spread(hash_of),
                }
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(table.len() * 4 <= table.places() * 3);
                for key in 0..KEYS {
                    let found = find(&table, key).and_then(|place| table.get(place));
                    prop_assert_eq!(found.map(|(_, value)| value), map.get(&key));
                }
            }
            prop_assert_eq!(table.iter_mut().count(), map.len());
        }
    }

    #[test]
    fn an_empty_table_finds_no_entry() {
        let mut table = ProbingTable::<Box<[Option<u64>]>>::default();
        assert!(table.is_empty() && table.places() == 0);
        assert!(table.find(1, |_| true).is_none() && table.remove(0, |one| *one).is_none());
        assert!(table.get(0).is_none() && table.get_mut(0).is_none());
    }
}
