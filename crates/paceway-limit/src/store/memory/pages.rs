//! Rows of places in memory of their own, on huge pages if a row is large enough. Among a million states, each look misses
//! all caches. With pages of 4 KiB it mostly misses the page tables as well, which doubles its cost.

use crate::probing::{Place, Row};
use memmap2::MmapMut;
use std::{
    alloc::{Layout, handle_alloc_error},
    ops::{Deref, DerefMut, Range},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The size of a huge page on x86-64, and on aarch64 with pages of 4 KiB: 2 MiB. On another machine, looks are slower.
const HUGE: usize = 2 << 20;

/// A row of places. A place whose bytes are all zero is empty.
#[derive(Debug)]
pub(super) enum Pages<P> {
    /// A row that is smaller than a huge page.
    Few(Box<[P]>),
    /// A row that begins at the first huge page of this memory.
    Many(MmapMut),
}

// === impl Pages ===

impl<P: FromBytes + IntoBytes + KnownLayout> Pages<P> {
    fn map(length: usize) -> Self {
        // The extra room lets the row begin where a huge page does. Pages that are never touched use no memory.
        let Ok(map) = MmapMut::map_anon(length + HUGE) else {
            handle_alloc_error(Layout::new::<P>())
        };
        #[cfg(target_os = "linux")]
        // If the kernel gives no huge pages, the pages are small.
        let _ = map.advise_range(memmap2::Advice::HugePage, whole(&map).start, length);
        Self::Many(map)
    }
}

/// The bytes of `map` from its first huge page on, which are one huge page fewer than it has.
fn whole(map: &MmapMut) -> Range<usize> {
    let first = map.as_ptr().align_offset(HUGE).min(HUGE);
    first..first + map.len() - HUGE
}

impl<P> Default for Pages<P> {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl<P: FromBytes + Immutable + KnownLayout> Deref for Pages<P> {
    type Target = [P];

    fn deref(&self) -> &[P] {
        match self {
            Self::Few(places) => places,
            Self::Many(map) => FromBytes::ref_from_bytes(&map[whole(map)]).unwrap_or_default(),
        }
    }
}

impl<P: FromBytes + IntoBytes + Immutable + KnownLayout> DerefMut for Pages<P> {
    fn deref_mut(&mut self) -> &mut [P] {
        match self {
            Self::Few(places) => places,
            Self::Many(map) => {
                let bytes = whole(map);
                FromBytes::mut_from_bytes(&mut map[bytes]).unwrap_or_default()
            }
        }
    }
}

impl<P: Place + FromBytes + IntoBytes + Immutable + KnownLayout> Row for Pages<P> {
    type Place = P;

    fn empty(count: usize) -> Self {
        match count * size_of::<P>() {
            few if few < HUGE => Self::Few(Row::empty(count)),
            many => Self::map(many),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that is empty if it is 0.
    #[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    struct Number(u64);

    impl Place for Number {
        type Thing = Self;

        fn empty() -> Self {
            Self(0)
        }

        fn get(&self) -> Option<&Self> {
            (self.0 > 0).then_some(self)
        }

        fn get_mut(&mut self) -> Option<&mut Self> {
            (self.0 > 0).then_some(self)
        }

        fn put(&mut self, thing: Self) {
            *self = thing;
        }

        fn take(&mut self) -> Option<Self> {
            let taken = *self;
            *self = Self(0);
            taken.get().copied()
        }
    }

    #[test]
    fn rows_of_any_length_start_empty_and_keep_values() {
        for count in [4, HUGE / 8 / 2, HUGE / 8, HUGE] {
            let mut pages: Pages<Number> = Row::empty(count);
            assert_eq!(matches!(pages, Pages::Many(..)), count >= HUGE / 8);
            assert_eq!(pages.len(), count);
            assert!(pages.iter().all(|place| place.get().is_none()));
            for place in [0, 1, count - 1] {
                pages[place].put(Number(7));
                assert_eq!(pages[place].get(), Some(&Number(7)));
            }
            assert_eq!(pages.iter().filter(|place| place.get().is_some()).count(), 3);
        }
        assert!(Pages::<Number>::default().is_empty());
    }

    #[test]
    fn long_rows_begin_at_a_huge_page() {
        let pages: Pages<Number> = Row::empty(HUGE);
        assert!(pages.as_ptr().addr().is_multiple_of(HUGE));
    }
}
