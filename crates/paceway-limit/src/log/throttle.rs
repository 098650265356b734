//! A bound for the log lines of one place in the code that a client, an upstream or a store can cause as
//! often as it likes.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How many lines one place may write within [`PERIOD`]: enough for the first addresses of an upstream that
/// all fail at once.
const LINES: u32 = 10;
/// The length of the period that [`LINES`] counts in.
const PERIOD: Duration = Duration::from_secs(10);

/// Bounds the lines of one place in the code, for the whole process: 10 in 10 s. It is a `static` beside that
/// place:
///
/// ```
/// use paceway_limit::log::{Permit, Throttle};
///
/// static LINES: Throttle = Throttle::new();
/// if let Some(Permit { suppressed }) = LINES.permit() {
///     tracing::warn!(suppressed, "a line that a client can cause");
/// }
/// ```
#[derive(Debug)]
pub struct Throttle(Mutex<Window>);

#[derive(Debug)]
struct Window {
    /// When the first line of the period was written.
    since: Option<Instant>,
    /// How many lines the period may still have.
    left: u32,
    /// How many lines were suppressed since the last one that was written.
    suppressed: u64,
}

/// Allows one line, and says how many were suppressed before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// How many lines of this place were suppressed since the last one; a field of the line. `None` if there
    /// were none.
    pub suppressed: Option<u64>,
}

// === impl Throttle ===

impl Throttle {
    /// A bound for one place, which has written no line yet.
    pub const fn new() -> Self {
        Self(parking_lot::const_mutex(Window { since: None, left: 0, suppressed: 0 }))
    }

    /// Allows a line, or counts it as a suppressed one.
    pub fn permit(&self) -> Option<Permit> {
        self.permit_at(Instant::now())
    }

    fn permit_at(&self, now: Instant) -> Option<Permit> {
        let mut window = self.0.lock();
        if window.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (window.since, window.left) = (Some(now), LINES);
        }
        if window.left == 0 {
            window.suppressed += 1;
            return None;
        }
        window.left -= 1;
        let suppressed = std::mem::take(&mut window.suppressed);
        Some(Permit { suppressed: (suppressed > 0).then_some(suppressed) })
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_bounded_and_counted() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        let none = Some(Permit { suppressed: None });
        for _ in 0..LINES {
            assert_eq!(throttle.permit_at(start), none);
        }
        for at in 0..1000 {
            assert_eq!(throttle.permit_at(start + Duration::from_millis(at)), None);
        }
        let next = throttle.permit_at(start + PERIOD);
        assert_eq!(next, Some(Permit { suppressed: Some(1000) }));
        assert_eq!(throttle.permit_at(start + PERIOD), none);
    }
}
