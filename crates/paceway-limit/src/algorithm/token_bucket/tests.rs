use super::*;
use crate::algorithm::{
    Algorithm, MAX_HOLES, Open as AnyOpen, State as AnyState,
    reserve::{self, Want},
};
use proptest::prelude::*;
use rstest::rstest;

const T0: Micros = 1_700_000_000_000_000;
const SECOND: Micros = 1_000_000;

fn rule(count: i64, period: Micros, burst: i64) -> TokenBucket {
    TokenBucket::new(count, period, burst).expect("a rule")
}

/// A bucket with its own clock, for tests that only ask.
struct Bucket {
    rule: TokenBucket,
    state: Option<State>,
}

impl Bucket {
    fn new(count: i64, period: Micros, burst: i64) -> Self {
        Self { rule: rule(count, period, burst), state: None }
    }

    /// The instant of the grant, or what `earliest` says when it is beyond `budget`.
    fn ask(&mut self, now: Micros, cost: i64, budget: Micros) -> Result<(Micros, Grant), Micros> {
        let mut open = Open::new(self.state.as_mut(), now, self.rule);
        let (at, start) = open.earliest(0, cost);
        if at > budget {
            return Err(at);
        }
        let grant = open.take(start, cost);
        self.state = open.close().map(|(state, _)| state);
        Ok((now + at, grant))
    }

    fn refund(&mut self, now: Micros, grant: Grant, cost: i64) -> bool {
        let mut open = Open::new(self.state.as_mut(), now, self.rule);
        let given = open.refund(grant, cost);
        self.state = open.close().map(|(state, _)| state);
        given
    }
}

#[rstest]
#[case::no_permits(0, SECOND, 1)]
#[case::no_burst(1, SECOND, 0)]
#[case::negative(-1, SECOND, 1)]
#[case::more_than_one_a_microsecond(1001, 1000, 1)]
#[case::takes_centuries(1, 366 * 86_400 * SECOND, 1_000_000)]
fn what_is_no_rule(#[case] count: i64, #[case] period: Micros, #[case] burst: i64) {
    assert_eq!(TokenBucket::new(count, period, burst), None);
}

#[rstest]
#[case::reduced(300, 60 * SECOND, 300, (200_000, 1))]
#[case::fraction(7, SECOND, 7, (1_000_000, 7))]
#[case::high(80_000, SECOND, 80_000, (25, 2))]
fn rates_are_reduced(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] burst: i64,
    #[case] (per, den): (i64, i64),
) {
    assert_eq!(rule(count, period, burst), TokenBucket { per, den, burst });
}

#[test]
fn a_full_bucket_gives_its_burst_at_once_then_one_a_period() {
    let mut bucket = Bucket::new(5, SECOND, 5);
    let asks = (0..8).map(|_| bucket.ask(T0, 1, 10 * SECOND).expect("granted").0 - T0);
    let expected = [0, 0, 0, 0, 0, 200_000, 400_000, 600_000];
    assert_eq!(asks.collect::<Vec<_>>(), expected);
}

#[rstest]
#[case::seven_a_second(7, SECOND, 7)]
#[case::eighty_thousand_a_second(80_000, SECOND, 80_000)]
#[case::one_a_day(1, 86_400 * SECOND, 1)]
#[case::a_prime_a_minute(997, 60 * SECOND, 3)]
fn a_million_saturated_grants_end_at_the_exact_microsecond(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] burst: i64,
) {
    const GRANTS: i64 = 1_000_000;
    let mut bucket = Bucket::new(count, period, burst);
    let mut now = T0;
    // Whoever is refused comes back at the very instant that was said.
    for _ in 0..GRANTS {
        while let Err(at) = bucket.ask(now, 1, 0) {
            now += at;
        }
    }
    let exact = i128::from(GRANTS - burst) * i128::from(period);
    let exact = (exact + i128::from(count) - 1).div_euclid(i128::from(count));
    assert_eq!(i128::from(now - T0), exact);
}

