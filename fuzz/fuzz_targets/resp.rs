//! The bound on the replies of a Redis server: it finds the end of a reply wherever the bytes are cut, and redis-rs reads
//! what it lets through without a panic, in memory that the length of the reply bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::store::redis::fuzzing::{frame, is_read};
use paceway_fuzz::{expand, pieces};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counts the bytes that are allocated.
struct Counting;

#[global_allocator]
static MEMORY: Counting = Counting;
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Bytes that redis-rs may allocate for each byte of a reply. A value of three bytes takes 56, and a list that grows holds
/// its old and its new room for a moment.
const FACTOR: usize = 64;
/// Bytes that redis-rs may allocate for any reply: room for 4096 values in each of the four lists that may be open.
const FIXED: usize = 2 * 1024 * 1024;

fuzz_target!(|data: &[u8]| {
    let Some((cuts, text)) = data.split_first_chunk::<3>() else { return };
    let text = expand(text);
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    let whole = frame([&text[..]]);
    let taken = MOST.load(Relaxed) - before;
    assert_eq!(taken, 0, "the bound itself takes no memory");
    assert_eq!(frame(pieces(&text, cuts)), whole, "in pieces it is otherwise");
    let Ok(Some(length)) = whole else { return };
    MOST.store(HELD.load(Relaxed), Relaxed);
    let before = HELD.load(Relaxed);
    is_read(&text[..length]);
    let taken = MOST.load(Relaxed) - before;
    assert!(taken <= FACTOR * length + FIXED, "{taken} bytes for {length}");
    assert_eq!(frame([&text[..length]]), whole, "the bytes after it count");
    assert_eq!(frame([&text[..length - 1]]), Ok(None), "it is whole before its end");
});

// Only counts.
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
