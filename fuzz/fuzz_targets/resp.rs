//! The replies of a Redis server: the reader returns a reply when it is whole and not before, never waits for more
//! bytes than it has, and takes little more memory than the reply.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::store::redis::fuzzing::{Read, is_reply, read};
use paceway_fuzz::{expand, pieces};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// An allocator that counts the bytes that are held.
struct Counting;

#[global_allocator]
static MEMORY: Counting = Counting;
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The most bytes of memory for each octet of a reply: a value takes as much as ten of the smallest replies, and the
/// message of a panic takes some.
const FACTOR: usize = 16;

fuzz_target!(|data: &[u8]| {
    let Some((cuts, text)) = data.split_first_chunk::<3>() else { return };
    let text = expand(text);
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    is_reply(&text);
    let taken = MOST.load(Relaxed) - before;
    assert!(taken <= FACTOR * text.len() + 64, "{taken} octets for {}", text.len());
    let whole = read(&text);
    match &whole {
        Read::Reply(again, took) => {
            assert!(*took <= text.len());
            // A reply that is not text is longer as text, perhaps longer than a line may be.
            if again.len() <= *took {
                assert!(read(again) == Read::Reply(again.clone(), again.len()), "written again");
            }
            assert!(read(&text[..*took]) == whole, "octets after the reply count");
        }
        Read::Needs(length) => assert!(*length > text.len()),
        Read::Malformed => {}
    }
    let mut came = 0;
    for piece in pieces(&text, cuts) {
        came += piece.len();
        match (read(&text[..came]), &whole) {
            (Read::Reply(..), Read::Reply(_, took)) => {
                assert_eq!(read(&text[..came]), whole);
                assert!(came >= *took);
            }
            // The reader asks for at most the length of the reply.
            (Read::Needs(least), Read::Reply(_, took)) => assert!(came < least && least <= *took),
            // It never learns that the reply is shorter than it asked for before.
            (Read::Needs(least), Read::Needs(more)) => assert!(came < least && least <= *more),
            (Read::Needs(least), Read::Malformed) => assert!(came < least),
            (Read::Malformed, Read::Malformed) => {}
            (part, _) => panic!("{came} octets are otherwise than all: {part:?}"),
        }
    }
});

// Forwards to the system's allocator and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(held, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}
