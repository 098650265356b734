//! How many gateways share a rule: the number that the store last confirmed. Never asks the store, and has no clock of its
//! own.

use crate::store::{ABSENT, GONE};
use std::time::Duration;
use tokio::time::Instant;

/// The store must report fewer gateways for this long before the number shrinks. After `FLUSHALL` the set of gateways is
/// empty, and each gateway enters it again with its next heartbeat; three periods of a heartbeat leave time for those
/// whose answers are late.
const CONFIRMED: Duration = Duration::from_secs(3);
/// Two answers that are further apart than this confirm nothing together: the store may have stalled between them, and
/// then the heartbeats of the others are not in its answer yet.
const GAP: Duration = Duration::from_secs(2);

/// The number of gateways, as far as it is confirmed.
#[derive(Debug)]
pub(super) struct GatewayCount {
    known: i64,
    /// The store reports fewer gateways than `known`.
    fewer: Option<Fewer>,
    /// How many gateways the store reports as absent, and since when so many.
    absent: Option<(i64, Instant)>,
    /// The store has lost the set of gateways.
    lost: Option<Lost>,
}

/// A run of answers that all report fewer gateways than are known.
#[derive(Debug, Clone, Copy)]
struct Fewer {
    since: Instant,
    last: Instant,
    /// The largest number among these answers.
    most: i64,
}

/// A loss of the set of gateways, by `FLUSHALL` for one. A gateway that is cut off at that moment cannot enter it again.
#[derive(Debug, Clone, Copy)]
struct Lost {
    since: Instant,
    /// The number of gateways before the loss.
    gateways: i64,
    /// How many of them were absent then, and since when. They count as dead 10 s after their last heartbeats, as they
    /// would without the loss.
    absent: Option<(i64, Instant)>,
}

// === impl GatewayCount ===

impl GatewayCount {
    /// A gateway that knows of no other one.
    pub(super) fn new() -> Self {
        Self { known: 1, fewer: None, absent: None, lost: None }
    }

    /// The store reports `gateways`; returns how many share each rule. The number grows at once, and shrinks when the
    /// store has reported fewer for [`CONFIRMED`] without a gap.
    pub(super) fn counted(&mut self, gateways: i64, now: Instant) -> i64 {
        let gateways = gateways.max(1);
        if gateways >= self.known {
            *self = Self { known: gateways, fewer: None, ..*self };
            return gateways;
        }
        let fewer = match self.fewer {
            Some(run) if now.saturating_duration_since(run.last) <= GAP => {
                Fewer { last: now, most: run.most.max(gateways), ..run }
            }
            _ => Fewer { since: now, last: now, most: gateways },
        };
        if now.saturating_duration_since(fewer.since) >= CONFIRMED {
            *self = Self { known: fewer.most, fewer: None, ..*self };
        } else {
            self.fewer = Some(fewer);
        }
        self.known
    }

    /// The store reports that `absent` of all `gateways` are absent. While fewer are in the set than are known, the others
    /// are not there only because the set was lost.
    pub(super) fn absent(&mut self, absent: i64, gateways: i64, now: Instant) {
        if absent == 0 && gateways < self.known {
            return;
        }
        let since = match self.absent {
            Some((before, since)) if absent <= before => since,
            _ => now,
        };
        self.absent = (absent > 0).then_some((absent, since));
    }

    /// The store has lost the set of gateways.
    pub(super) fn lost(&mut self, now: Instant) {
        self.lost = Some(Lost { since: now, gateways: self.known, absent: self.absent });
    }

    /// How many gateways were in the set before the last loss and are not among the `gateways` in it now. Each may be cut
    /// off, and decide by its share. After [`GONE`] it counts as dead, as any gateway without a heartbeat does.
    pub(super) fn missing(&self, gateways: i64, now: Instant) -> i64 {
        let has_passed = |since: Instant, span| now.saturating_duration_since(since) >= span;
        let Some(lost) = self.lost.filter(|lost| !has_passed(lost.since, GONE)) else { return 0 };
        let dead = lost.absent.filter(|(_, since)| has_passed(*since, GONE - ABSENT));
        let dead = dead.map_or(0, |(absent, _)| absent);
        (lost.gateways - dead - gateways.max(1)).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Reports of the store, each some ms after the one before, and how many gateways share each rule then.
    #[rstest]
    #[case::grows_at_once(&[(0, 2, 2), (1, 5, 5)])]
    #[case::a_gateway_that_is_gone(&[(0, 3, 3), (1000, 2, 3), (1000, 2, 3), (1000, 2, 3), (1000, 2, 2)])]
    #[case::flushed(&[(0, 3, 3), (100, 1, 3), (500, 2, 3), (500, 3, 3), (9000, 3, 3)])]
    #[case::flushed_then_stalled(&[(0, 3, 3), (1000, 1, 3), (1400, 1, 3), (4000, 1, 3), (200, 3, 3)])]
    #[case::the_most_of_those_that_were_reported(&[(0, 5, 5), (1, 1, 5), (1500, 3, 5), (1500, 2, 3)])]
    #[case::shrinks_again(&[(0, 5, 5), (1, 3, 5), (2000, 3, 5), (1000, 2, 3), (1, 2, 3), (1500, 2, 3), (1500, 2, 2)])]
    #[case::none_is_this_one(&[(0, 0, 1)])]
    fn the_count_follows_confirmed_reports(#[case] reports: &[(u64, i64, i64)]) {
        let (mut count, mut now) = (GatewayCount::new(), Instant::now());
        for (i, (later, reported, expected)) in reports.iter().enumerate() {
            now += Duration::from_millis(*later);
            assert_eq!(count.counted(*reported, now), *expected, "the report {i} of {reports:?}");
        }
    }

    /// One of three gateways is cut off when the set is lost. It counts as missing for 10 s.
    #[test]
    fn a_gateway_outside_the_new_set_is_counted_as_missing() {
        let (mut count, now) = (GatewayCount::new(), Instant::now());
        count.counted(3, now);
        assert_eq!(count.missing(2, now), 0, "nothing is lost");
        count.lost(now);
        let later = |s: u64| now + Duration::from_secs(s);
        assert_eq!([1, 2, 3, 4].map(|gateways| count.missing(gateways, later(1))), [2, 1, 0, 0]);
        for s in 1..6 {
            count.counted(2, later(s));
        }
        assert_eq!((count.missing(2, later(9)), count.missing(2, later(10))), (1, 0));
    }

    /// A gateway that was killed 5 s before the loss is missed for 10 s in sum, not for 10 s from the loss on.
    #[test]
    fn a_gateway_that_was_absent_before_the_loss_is_not_missed_for_longer() {
        let (mut count, now) = (GatewayCount::new(), Instant::now());
        let later = |ms: u64| now + Duration::from_millis(ms);
        count.counted(2, now);
        count.absent(1, 2, later(1500));
        count.absent(1, 2, later(4500));
        // The answer to a later heartbeat can overtake the one that reports the loss.
        count.absent(0, 1, later(4999));
        count.lost(later(5000));
        assert_eq!((count.missing(1, later(9900)), count.missing(1, later(10_000))), (1, 0));
    }
}
