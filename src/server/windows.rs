//! Bounds the bytes of request bodies that all HTTP/2 connections together can make the gateway hold. Opens no window by
//! itself.
//!
//! While a request waits for its slot, its body waits in the flow-control windows of its HTTP/2 connection (RFC 9113
//! section 5.2), so that a client can fill the window of a connection. With 2 MiB each, 1,000 connections could make the
//! gateway hold 2 GiB. Therefore each new connection gets a part of one budget for the whole process.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The bytes that all windows of all workers together may have beyond [`LEAST`].
const BUDGET: usize = 128 << 20;
/// A new connection gets 1/64 of the budget that is left, so that later connections get some, too: the 100th gets 480 KiB.
const PART: usize = 64;
/// The largest window of a connection, 2 MiB: eight held uploads of 256 KiB fill it, and a ninth has to wait for them.
const MOST: usize = 2 << 20;
/// The smallest window of a connection, 64 KiB - 1: each begins with it, and no setting makes it smaller (RFC 9113
/// section 6.9.2).
const LEAST: usize = (64 << 10) - 1;
/// The least and the largest window of one stream, which gets 1/8 of its connection's. 256 KiB let an upload run at 5 MB/s
/// over a round trip of 50 ms.
const STREAM: (usize, usize) = (32 << 10, 256 << 10);

/// The budget for the windows of all connections of a process, shared by its workers.
#[derive(Debug, Clone, Default)]
pub(super) struct WindowBudget {
    /// The bytes that open connections have beyond [`LEAST`].
    granted: Arc<AtomicUsize>,
}

/// The window of one connection. Its bytes return to the budget on drop.
#[derive(Debug)]
pub(super) struct ConnectionWindow {
    size: usize,
    budget: WindowBudget,
}

// === impl WindowBudget ===

impl WindowBudget {
    /// Takes the window of a new connection out of the budget.
    pub(super) fn grant(&self) -> ConnectionWindow {
        let more = |granted| Some(granted + size(granted) - LEAST);
        let before = self.granted.fetch_update(Relaxed, Relaxed, more);
        // The closure always gives a number.
        let (Ok(before) | Err(before)) = before;
        ConnectionWindow { size: size(before), budget: self.clone() }
    }
}

/// Returns the window of the next connection when open ones have `granted` bytes beyond [`LEAST`]. Its part is
/// never more than the rest of the budget.
fn size(granted: usize) -> usize {
    let left = BUDGET.saturating_sub(granted);
    (left / PART).clamp(LEAST, MOST)
}

// === impl ConnectionWindow ===

impl ConnectionWindow {
    pub(super) fn of_connection(&self) -> u32 {
        self.size as u32
    }

    pub(super) fn of_stream(&self) -> u32 {
        (self.size / 8).clamp(STREAM.0, STREAM.1) as u32
    }
}

impl Drop for ConnectionWindow {
    fn drop(&mut self) {
        self.budget.granted.fetch_sub(self.size - LEAST, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_windows_together_are_bounded_and_returned() {
        let windows = WindowBudget::default();
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