#[test]
fn a_million_reservations_ahead_end_at_the_exact_microsecond() {
    // 250,000 a second, so that all of them fit into the longest budget.
    let mut open = Open::new(None, T0, rule(3_000_000, 7 * SECOND, 1));
    let mut last = 0;
    for _ in 0..1_000_000 {
        let (at, start) = open.earliest(0, 1);
        open.take(start, 1);
        last = at;
    }
    assert_eq!(last, (999_999 * 7 + 2) / 3);
}

#[rstest]
#[case::a_prime_a_day(123_457, 86_400 * SECOND)]
#[case::a_prime_a_second(999_983, SECOND)]
#[case::a_large_prime_a_minute(10_000_019, 60 * SECOND)]
fn a_rate_beyond_exact_arithmetic_becomes_a_hair_slower(
    #[case] count: i64,
    #[case] period: Micros,
) {
    let TokenBucket { per, den, .. } = rule(count, period, count);
    let excess = i128::from(per) * i128::from(count) - i128::from(period) * i128::from(den);
    assert!(excess >= 0, "faster than asked for");
    let parts_per_million = excess * 1_000_000 / (i128::from(period) * i128::from(den));
    assert!(parts_per_million <= 2, "{parts_per_million} parts in a million slower");
}

#[test]
fn a_slot_given_back_goes_to_the_next_who_asks() {
    let mut bucket = Bucket::new(1, SECOND, 1);
    let grants: Vec<_> = (0..4).map(|_| bucket.ask(T0, 1, 10 * SECOND).expect("granted")).collect();
    assert!(bucket.refund(T0 + 10, grants[2].1, 1));
    assert_eq!(bucket.ask(T0 + 20, 1, 10 * SECOND).expect("granted").0, T0 + 2 * SECOND);
    assert_eq!(bucket.ask(T0 + 20, 1, 10 * SECOND).expect("granted").0, T0 + 4 * SECOND);
}

#[test]
fn the_last_slot_given_back_leaves_nothing_behind() {
    let mut bucket = Bucket::new(1, SECOND, 1);
    bucket.ask(T0, 1, 0).expect("granted");
    let before = bucket.state.clone();
    let (_, grant) = bucket.ask(T0, 1, SECOND).expect("granted");
    assert!(bucket.refund(T0, grant, 1));
    assert_eq!(bucket.state, before);
}

#[test]
fn nothing_is_given_back_twice_or_late_or_to_another_state() {
    let mut bucket = Bucket::new(1, SECOND, 1);
    let grants: Vec<_> =
        (0..3).map(|_| bucket.ask(T0, 1, 10 * SECOND).expect("granted").1).collect();
    assert!(bucket.refund(T0, grants[1], 1));
    assert!(!bucket.refund(T0, grants[1], 1), "twice");
    assert!(!bucket.refund(T0 + SECOND + 1, grants[0], 1), "late");
    bucket.state = None;
    bucket.ask(T0 + 7, 1, 0).expect("granted");
    assert!(!bucket.refund(T0 + 8, grants[2], 1), "another state");
}

#[test]
fn a_request_with_a_slow_limiter_leaves_the_fast_one_to_others() {
    let mut slow = AnyOpen::TokenBucket(Open::new(None, T0, rule(1, 10 * SECOND, 1)));
    let mut fast = AnyOpen::TokenBucket(Open::new(None, T0, rule(5, SECOND, 5)));
    let mut both = |budget| {
        let mut wants = [
            Want { open: &mut slow, cost: 1, enforce: true },
            Want { open: &mut fast, cost: 1, enforce: true },
        ];
        reserve::decide(&mut wants, budget, None)
    };
    assert_eq!(both(0).at, 0);
    assert_eq!(both(60 * SECOND).at, 10 * SECOND);
    assert_eq!(both(60 * SECOND).at, 20 * SECOND);
    assert_eq!(both(0).parts, None);
    // One of five went at once; what is reserved for later takes nothing away from now.
    let mut grants = |from: Micros| {
        let (at, start) = fast.earliest(from, 1);
        fast.take(start, 1);
        at
    };
    let now: Vec<_> = (0..6).map(|_| grants(0)).collect();
    assert_eq!(now, [0, 0, 0, 0, 200_000, 400_000]);
}

