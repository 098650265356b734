//! The laws of pauses and of working rates, for all rules.

use super::*;

/// A rule with its count and its period.
fn rule() -> impl Strategy<Value = (Algorithm, i64, Micros)> {
    let numbers = (3..30i64, 1_000..2_000_000i64, 0..5usize);
    numbers.prop_map(|(count, period, which)| {
        let rule = match which {
            0 => bucket(count, period, count),
            1 => Algorithm::SlidingWindow(SlidingWindow::new(count, period, 0).expect("a rule")),
            2 => Algorithm::FixedWindow(FixedWindow::new(count, period).expect("a rule")),
            3 => Algorithm::LeakyBucket(LeakyBucket::new(count, period, 0, None).expect("a rule")),
            _ => Algorithm::WarmUp(WarmUp::new(count, period, 50_000, 3.0).expect("a rule")),
        };
        (rule, count, period)
    })
}

proptest! {
    #![proptest_config(cases(256))]

    /// Nothing is granted within a pause; in the first `t` µs after it at most as many permits as flow at the working rate, and
    /// one, also where requests leave, and in any `t` µs where the rule delays nothing; and the `retry_after` of a refusal is true.
    #[test]
    fn after_a_pause_permits_flow_at_the_working_rate(
        (rule, ..) in rule(),
        steps in prop::collection::vec((0..900_000i64, 0..40u32, 0..9_000_000i64, 0..9_000_000i64), 1..40),
        first in 1..5_000_000i64,
    ) {
        let mut limiter = Limiter::new(rule);
        let mut now = T0;
        limiter.pause(now, first);
        let mut curve = limiter.gate.clone().expect("a gate");
        let mut granted = Vec::new();
        for (after, what, amount, ago) in steps {
            now += after;
            let gate = limiter.open(now).1;
            if what == 0 {
                limiter.refuse(now, amount, SECOND.max(amount), ago);
                let new = limiter.gate.clone().expect("a gate");
                if new.from != curve.from {
                    // Calls with slots within the pause ask again; after a fall all do.
                    granted.clear();
                    curve = new;
                }
                continue;
            }
            if what < 10 && !granted.is_empty() {
                let call = granted.swap_remove(amount as usize % granted.len());
                let (at, grant, _) = call;
                if at > now {
                    limiter.refund(now, grant, 1);
                } else {
                    granted.push(call);
                }
                continue;
            }
            let mut flows = limiter.flows_at(now);
            let reserved = limiter.ask(now, 1, amount);
            if now < curve.until {
                prop_assert_eq!(reserved.level.paused, curve.until - now);
            }
            let (at, parts) = match reserved.parts {
                Some(parts) => (now + reserved.at, parts),
                None => {
                    now += reserved.retry_after;
                    flows = limiter.flows_at(now);
                    let later = limiter.ask(now, 1, amount);
                    prop_assert!(later.parts.is_some(), "{:?}", later);
                    (now + later.at, later.parts.expect("granted"))
                }
            };
            if gate.is_some() {
                granted.push((at, parts[0].grant, at > flows));
            }
        }
        let mut instants: Vec<_> =
            granted.iter().map(|(at, _, is_delayed)| (*at, *is_delayed)).collect();
        instants.sort_unstable();
        let shape = Curve::new(&curve, Curve::written(&rule));
        instants.retain(|(at, _)| *at < curve.from + Curve::length(curve.unit));
        for (i, (at, _)) in instants.iter().enumerate() {
            prop_assert!(*at >= curve.until, "{} µs before the end", curve.until - at);
            // A thousandth of a permit, and the whole µs of the instants.
            let most = shape.permits(at - curve.from) + 2e-3 + 2.0 * Curve::written(&rule);
            prop_assert!(i as f64 <= most, "{i} and not {most}");
            if matches!(rule, Algorithm::LeakyBucket(_)) {
                // A call that the rule delays keeps its place, so that the next one follows it sooner.
                let flowing = instants[..i].iter().enumerate().filter(|(_, (_, is_delayed))| !is_delayed);
                for (j, (earlier, _)) in flowing {
                    let most = most - shape.permits(earlier - curve.from);
                    prop_assert!((i - j) as f64 <= most, "{} and not {most}", i - j);
                }
            }
        }
    }

    /// Requests that leave return their permits: afterwards the limiter grants as if they had not come.
    #[test]
    fn refunds_restore_the_state((rule, ..) in rule(), span in 1..5_000_000i64, waiting in 1..30usize) {
        if rule.facts().gate_field.is_none() {
            return Ok(());
        }
        let (mut limiter, mut unused) = (Limiter::new(rule), Limiter::new(rule));
        limiter.pause(T0, span);
        unused.pause(T0, span);
        let grants: Vec<_> = (0..waiting)
            .filter_map(|_| limiter.ask(T0, 1, MAX_BUDGET).parts.map(|parts| parts[0].grant))
            .collect();
        grants.into_iter().rev().for_each(|grant| limiter.refund(T0, grant, 1));
        for _ in 0..5 {
            let (a, b) = (limiter.ask(T0, 1, MAX_BUDGET), unused.ask(T0, 1, MAX_BUDGET));
            prop_assert_eq!(a.at, b.at);
        }
    }

    /// The knee lies between its least value and the written rate, whatever is refused and when.
    #[test]
    fn a_working_rate_is_never_above_the_written_one(
        (rule, ..) in rule(),
        refusals in prop::collection::vec((0..60_000_000i64, 0..3_000_000i64, 0..90_000_000i64), 1..30),
    ) {
        let mut limiter = Limiter::new(rule);
        let mut now = T0;
        for (after, span, ago) in refusals {
            now += after;
            limiter.refuse(now, span, SECOND.max(span), ago);
            prop_assert!((0.0099..=1.0).contains(&limiter.knee()), "{}", limiter.knee());
        }
    }

    /// The law of 20,000 small steps is that of the closed form; the rate never falls, and is the written one at the end. The
    /// time of some permits is the first whole µs by which so many have flown.
    #[test]
    fn the_closed_form_equals_step_by_step(
        (rule, ..) in rule(), part in 0.01..1.0f64, unit in 1_000..10_000_000i64, early in 0..5u8, wanted in 0.0..500.0f64,
    ) {
        let written = Curve::written(&rule);
        let gate = Gate { knee: Curve::stored(written * part).max(1), unit, early, ..Gate::default() };
        let curve = Curve::new(&gate, Curve::written(&rule));
        let (mut sum, mut last) = (0.0, 0.0);
        let step = Curve::length(unit) / 20_000 + 2;
        for i in 0..20_000 {
            let rate = curve.rate(i * step);
            prop_assert!(rate >= last && rate <= written * (1.0 + 1e-12), "{rate} after {last} of {written}");
            sum += (rate + curve.rate((i + 1) * step)) / 2.0 * step as f64;
            last = rate;
        }
        prop_assert!((last - written).abs() <= written * 1e-9);
        let closed = curve.permits(20_000 * step);
        prop_assert!((sum - closed).abs() <= closed * 1e-4 + 1e-9, "{sum} and {closed}");
        let time = curve.time(wanted);
        prop_assert!(curve.permits(time) >= wanted - 1e-6 && curve.permits(time - 2) <= wanted + 1e-6);
    }
}
