//! The permits that a limiter keeps back for requests of higher priorities. It grants nothing.

use super::Priority;

/// A number of permits of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// A number of permits.
    Permits(i64),
    /// A percentage of the permits that exist at one time, rounded up; from 1 to 99.
    Percent(i64),
}

/// The floors of a limiter: a request of a lower priority is granted no permits below a floor, and one of its priority or a
/// higher one may take all. `None`: no floor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Floors {
    /// The permits for requests of high priority.
    pub high: Option<Floor>,
    /// The permits for requests of normal and of high priority.
    pub normal: Option<Floor>,
}

// === impl Floor ===

impl Floor {
    /// The permits of this floor in a limiter with `capacity` permits.
    pub fn of(self, capacity: i64) -> i64 {
        match self {
            Self::Permits(permits) => permits,
            Self::Percent(percent) => {
                let hundredths = i128::from(capacity) * i128::from(percent);
                i64::try_from((hundredths + 99) / 100).unwrap_or(capacity)
            }
        }
    }
}

// === impl Floors ===

impl Floors {
    /// Whether no permit is kept back.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// The permits of a limiter with `capacity` permits that are kept back from requests of this priority.
    pub fn kept_from(self, priority: Priority, capacity: i64) -> i64 {
        let floors = match priority {
            Priority::High => [None, None],
            Priority::Normal => [self.high, None],
            Priority::Low => [self.high, self.normal],
        };
        floors.into_iter().flatten().map(|floor| floor.of(capacity)).max().unwrap_or(0)
    }
}
