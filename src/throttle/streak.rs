//! Counts the refusals of an upstream in a row, by which the default pause doubles. Reads no clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bits of the count; the others hold the time of the last refusal that was counted.
const COUNT_BITS: u32 = 6;
const MOST: u64 = (1 << COUNT_BITS) - 1;

/// The refusals of one upstream in a row, in one gateway.
///
/// A wave of calls that were under way together is one refusal: 20 answers of 429 within 50 ms double the pause once, not 20
/// times. Times are µs on any monotonic clock, such as that of the process.
#[derive(Debug, Default)]
pub struct RefusalStreak(AtomicU64);

// === impl RefusalStreak ===

impl RefusalStreak {
    /// Counts the refusal of a call that was sent at `sent`, and returns the number of refusals in a row, at least 1. The
    /// refusal of a call that was sent before the last counted refusal came belongs to the same wave.
    pub fn refused(&self, sent: u64, now: u64) -> u32 {
        let next = |old: u64| {
            let (since, count) = (old >> COUNT_BITS, old & MOST);
            let is_same_wave = count > 0 && sent < since;
            (!is_same_wave).then(|| (now << COUNT_BITS) | (count + 1).min(MOST))
        };
        let old = match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(old) => next(old).unwrap_or(old),
            Err(same) => same,
        };
        u32::try_from(old & MOST).unwrap_or(u32::MAX)
    }

    /// Whether there was a refusal, so that an answer may end a row.
    #[inline]
    pub fn is_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Ends the row when an answer is no refusal. An answer to a call that was sent before the last refusal came does not:
    /// it says nothing about the time after it.
    #[cold]
    pub fn accepted(&self, sent: u64) {
        let old = self.0.load(Ordering::Relaxed);
        if sent >= old >> COUNT_BITS {
            // A refusal that was counted meanwhile is kept.
            let _ = self.0.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_counts_once() {
        let streak = RefusalStreak::default();
        assert_eq!((0..20).map(|i| streak.refused(i, 100 + i)).max(), Some(1));
        assert_eq!(streak.refused(150, 300), 2);
        assert_eq!(streak.refused(160, 310), 2);
        assert_eq!(streak.refused(301, 500), 3);
    }

    #[test]
    fn a_success_ends_the_row_if_it_was_sent_after_the_refusal() {
        let streak = RefusalStreak::default();
        streak.refused(0, 100);
        streak.accepted(99);
        assert_eq!(streak.refused(200, 300), 2);
        streak.accepted(300);
        assert_eq!(streak.refused(400, 500), 1);
    }

    #[test]
    fn the_count_has_a_bound() {
        let streak = RefusalStreak::default();
        let last = (0..1000).map(|i| streak.refused(i, i)).last();
        assert_eq!(last, u32::try_from(MOST).ok());
    }
}
