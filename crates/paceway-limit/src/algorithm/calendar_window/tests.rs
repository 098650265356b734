//! The promises of windows of a calendar beyond the laws of all rates.

use super::*;
use crate::algorithm::{Level, OpenRate, tests::cases};
use proptest::prelude::*;
use rstest::rstest;

const SECOND: Micros = 1_000_000;
const HOUR: Micros = 3_600 * SECOND;
const DAY: Micros = 24 * HOUR;
/// 2026-11-01 00:00 UTC.
const NOVEMBER: Micros = 1_793_491_200 * SECOND;

/// Days of 24 h from `start` on, of which the first has another length.
fn days(count: i64, start: Micros, length: Micros) -> CalendarWindow {
    let end = start + length;
    CalendarWindow::new(count, [start, end, end + DAY]).expect("a rule")
}

/// A limiter and the instant of each of its grants.
struct Used {
    rule: CalendarWindow,
    state: Option<State>,
    grants: Vec<Micros>,
}

impl Used {
    fn new(rule: CalendarWindow) -> Self {
        Self { rule, state: None, grants: Vec::new() }
    }

    fn open(&mut self, now: Micros) -> Open {
        Open::new(self.state.as_mut(), now, self.rule)
    }

    /// Asks for one permit within `budget`.
    fn ask(&mut self, now: Micros, budget: Micros) -> Result<Grant, Micros> {
        let mut open = self.open(now);
        let (at, start) = open.earliest(0, 1, 0);
        if at > budget {
            return Err(at - budget);
        }
        let grant = open.take(start, 1);
        self.grants.push(now + at);
        self.state = open.close().map(|(state, _)| state);
        Ok(grant)
    }

    fn refund(&mut self, now: Micros, grant: Grant) -> bool {
        let mut open = self.open(now);
        let given = open.refund(grant, 1);
        self.state = open.close().map(|(state, _)| state);
        given
    }

    fn remaining(&mut self, now: Micros) -> i64 {
        self.open(now).level().remaining
    }
}

#[test]
fn a_day_of_25_hours_has_one_quota() {
    let mut used = Used::new(days(3, NOVEMBER, 25 * HOUR));
    for hour in [0, 10, 24] {
        used.ask(NOVEMBER + hour * HOUR, 0).expect("granted");
    }
    let last = NOVEMBER + 25 * HOUR - 1;
    assert_eq!(used.ask(NOVEMBER + 24 * HOUR + 1, 0), Err(HOUR - 1));
    assert_eq!(used.ask(last, 0), Err(1));
    used.ask(last + 1, 0).expect("granted");
}

/// The rule of a gateway that has not renewed it yet.
#[rstest]
#[case::before(-3 * DAY, 3 * DAY)]
#[case::after(5 * DAY, -5 * DAY)]
fn instants_beyond_those_of_the_rule_have_windows(#[case] from: Micros, #[case] back: Micros) {
    let mut used = Used::new(days(2, NOVEMBER, DAY));
    let now = NOVEMBER + from + HOUR;
    used.ask(now, 0).expect("granted");
    used.ask(now, 0).expect("granted");
    assert_eq!(used.ask(now, 0), Err(DAY - HOUR));
    assert_eq!(now + back, NOVEMBER + HOUR);
}

/// A window ends as the gateway says that began it, also for one with other zone data.
#[test]
fn gateways_with_other_zone_data_agree_on_the_reset() {
    let [early, late] = [DAY - HOUR, DAY].map(|length| days(5, NOVEMBER, length));
    for [first, second] in [[early, late], [late, early]] {
        let mut used = Used::new(first);
        let end = first.resets[1];
        for i in 0..5 {
            used.rule = [first, second][i % 2];
            used.ask(NOVEMBER + HOUR, 0).expect("granted");
        }
        for rule in [second, first, second] {
            used.rule = rule;
            assert_eq!(used.ask(end - HOUR, 0), Err(HOUR));
        }
        // One reset, and no second one an hour later.
        for i in 0..5 {
            used.rule = [second, first][i % 2];
            used.ask(end, HOUR).expect("granted");
        }
        for rule in [second, first] {
            used.rule = rule;
            assert!(used.ask(end + HOUR + SECOND, 0).is_err());
        }
    }
}

