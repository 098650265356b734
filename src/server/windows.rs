//! How much of their requests' bodies all clients of HTTP/2 together may have on the way to the gateway. Opens no window
//! by itself.
//!
//! While a request waits for its slot, its body waits in the windows of its HTTP/2 connection (RFC 9113 section 5.2), so a
//! connection can fill its window. With 2 MiB each, 1,000 connections could make the gateway hold 2 GiB. Therefore each new
//! connection gets a part of what is left of one budget for the whole process.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Bytes that connections may have beyond the least, over all workers.
const BUDGET: usize = 128 << 20;
/// A new connection gets this part of what is left, so that some is always left for later ones: the 100th gets 480 KiB.
const PART: usize = 64;
/// Of a connection at most: some uploads that wait for their slots do not stop the others.
const MOST: usize = 2 << 20;
/// Of a connection at least: HTTP/2 begins with it, and knows no less (RFC 9113 section 6.9.2).
const LEAST: usize = (64 << 10) - 1;
/// Of one stream: a part of its connection's, between these. The larger one fills a line of 50 ms at 5 MB/s.
const STREAM: (usize, usize) = (32 << 10, 256 << 10);

/// The budget of a process, shared by its workers.
#[derive(Debug, Clone, Default)]
pub(super) struct Windows {
    /// What connections have beyond the least.
    granted: Arc<AtomicUsize>,
}

/// The window of a connection; it goes back to the budget when it is dropped.
#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    windows: Windows,
}

// === impl Windows ===

impl Windows {
    /// For a new connection.
    pub(super) fn grant(&self) -> Window {
        let more = |granted| Some(granted + size(granted) - LEAST);
        let before = self.granted.fetch_update(Relaxed, Relaxed, more);
        // The closure always gives a number.
        let (Ok(before) | Err(before)) = before;
        Window { size: size(before), windows: self.clone() }
    }
}

/// The next connection's.
fn size(granted: usize) -> usize {
    let left = BUDGET.saturating_sub(granted);
    // What it gets beyond the least is never more than is left.
    (left / PART).clamp(LEAST, MOST)
}

// === impl Window ===

impl Window {
    pub(super) fn of_connection(&self) -> u32 {
        self.size as u32
    }

    pub(super) fn of_stream(&self) -> u32 {
        (self.size / 8).clamp(STREAM.0, STREAM.1) as u32
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.windows.granted.fetch_sub(self.size - LEAST, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_windows_together_are_bounded_and_come_back() {
        let windows = Windows::default();
        let mut all: Vec<_> = (0..10_000).map(|_| windows.grant()).collect();
        let sizes: Vec<usize> = all.iter().map(|window| window.of_connection() as usize).collect();
        assert_eq!((sizes[0], sizes[9_999]), (MOST, LEAST));
        assert!(sizes.is_sorted_by(|one, next| one >= next), "earlier ones have no less");
        assert!(sizes[99] > 400 << 10, "{}", sizes[99]);
        assert!(sizes.iter().sum::<usize>() <= BUDGET + sizes.len() * LEAST);
        assert_eq!((all[0].of_stream(), all[9_999].of_stream()), (256 << 10, 32 << 10));
        all.clear();
        assert_eq!(windows.grant().of_connection() as usize, MOST);
    }
}