#[test]
fn a_thousand_who_wait_for_a_slow_limiter_leave_the_fast_one_to_others() {
    let mut slow = AnyOpen::TokenBucket(Open::new(None, T0, rule(10, SECOND, 1)));
    let mut fast = AnyOpen::TokenBucket(Open::new(None, T0, rule(100, SECOND, 10)));
    for i in 0..1000 {
        let mut wants = [
            Want { open: &mut slow, cost: 1, enforce: true },
            Want { open: &mut fast, cost: 1, enforce: true },
        ];
        assert_eq!(reserve::decide(&mut wants, MAX_BUDGET, None).at, i * SECOND / 10);
    }
    // They use a tenth of it; the rest of 100 s goes to those who need only the fast one.
    let mut granted = 0;
    loop {
        let (at, start) = fast.earliest(0, 1);
        if at > 90 * SECOND {
            break;
        }
        fast.take(start, 1);
        granted += 1;
    }
    assert!((8_100..=8_120).contains(&granted), "{granted}");
}

#[test]
fn an_observing_limiter_changes_nothing_for_the_others() {
    let mut strict = AnyOpen::TokenBucket(Open::new(None, T0, rule(1, SECOND, 1)));
    let mut loose = AnyOpen::TokenBucket(Open::new(None, T0, rule(100, SECOND, 100)));
    let mut decide = || {
        let mut wants = [
            Want { open: &mut strict, cost: 1, enforce: false },
            Want { open: &mut loose, cost: 1, enforce: true },
        ];
        reserve::decide(&mut wants, 0, None)
    };
    let first = decide().parts.expect("admitted");
    let second = decide().parts.expect("admitted");
    assert_eq!((first[0].at, second[0].at), (0, -1));
    assert_eq!((first[1].at, second[1].at), (0, 0));
}

#[rstest]
#[case::same((5, SECOND, 5), 5)]
#[case::faster((50, SECOND, 5), 5)]
#[case::slower((1, SECOND, 5), 5)]
#[case::greater_burst((5, SECOND, 9), 5)]
#[case::smaller_burst((5, SECOND, 3), 5)]
fn a_change_of_the_rule_keeps_an_empty_bucket_empty(
    #[case] (count, period, burst): (i64, Micros, i64),
    #[case] taken: i64,
) {
    let mut bucket = Bucket::new(5, SECOND, 5);
    for _ in 0..taken {
        bucket.ask(T0, 1, 0).expect("granted");
    }
    bucket.rule = rule(count, period, burst);
    let (per, den) = (bucket.rule.per, bucket.rule.den);
    assert_eq!(bucket.ask(T0, 1, 0), Err(ceil_div(per, den)));
}

#[test]
fn a_change_there_and_back_gives_no_free_burst() {
    let mut bucket = Bucket::new(5, SECOND, 5);
    let mut granted = 0;
    for i in 0..40 {
        bucket.rule = rule(5, SECOND, if i % 2 == 0 { 5 } else { 8 });
        granted += i32::from(bucket.ask(T0 + i, 1, 0).is_ok());
    }
    assert_eq!(granted, 5);
}

#[test]
fn holes_are_bounded() {
    let mut open = Open::new(None, T0, rule(1, 1000, 1));
    for i in 0..2 * MAX_HOLES as i64 {
        // Each leaves a gap before it, as a request does that waits for another limiter.
        let (_, start) = open.earliest(5000 * (i + 1), 1);
        open.take(start, 1);
    }
    assert_eq!(open.line.holes.len(), MAX_HOLES);
}

#[derive(Debug, Clone)]
struct Step {
    after: Micros,
    cost: i64,
    budget: Micros,
    gives_back: Option<usize>,
}

fn steps(longest: Micros) -> impl Strategy<Value = Vec<Step>> {
    let budget = prop_oneof![Just(0), 0..4 * longest];
    let step = (0..longest, 1..4i64, budget, prop::option::weighted(0.3, 0..6usize));
    let step = step.prop_map(move |(after, cost, budget, gives_back)| Step {
        after: after * after / longest,
        cost,
        budget,
        gives_back,
    });
    prop::collection::vec(step, 1..60)
}