/// From 00:00 to 09:00, and from days to weeks and back: what is used of the present window counts.
#[rstest]
#[case::another_time(days(5, NOVEMBER - 15 * HOUR, DAY))]
#[case::weeks(CalendarWindow::new(5, [-1, 6, 13].map(|days| NOVEMBER + days * DAY)).expect("a rule"))]
fn an_edited_rule_counts_the_permits_in_use(#[case] edited: CalendarWindow) {
    let mut used = Used::new(days(5, NOVEMBER, DAY));
    for _ in 0..3 {
        used.ask(NOVEMBER + HOUR, 0).expect("granted");
    }
    used.rule = edited;
    assert_eq!(used.remaining(NOVEMBER + HOUR), 2);
    used.ask(NOVEMBER + HOUR, 0).expect("granted");
    assert_eq!(used.open(NOVEMBER + HOUR).level().reset_after, edited.resets[1] - NOVEMBER - HOUR);
    used.rule = days(7, NOVEMBER, DAY);
    assert_eq!(used.remaining(NOVEMBER + HOUR), 3);
}

/// The end of a day moves by an hour, and no call comes until some minutes after the old one: the next day begins then, and the hour
/// is no day of its own.
#[test]
fn an_edited_rule_opens_no_short_window_after_an_idle_time() {
    for idle in [SECOND, 20 * SECOND, HOUR / 2] {
        let mut used = Used::new(days(3, NOVEMBER, DAY));
        for _ in 0..3 {
            used.ask(NOVEMBER + HOUR, 0).expect("granted");
        }
        used.rule = days(3, NOVEMBER + HOUR, DAY);
        let end = NOVEMBER + DAY;
        for _ in 0..3 {
            used.ask(end + idle, 0).expect("granted");
        }
        assert_eq!(used.ask(end + idle, 0), Err(DAY + HOUR - idle), "{idle}");
    }
}

#[test]
fn a_clock_that_is_set_back_opens_no_window_again() {
    let mut used = Used::new(days(2, NOVEMBER, DAY));
    used.ask(NOVEMBER + DAY, 0).expect("granted");
    assert_eq!(used.ask(NOVEMBER + DAY - SECOND, 0), Err(SECOND));
}

/// A day of 5,000 that is begun at noon is not used up at one, and is used up at its end.
#[test]
fn the_rest_of_a_quota_flows_evenly_until_the_reset() {
    let mut used = Used::new(days(5_000, NOVEMBER, DAY).even());
    let noon = NOVEMBER + 12 * HOUR;
    let mut now = noon;
    while now < NOVEMBER + DAY {
        if let Err(later) = used.ask(now, 0) {
            now += later;
        }
    }
    assert_eq!(used.grants.len(), 5_000);
    let until = |end: Micros| used.grants.iter().filter(|at| **at < end).count();
    assert_eq!(until(noon + HOUR), 417);
    assert_eq!(until(NOVEMBER + DAY - 60 * SECOND), 4_994);
    assert!(used.grants.windows(2).all(|pair| pair[1] - pair[0] >= 8_640_000));
}

/// Callers that cannot wait and come once a second find nearly all slots.
#[rstest]
#[case::a_day(5_000, DAY)]
#[case::a_day_of_23_hours(5_000, 23 * HOUR)]
#[case::a_month_of_10_000(10_000, 30 * DAY)]
fn constant_demand_uses_the_quota_until_the_last_minutes(
    #[case] count: i64,
    #[case] length: Micros,
) {
    let mut used = Used::new(days(count, NOVEMBER, length).even());
    for now in (NOVEMBER..NOVEMBER + length).step_by(1_000_000) {
        let _ = used.ask(now, 0);
    }
    let (granted, last) = (used.grants.len() as i64, used.grants.last().expect("a grant"));
    assert!(granted <= count && granted * 100 >= count * 99, "{granted}");
    assert!(NOVEMBER + length - last <= 2 * (length / count), "{last}");
}

