//! An open-addressed table with linear probing (Knuth, The Art of Computer Programming, volume 3, section 6.4, algorithms
//! L and R). What is looked for is as a rule the first thing that is looked at. A table that keeps parts of hashes apart
//! looks at two places, and where thousands of things are in use each look at one more is one at memory.

use std::{mem, ops::DerefMut};

/// Places of the smallest table that has any.
const FEWEST: usize = 4;

/// Things by a hash of each, which whoever keeps them computes. It grows, and never shrinks.
#[derive(Debug, Default)]
pub struct ProbingTable<R> {
    /// None, or a power of two of them; a quarter at least is empty.
    places: R,
    len: usize,
}

/// What is in a table.
type Thing<R> = <<R as Row>::Place as Place>::Thing;

/// What is empty or has a thing.
pub trait Place {
    /// What it has.
    type Thing;

    /// An empty one.
    fn empty() -> Self;
    /// What is there.
    fn get(&self) -> Option<&Self::Thing>;
    /// The same, to be changed.
    fn get_mut(&mut self) -> Option<&mut Self::Thing>;
    /// Puts a thing there.
    fn put(&mut self, thing: Self::Thing);
    /// Makes it empty.
    fn take(&mut self) -> Option<Self::Thing>;
}

/// A row of places.
pub trait Row: Default + DerefMut<Target = [Self::Place]> {
    /// What it is a row of.
    type Place: Place;

    /// So many, all empty.
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
    /// How many things are in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Where the one with this hash that `is_it` is, until something is inserted or removed.
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
            at = behind(places, at);
        }
        None
    }

    /// What is at a place.
    pub fn get(&self, place: usize) -> Option<&Thing<R>> {
        self.places.get(place)?.get()
    }

    /// The same, to be changed in all that its hash does not depend on.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut Thing<R>> {
        self.places.get_mut(place)?.get_mut()
    }

    /// All of them, to be changed as above.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Thing<R>> {
        self.places.iter_mut().filter_map(Place::get_mut)
    }

    /// Puts in a thing that is not there.
    pub fn insert(&mut self, thing: Thing<R>, hash: impl Fn(&Thing<R>) -> u64) {
        if (self.len + 1) * 4 > self.places.len() * 3 {
            self.spread(&hash);
        }
        self.len += 1;
        put(&mut self.places, thing, hash);
    }

    /// Takes out what is at a place. What was put behind it may be there then.
    pub fn remove(&mut self, place: usize, hash: impl Fn(&Thing<R>) -> u64) -> Option<Thing<R>> {
        let places = &mut self.places[..];
        let removed = places.get_mut(place)?.take()?;
        self.len -= 1;
        let (mut hole, mut next) = (place, behind(places, place));
        // What stands behind the hole because that was taken would not be found there any more.
        while let Some(thing) = places[next].get() {
            let home = home(places, hash(thing));
            if distance(places, home, next) >= distance(places, hole, next) {
                places.swap(hole, next);
                hole = next;
            }
            next = behind(places, next);
        }
        Some(removed)
    }

    /// Gives it twice as many places: fewer things stand behind others.
    pub fn spread(&mut self, hash: impl Fn(&Thing<R>) -> u64) {
        let count = (self.places.len() * 2).max(FEWEST);
        let mut before = mem::replace(&mut self.places, R::empty(count));
        for thing in before.iter_mut().filter_map(Place::take) {
            put(&mut self.places, thing, &hash);
        }
    }
}

/// Puts it at the first empty place, of which there is one.
fn put<P: Place>(places: &mut [P], thing: P::Thing, hash: impl Fn(&P::Thing) -> u64) {
    let mut at = home(places, hash(&thing));
    while places[at].get().is_some() {
        at = behind(places, at);
    }
    places[at].put(thing);
}

/// Where it is if nothing else was there.
fn home<P>(places: &[P], hash: u64) -> usize {
    hash as usize & (places.len() - 1)
}

fn behind<P>(places: &[P], place: usize) -> usize {
    (place + 1) & (places.len() - 1)
}

/// From one place on to another.
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

    /// Many are at home in one place, also in the last of a table.
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
        fn it_is_a_map(steps in steps()) {
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
    fn nothing_is_in_an_empty_one() {
        let mut table = ProbingTable::<Box<[Option<u64>]>>::default();
        assert!(table.is_empty() && table.places() == 0);
        assert!(table.find(1, |_| true).is_none() && table.remove(0, |one| *one).is_none());
        assert!(table.get(0).is_none() && table.get_mut(0).is_none());
    }
}
