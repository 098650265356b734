//! An open-addressed table with linear probing (Knuth, The Art of Computer Programming, volume 3, section 6.4, algorithms
//! L and R). What is looked for is as a rule the first thing that is looked at. A table that keeps parts of hashes apart
//! looks at two places, and where thousands of things are in use each look at one more is one at memory.

use std::mem;

/// Places of the smallest table that has any.
const FEWEST: usize = 4;

/// Things by a hash of each, which whoever keeps them computes. It grows, and never shrinks.
#[derive(Debug)]
pub struct ProbingTable<T> {
    /// None, or a power of two of them; a quarter at least is empty.
    cells: Box<[Option<T>]>,
    len: usize,
}

// === impl ProbingTable ===

impl<T> Default for ProbingTable<T> {
    fn default() -> Self {
        Self { cells: Box::default(), len: 0 }
    }
}

impl<T> ProbingTable<T> {
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
        self.cells.len()
    }

    /// Where the one with this hash that `is_it` is, until something is inserted or removed.
    pub fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        if self.cells.is_empty() {
            return None;
        }
        let mut place = self.home(hash);
        while let Some(thing) = &self.cells[place] {
            if is_it(thing) {
                return Some(place);
            }
            place = self.behind(place);
        }
        None
    }

    /// What is at a place.
    pub fn get(&self, place: usize) -> Option<&T> {
        self.cells.get(place)?.as_ref()
    }

    /// The same, to be changed in all that its hash does not depend on.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.cells.get_mut(place)?.as_mut()
    }

    /// All of them, to be changed as above.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.cells.iter_mut().flatten()
    }

    /// Puts in a thing that is not there.
    pub fn insert(&mut self, thing: T, hash: impl Fn(&T) -> u64) {
        if (self.len + 1) * 4 > self.cells.len() * 3 {
            self.spread(&hash);
        }
        self.len += 1;
        self.place(thing, hash);
    }

    /// Takes out what is at a place. What was put behind it may be there then.
    pub fn remove(&mut self, place: usize, hash: impl Fn(&T) -> u64) -> Option<T> {
        let removed = self.cells.get_mut(place)?.take()?;
        self.len -= 1;
        let (mut hole, mut next) = (place, self.behind(place));
        // What stands behind the hole because that was taken would not be found there any more.
        while let Some(thing) = &self.cells[next] {
            if self.distance(self.home(hash(thing)), next) >= self.distance(hole, next) {
                self.cells.swap(hole, next);
                hole = next;
            }
            next = self.behind(next);
        }
        Some(removed)
    }

    /// Gives it twice as many places: fewer things stand behind others.
    pub fn spread(&mut self, hash: impl Fn(&T) -> u64) {
        let places = (self.cells.len() * 2).max(FEWEST);
        let before = mem::replace(&mut self.cells, (0..places).map(|_| None).collect());
        before.into_iter().flatten().for_each(|thing| self.place(thing, &hash));
    }

    /// Puts it at the first empty place, of which there is one.
    fn place(&mut self, thing: T, hash: impl Fn(&T) -> u64) {
        let mut place = self.home(hash(&thing));
        while self.cells[place].is_some() {
            place = self.behind(place);
        }
        self.cells[place] = Some(thing);
    }

    /// Where it is if nothing else was there.
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.cells.len() - 1)
    }

    fn behind(&self, place: usize) -> usize {
        (place + 1) & (self.cells.len() - 1)
    }

    /// From one place on to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.cells.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

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
            let find = |table: &ProbingTable<(u64, u32)>, key| {
                table.find(hash(key), |(other, _)| *other == key)
            };
            let (mut table, mut map) = (ProbingTable::default(), HashMap::new());
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
        let mut table = ProbingTable::<u64>::default();
        assert!(table.is_empty() && table.places() == 0);
        assert!(table.find(1, |_| true).is_none() && table.remove(0, |one| *one).is_none());
        assert!(table.get(0).is_none() && table.get_mut(0).is_none());
    }
}
