//! Where the states of a shard lie: an open-addressed table with linear probing (Knuth, The Art of Computer Programming,
//! volume 3, section 6.4, algorithms L and R). What is looked for is as a rule the first thing that is looked at; a table
//! that keeps parts of hashes apart looks at two places, and among a million states each is one at memory.

use super::shard::Print;

/// Places of the smallest table.
const FEWEST: usize = 4;

/// What has a place.
pub(super) trait Printed {
    fn print(&self) -> Print;
}

/// A table of what is found by its print. It grows, and never shrinks.
#[derive(Debug)]
pub(super) struct Places<T> {
    /// None, or a power of two of them; a quarter at least is empty.
    cells: Box<[Option<T>]>,
    len: usize,
}

// === impl Places ===

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { cells: Box::default(), len: 0 }
    }
}

impl<T: Printed> Places<T> {
    /// How many places are taken.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many places there are.
    pub(super) fn count(&self) -> usize {
        self.cells.len()
    }

    /// Where it is until something is put or removed.
    pub(super) fn find(&self, print: Print) -> Option<usize> {
        if self.cells.is_empty() {
            return None;
        }
        let place = self.look(print);
        self.cells[place].is_some().then_some(place)
    }

    pub(super) fn get(&self, place: usize) -> Option<&T> {
        self.cells.get(place)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.cells.get_mut(place)?.as_mut()
    }

    /// Puts `it` where it belongs, in place of what has its print.
    pub(super) fn put(&mut self, it: T) {
        if (self.len + 1) * 4 > self.cells.len() * 3 {
            self.grow();
        }
        let place = self.look(it.print());
        self.len += usize::from(self.cells[place].replace(it).is_none());
    }

    /// Empties a place; what comes behind it may be there then.
    pub(super) fn remove(&mut self, place: usize) -> Option<T> {
        let removed = self.cells.get_mut(place)?.take()?;
        self.len -= 1;
        let (mut hole, mut next) = (place, self.behind(place));
        // What was put behind the hole because that was taken would not be found there any more.
        while let Some(it) = &self.cells[next] {
            if self.distance(self.home(it.print()), next) >= self.distance(hole, next) {
                self.cells.swap(hole, next);
                hole = next;
            }
            next = self.behind(next);
        }
        Some(removed)
    }

    /// Where it is, or else would be put. There is an empty place.
    fn look(&self, print: Print) -> usize {
        let mut place = self.home(print);
        while self.cells[place].as_ref().is_some_and(|it| it.print() != print) {
            place = self.behind(place);
        }
        place
    }

    fn grow(&mut self) {
        let count = (self.cells.len() * 2).max(FEWEST);
        let before = std::mem::replace(&mut self.cells, (0..count).map(|_| None).collect());
        for it in before.into_iter().flatten() {
            let place = self.look(it.print());
            self.cells[place] = Some(it);
        }
    }

    /// Where it would be if nothing else were there. Shards are chosen by the other half of a print.
    fn home(&self, print: Print) -> usize {
        print.0[1] as usize & (self.cells.len() - 1)
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

    impl Printed for (u64, u32) {
        fn print(&self) -> Print {
            // Many homes are one, at the end of a table, too.
            Print([self.0, self.0 / 3 * 7])
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(u64, u32),
        Remove(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..60u64, any::<u32>()).prop_map(|(key, value)| Step::Put(key, value)),
            (0..60u64).prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in steps()) {
            let (mut places, mut map) = (Places::default(), HashMap::new());
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        places.put((key, value));
                        map.insert(key, value);
                    }
                    Step::Remove(key) => {
                        let place = places.find((key, 0).print());
                        let removed = place.and_then(|place| places.remove(place));
                        prop_assert_eq!(removed.map(|(_, value)| value), map.remove(&key));
                    }
                }
                prop_assert_eq!(places.len(), map.len());
                prop_assert!(places.len() * 4 <= places.count() * 3);
                for key in 0..60 {
                    let found = places.find((key, 0).print()).and_then(|place| places.get(place));
                    prop_assert_eq!(found.map(|(_, value)| value), map.get(&key));
                }
            }
        }
    }

    #[test]
    fn nothing_is_in_an_empty_one() {
        let mut places = Places::<(u64, u32)>::default();
        assert!(places.find(Print([0, 0])).is_none() && places.remove(0).is_none());
        assert!(places.get(0).is_none() && places.get_mut(0).is_none() && places.count() == 0);
    }
}
