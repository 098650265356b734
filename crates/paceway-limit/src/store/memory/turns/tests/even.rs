//! Windows whose permits flow evenly until their reset, beside what else changes a state: tenants, true costs, requests that leave,
//! and pauses of the upstream.

use super::*;
use crate::{algorithm::CalendarWindow, store::Pause};
use rstest::rstest;

const SECOND: Micros = 1_000_000;
const HOUR: Micros = 3_600 * SECOND;

/// An hour with so many permits, of which nothing is used at its begin.
fn hour(count: i64) -> Algorithm {
    CalendarWindow::new(count, [T0, T0 + HOUR, T0 + 2 * HOUR]).expect("a rule").even().into()
}

/// The calls before an instant, from the begin of the hour on.
fn before(sent: &[(Micros, i64)], end: Micros) -> i64 {
    sent.iter().filter(|(at, _)| *at < T0 + end).map(|(_, cost)| cost).sum()
}

/// One tenant asks for twice as much as another. Both wait, and each has half of what flows.
#[test]
fn two_waiting_tenants_have_equal_shares_of_an_even_window() {
    let mut world = World::new(hour(1_800));
    let mut asked = [0; 2];
    for i in 0..700_i64 {
        for tenant in [0, 0, 1] {
            asked[usize::from(tenant)] += 1;
            assert!(world.ask(world.checks(tenant, 1), HOUR).admitted);
        }
        world.until(T0 + (i + 1) * SECOND);
    }
    let waiting = |tenant: &str| {
        let is_own =
            |checks: &Checks| checks[0].turn.as_ref().is_some_and(|own| &*own.tenant == tenant);
        world.waiting.values().filter(|(checks, ..)| is_own(checks)).count()
    };
    let served = [asked[0] - waiting("0"), asked[1] - waiting("1")];
    assert!(served[0].abs_diff(served[1]) <= 2, "{served:?}");
    assert!((before(&world.sent, 700 * SECOND) - 350).abs() <= 2, "{}", world.sent.len());
    world.until(T0 + HOUR - 1);
    assert!((before(&world.sent, HOUR) - 1_800).abs() <= 1, "{}", before(&world.sent, HOUR));
}

/// Calls reserve 1,000 tokens, use 300 and say so 2 s later. Each third one that has to wait leaves. Permits that come back flow on.
#[test]
fn unused_parts_of_reserves_flow_until_the_reset() {
    let (rule, store) = (hour(120_000), MemoryStore::default());
    let check = Check::new("a", rule).with_cost(1_000);
    let checks: Checks = [check.clone()].into();
    let (mut used, mut open) = (Vec::new(), Vec::new());
    for i in 0..1_800_i64 {
        let now = T0 + i * 2 * SECOND;
        let entry = Entry::Reserve { checks: checks.clone(), budget: 5 * SECOND, ticket: None };
        if let Some(Reply::Decision(decision)) = store.run_at(now, &[entry]).pop()
            && decision.admitted
        {
            let (grant, leaves) = (decision.parts[0].grant, decision.wait > 0 && i % 3 == 0);
            open.push((now + decision.wait, grant, leaves));
        }
        for (at, grant, leaves) in
            open.extract_if(.., |(at, _, leaves)| *leaves || *at + 2 * SECOND <= now)
        {
            let (grant, cost) = match rule.unused_part(grant, 1_000, 300) {
                Some(unused) if !leaves => unused,
                _ => (grant, 1_000),
            };
            let check = check.clone().with_cost(cost);
            let replies = store.run_at(now, &[Entry::Refund { check, grant }]);
            assert_eq!(replies, [Reply::Done(true)]);
            used.extend((!leaves).then_some((at, 300)));
        }
    }
    let [half, all] = [HOUR / 2, HOUR].map(|end| before(&used, end));
    // The reserves of the last calls are not used.
    assert!((114_000..=120_000).contains(&all), "{all}");
    assert!((54_000..=66_000).contains(&half), "{half}");
}

/// The upstream pauses the hour. Nothing is sent meanwhile, and what is left flows until the reset, without a burst. A pause of more
/// than a tenth of the hour lowers the rate to what the upstream accepted, which makes up for nothing.
#[rstest]
#[case::short(60, 990)]
#[case::long(600, 750)]
fn no_burst_follows_a_pause(#[case] seconds: i64, #[case] least: i64) {
    let (rule, store) = (hour(1_000), MemoryStore::default());
    let checks: Checks = [Check::new("a", rule)].into();
    let (begin, span) = (HOUR / 2, seconds * SECOND);
    let mut sent = Vec::new();
    for i in 0..7_200_i64 {
        let now = i * SECOND / 2;
        if now == begin {
            let pause = Pause::for_micros(span, 429);
            store.run_at(T0 + now, &[Entry::Pause { check: checks[0].clone(), pause }]);
        }
        let entry = Entry::Reserve { checks: checks.clone(), budget: 0, ticket: None };
        if let Some(Reply::Decision(decision)) = store.run_at(T0 + now, &[entry]).pop()
            && decision.admitted
        {
            sent.push((T0 + now, 1));
        }
    }
    let [paused, resumed, minute] =
        [begin, begin + span, begin + span + 60 * SECOND].map(|end| before(&sent, end));
    assert_eq!(resumed, paused);
    // A permit in 3.6 s before, and after the long pause in 2.4 s.
    assert!(minute - resumed <= 27, "{} in a minute", minute - resumed);
    let all = before(&sent, HOUR);
    assert!((least..=1_000).contains(&all), "{all}");
}