/// A rule with whole µs a permit, small enough to search by brute force.
fn small() -> impl Strategy<Value = TokenBucket> {
    (1..30i64, 1..6i64).prop_map(|(per, burst)| rule(1, per, burst.max(3)))
}

fn any() -> impl Strategy<Value = TokenBucket> {
    (1..40i64, 40..900i64, 3..8i64).prop_map(|(count, period, burst)| rule(count, period, burst))
}

/// The law itself: in no half-open interval `[a, a + t)` of whole µs more than `burst + t·den/per`.
fn obeys(rule: TokenBucket, grants: &mut [(Micros, i64)]) -> bool {
    grants.sort_unstable();
    (0..grants.len()).all(|first| {
        let mut permits = 0;
        grants[first..].iter().all(|(at, cost)| {
            permits += cost;
            let t = at - grants[first].0 + 1;
            (permits - rule.burst) * rule.per <= t * rule.den
        })
    })
}

/// The first µs at which a grant breaks no closed interval of what was granted before: obviously the rule,
/// and obviously slow. For whole µs a permit.
fn brute_force(rule: TokenBucket, grants: &[(Micros, i64)], now: Micros, cost: i64) -> Micros {
    let fits = |at: Micros| {
        grants.iter().map(|grant| grant.0).chain([at]).all(|from| {
            let inside = grants.iter().filter(|grant| (from..=at).contains(&grant.0));
            let permits: i64 = inside.map(|grant| grant.1).sum::<i64>() + cost;
            from > at || (permits - rule.burst) * rule.per <= at - from
        })
    };
    let last = grants.iter().map(|grant| grant.0).max().unwrap_or(now);
    (now.max(last)..).find(|at| fits(*at)).expect("some instant")
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    #[test]
    fn without_gifts_it_is_the_rule_itself(rule in small(), steps in steps(60)) {
        let (mut bucket, mut grants, mut now) = (Bucket { rule, state: None }, Vec::new(), T0);
        for Step { after, cost, budget, .. } in steps {
            now += after;
            let expected = brute_force(rule, &grants, now, cost);
            match bucket.ask(now, cost, budget) {
                Ok((at, _)) => {
                    prop_assert_eq!(at, expected);
                    grants.push((at, cost));
                }
                Err(wait) => {
                    prop_assert_eq!(now + wait, expected);
                    prop_assert!(wait > budget);
                }
            }
        }
    }

    #[test]
    fn never_too_many_whatever_is_given_back(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let (mut grants, mut now) = (Vec::new(), T0);
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            if let Ok((at, grant)) = bucket.ask(now, cost, budget) {
                grants.push((at, cost, grant));
            }
            // Only who still waits can leave.
            let waiting: Vec<_> = (0..grants.len()).filter(|i| grants[*i].0 > now).collect();
            if let Some(i) = gives_back.and_then(|i| waiting.get(i)) {
                let (_, cost, grant) = grants.remove(*i);
                prop_assert!(bucket.refund(now, grant, cost));
            }
        }
        let mut grants: Vec<_> = grants.into_iter().map(|(at, cost, _)| (at, cost)).collect();
        prop_assert!(obeys(rule, &mut grants), "{:?}", grants);
    }

    #[test]
    fn what_was_never_used_may_be_given_back_at_any_time(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let (mut grants, mut now) = (Vec::new(), T0);
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            if let Some(i) = gives_back.filter(|i| *i < grants.len()) {
                let (_, cost, grant) = grants.remove(grants.len() - 1 - i);
                bucket.refund(now, grant, cost);
            }
            if let Ok((at, grant)) = bucket.ask(now, cost, budget) {
                grants.push((at, cost, grant));
            }
        }
        let mut grants: Vec<_> = grants.into_iter().map(|(at, cost, _)| (at, cost)).collect();
        prop_assert!(obeys(rule, &mut grants), "{:?}", grants);
    }

    #[test]
    fn what_was_given_back_is_there_for_the_next(rule in any(), waiters in 2..20usize, leaves in 0..20usize) {
        let mut bucket = Bucket { rule, state: None };
        let grants: Vec<_> = (0..rule.burst as usize + waiters)
            .map(|_| bucket.ask(T0, 1, MAX_BUDGET).expect("granted"))
            .collect();
        let (at, grant) = grants[rule.burst as usize + leaves % waiters];
        let last = grants.last().expect("some").0;
        prop_assert!(bucket.refund(T0, grant, 1));
        prop_assert_eq!(bucket.ask(T0, 1, MAX_BUDGET).expect("granted").0, at);
        prop_assert!(bucket.ask(T0, 1, MAX_BUDGET).expect("granted").0 >= last);
    }

    #[test]
    fn retry_after_is_true_and_not_a_microsecond_too_late(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let mut now = T0;
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            let before = bucket.state.clone();
            match bucket.ask(now, cost, budget) {
                Err(wait) => {
                    prop_assert_eq!(&bucket.state, &before, "a refusal leaves no trace");
                    let retry = wait - budget;
                    let ask = |bucket: &Bucket, now| {
                        Bucket { rule, state: bucket.state.clone() }.ask(now, cost, budget).is_ok()
                    };
                    prop_assert!(ask(&bucket, now + retry), "too early");
                    prop_assert!(!ask(&bucket, now + retry - 1), "too late");
                }
                Ok((at, grant)) if gives_back.is_some() && at > now => {
                    prop_assert!(bucket.refund(now, grant, cost));
                }
                Ok(_) => {}
            }
        }
    }

    #[test]
    fn forgetting_equals_full(rule in any(), steps in steps(900), late in 0..1000i64, cost in 1..4i64) {
        let mut bucket = Bucket { rule, state: None };
        let mut now = T0;
        for Step { after, cost, budget, .. } in steps {
            now += after;
            let _ = bucket.ask(now, cost, budget);
        }
        if let Some((_, ttl)) = Open::new(bucket.state.as_mut(), now, rule).close() {
            let then = now + ttl + late;
            let kept = Open::new(bucket.state.as_mut(), then, rule);
            let gone = Open::new(None, then, rule);
            prop_assert_eq!(kept.earliest(0, cost), gone.earliest(0, cost));
            prop_assert_eq!(kept.level(), gone.level());
            let just_before = Open::new(bucket.state.as_mut(), now + ttl - 1, rule);
            prop_assert!(just_before.close().is_some());
        }
    }

    #[test]
    fn remaining_permits_are_there_and_no_more(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let mut now = T0;
        for Step { after, budget, .. } in steps {
            now += after;
            let _ = bucket.ask(now, 1, budget);
            let level = Open::new(bucket.state.as_mut(), now, rule).level();
            let mut copy = Bucket { rule, state: bucket.state.clone() };
            let taken = (0..).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
            prop_assert_eq!(level.next == 0, taken > 0);
        }
    }

    #[test]
    fn two_limiters_pass_all_or_nothing_and_both_obey(
        rules in (any(), any()),
        steps in steps(900),
    ) {
        let rules = [rules.0, rules.1];
        let mut states: [Option<AnyState>; 2] = [None, None];
        let (mut grants, mut now) = ([Vec::new(), Vec::new()], T0);
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            // Some requests need only one of them.
            let used = match gives_back { Some(0 | 1) => 0..1, Some(2 | 3) => 1..2, _ => 0..2 };
            let mut open: Vec<_> = used.clone()
                .map(|i| Algorithm::TokenBucket(rules[i]).open(states[i].as_mut(), now))
                .collect();
            let mut wants: Vec<_> =
                open.iter_mut().map(|open| Want { open, cost, enforce: true }).collect();
            let reserved = reserve::decide(&mut wants, budget, None);
            if reserved.parts.is_some() {
                for (i, open) in used.zip(open) {
                    states[i] = open.close().map(|(state, _)| state);
                    grants[i].push((now + reserved.at, cost));
                }
            } else {
                prop_assert!(reserved.at > budget);
            }
        }
        for (rule, grants) in rules.into_iter().zip(&mut grants) {
            prop_assert!(obeys(rule, grants), "{:?} {:?}", rule, grants);
        }
    }
}