#[test]
fn permits_that_come_back_flow_on() {
    let mut used = Used::new(days(24, NOVEMBER, DAY).even());
    let grants: Vec<_> = (0..4).map(|_| used.ask(NOVEMBER, 4 * HOUR).expect("granted")).collect();
    let at = |i: usize| grants[i].whole - NOVEMBER;
    assert_eq!([at(0), at(1), at(2), at(3)], [0, HOUR, 2 * HOUR, 3 * HOUR]);
    // The slot of one that waits is free again; those of the last ones move the end of the line.
    assert!(used.refund(NOVEMBER, grants[1]));
    assert!(used.refund(NOVEMBER, grants[3]));
    for slot in [1, 3, 4] {
        let grant = used.ask(NOVEMBER, 4 * HOUR).expect("granted");
        assert_eq!((grant.whole - NOVEMBER) / HOUR, slot);
    }
    // The permit of a call that went is left for the rest of the day.
    assert!(used.refund(NOVEMBER, grants[0]));
    let rest: Vec<_> =
        (0..20).map(|_| used.ask(NOVEMBER + 5 * HOUR, DAY).expect("granted")).collect();
    assert_eq!(rest[1].whole - rest[0].whole, 19 * HOUR / 20);
    assert!(used.ask(NOVEMBER + 5 * HOUR, 19 * HOUR - 1).is_err());
}

/// A request that another limiter delays until noon leaves the slots before it to others.
#[test]
fn a_delayed_request_leaves_its_gap() {
    let mut used = Used::new(days(24, NOVEMBER, DAY).even());
    let mut open = used.open(NOVEMBER);
    let (at, start) = open.earliest(12 * HOUR, 1, 0);
    assert_eq!(at, 12 * HOUR);
    open.take(start, 1);
    used.state = open.close().map(|(state, _)| state);
    let hours =
        |used: &mut Used| (used.ask(NOVEMBER, DAY).expect("granted").whole - NOVEMBER) / HOUR;
    let slots: Vec<_> = (0..23).map(|_| hours(&mut used)).collect();
    let expected: Vec<_> = (0..24).filter(|hour| *hour != 12).collect();
    assert_eq!(slots, expected);
}

/// Half of the window waits for a request that another limiter delays. Others that cannot wait come as fast as permits flow, or
/// faster: they use no more than their part of each hour, and nearly all in the end.
#[rstest]
#[case::as_fast(25)]
#[case::faster(100)]
fn a_delayed_request_leaves_others_their_part(#[case] calls: i64) {
    let mut used = Used::new(days(24 * 24, NOVEMBER, DAY).even());
    let mut open = used.open(NOVEMBER);
    let (_, start) = open.earliest(12 * HOUR, 1, 0);
    open.take(start, 1);
    used.state = open.close().map(|(state, _)| state);
    for hour in 0..24 {
        let before = used.grants.len();
        for call in 0..calls {
            let _ = used.ask(NOVEMBER + hour * HOUR + 10 * SECOND + call * HOUR / calls, 0);
        }
        let granted = used.grants.len() - before;
        assert!(granted <= 28 && (granted >= 22 || hour >= 12), "{granted} in hour {hour}");
    }
    assert!(used.grants.len() * 100 >= 24 * 24 * 97, "{}", used.grants.len());
}

/// Three permits in the last 2 µs of their window have slots of 0 µs, and come back.
#[test]
fn permits_of_the_last_slot_come_back() {
    let rule = CalendarWindow::new(4, [0, 1_046, 2_092]).expect("a rule").even();
    let mut open = Open::new(None, 144, rule);
    let (at, start) = open.earliest(0, 1, 0);
    open.take(start, 1);
    let before = (at, open.earliest(900, 3, 0));
    assert_eq!(before, (0, (900, 1_044)));
    let grant = open.take(1_044, 3);
    assert_eq!(grant.aux, 1_046);
    assert!(open.refund(grant, 3));
    assert_eq!(open.earliest(900, 3, 0), before.1);
}

/// A call that comes within a free slot is granted at once.
#[test]
fn a_request_may_come_within_its_slot() {
    let mut used = Used::new(days(24, NOVEMBER, DAY).even());
    let mut open = used.open(NOVEMBER);
    let (_, start) = open.earliest(12 * HOUR, 1, 0);
    open.take(start, 1);
    used.state = open.close().map(|(state, _)| state);
    let now = NOVEMBER + 3 * HOUR / 2;
    used.ask(now, 0).expect("granted");
    assert_eq!(used.ask(now, 0), Err(HOUR / 2));
    used.ask(now + HOUR / 2, 0).expect("granted");
}

/// The level of an even flow says nothing of the rest of its window, of which a share takes over the past part.
#[test]
fn a_share_of_an_even_flow_begins_with_the_past_part_of_its_window() {
    let rule = days(100, NOVEMBER, DAY).even();
    let mut used = Used::new(rule);
    let mut now = NOVEMBER;
    while now < NOVEMBER + 6 * HOUR {
        if let Err(later) = used.ask(now, 0) {
            now += later;
        }
    }
    let level = used.open(now).level();
    let (whole, share) = (Algorithm::from(rule), rule.share(2, DAY, 1));
    assert_eq!(share.begin(&whole, level), [13]);
    assert_eq!(share.begin(&whole, Level::default()), [0; 0]);
    // Calls of the past take no slots: the rest flows at once. A piece of 1500 permits took those of half an hour.
    let (Algorithm::CalendarWindow(share), Algorithm::CalendarWindow(past)) =
        (share, share.of_past_calls())
    else {
        panic!("windows of a calendar");
    };
    let mut open = Open::new(None, now, past);
    let (_, start) = open.earliest(0, 13, 0);
    open.take(start, 13);
    let mut used = Used { state: open.close().map(|(state, _)| state), ..Used::new(share) };
    used.ask(now, 0).expect("granted");
    assert_eq!(used.ask(now, 0), Err(18 * HOUR / 37));
}

proptest! {
    #![proptest_config(cases(512))]

    /// No window gets more than its count, whatever gateways with other windows do and whatever comes back.
    #[test]
    fn a_window_never_gets_more_than_its_count(
        counts in prop::collection::vec((1..20i64, -3..3i64, any::<bool>()), 3),
        steps in prop::collection::vec(
            (0..3usize, 0..2 * HOUR, 1..4i64, 0..HOUR, prop::option::weighted(0.3, 0..5usize)),
            1..150,
        ),
    ) {
        // Zone data that differs by a quarter of an hour at most.
        let rules: Vec<_> = counts.iter().map(|(count, shift, is_even)| {
            let rule = days(*count, NOVEMBER + shift * HOUR / 4, DAY);
            if *is_even { rule.even() } else { rule }
        }).collect();
        let most = counts.iter().map(|(count, ..)| *count).max().unwrap_or(0);
        let (mut state, mut now) = (None::<State>, NOVEMBER + HOUR);
        let mut grants: Vec<(Grant, i64)> = Vec::new();
        let mut ends = std::collections::BTreeMap::<(Micros, Micros), i64>::new();
        for (rule, after, cost, budget, gives_back) in steps {
            now += after;
            let mut open = Open::new(state.as_mut(), now, rules[rule]);
            if let Some(i) = gives_back.filter(|i| *i < grants.len()) {
                let (grant, cost) = grants.swap_remove(i);
                let window = open.window(grant.whole);
                if open.refund(grant, cost) {
                    *ends.entry((window.start, window.end)).or_default() -= cost;
                }
            }
            let cost = cost.min(rules[rule].count);
            let (at, start) = open.earliest(0, cost, 0);
            if at <= budget {
                let window = open.window(start);
                grants.push((open.take(start, cost), cost));
                *ends.entry((window.start, window.end)).or_default() += cost;
            }
            for pair in open.windows.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            for window in &open.windows {
                prop_assert_eq!(ends.get(&(window.start, window.end)), Some(&window.used));
                prop_assert!(window.used <= most);
            }
            state = open.close().map(|(state, _)| state);
        }
    }
}
