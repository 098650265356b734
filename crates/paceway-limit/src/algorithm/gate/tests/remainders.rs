//! The rest of a quota, as answers say it.

use super::*;

/// "5 remain, reset in 4 s" of 50 in 10 s: five pass until then, and the rule alone holds afterwards. Later values only tighten.
#[test]
fn a_remainder_bounds_the_permits_until_its_reset() {
    let rules = [
        bucket(50, 10 * SECOND, 50),
        window(50, 10 * SECOND),
        Algorithm::FixedWindow(FixedWindow::new(50, 10 * SECOND).expect("a rule")),
        Algorithm::LeakyBucket(LeakyBucket::new(50, 10 * SECOND, 0, None).expect("a rule")),
        Algorithm::WarmUp(WarmUp::new(50, 10 * SECOND, 50_000, 3.0).expect("a rule")),
    ];
    for rule in rules {
        let mut limiter = Limiter::new(rule);
        limiter.tell(T0, 5, 0, 4 * SECOND);
        let reset = T0 + 4 * SECOND;
        let slots: Vec<_> = (0..9).map(|_| T0 + limiter.ask(T0, 1, MAX_BUDGET).at).collect();
        assert_eq!(slots.iter().filter(|at| **at < reset).count(), 5, "{rule:?}");
        assert!(limiter.level(reset - 1).remaining == 0 && limiter.level(reset - 1).next >= 1);
        limiter.tell(T0 + SECOND, 9, 0, SECOND);
        assert!(T0 + SECOND + limiter.ask(T0 + SECOND, 1, MAX_BUDGET).at >= reset, "{rule:?}");
        // A pause keeps what is known of the quota.
        limiter.pause(T0 + SECOND, SECOND);
        assert!(T0 + SECOND + limiter.ask(T0 + SECOND, 1, MAX_BUDGET).at >= reset, "{rule:?}");
        limiter.tell(reset, 2, 0, 9 * SECOND);
        limiter.tell(reset, 1, 0, 20 * SECOND);
        assert_eq!(
            limiter.gate.as_ref().map(|gate| (gate.left, gate.reset)),
            Some((1, reset + 9 * SECOND))
        );
    }
}

/// Five remain, and three are promised. Another program uses some of the five: if more requests wait than remain then, these ask
/// again, and all that remains is free for them.
#[test]
fn a_remainder_below_the_promised_permits_begins_a_new_count() {
    for (remain, waiting, left) in [(5, 3, 2), (2, 2, 2), (1, 0, 1), (2, 3, 2), (4, 8, 4)] {
        let mut limiter = Limiter::new(bucket(50, 10 * SECOND, 50));
        limiter.tell(T0, 5, 0, SECOND);
        let grant = limiter.ask(T0, 3, MAX_BUDGET).parts.expect("granted")[0].grant;
        limiter.tell(T0, remain, waiting, SECOND);
        assert_eq!(limiter.gate.as_ref().map(|gate| gate.left), Some(left), "{remain}, {waiting}");
        limiter.refund(T0, grant, 3);
        let left = if waiting > remain { left } else { left + 3 };
        assert_eq!(limiter.gate.as_ref().map(|gate| gate.left), Some(left), "{remain}, {waiting}");
    }
}

/// A limiter that grants no more than remain until the reset, those that wait among them, needs no count.
#[test]
fn a_count_begins_only_where_the_rule_grants_more() {
    for (taken, remain, waiting, span, counts) in [
        (0, 5, 0, SECOND, true),
        (45, 5, 0, SECOND, false),
        (45, 4, 0, SECOND, true),
        (45, 5, 0, 30 * SECOND, true),
        (50, 3, 3, 10 * SECOND, false),
        (50, 3, 4, 10 * SECOND, true),
        (0, 80, 0, 30 * SECOND, true),
        // The fifty may come back before then.
        (50, 0, 0, 5 * SECOND, true),
    ] {
        let mut limiter = Limiter::new(window(50, 10 * SECOND));
        if taken > 0 {
            limiter.ask(T0, taken, 0);
        }
        limiter.tell(T0, remain, waiting, span);
        assert_eq!(limiter.gate.is_some(), counts, "{taken} {remain} {waiting} {span}");
    }
}

/// Two of five permits come back: two more can be taken before the reset. Permits of a count that another answer has replaced,
/// and of slots after the reset, do not.
#[test]
fn permits_come_back_to_the_remainder() {
    for rule in [bucket(50, 10 * SECOND, 50), window(50, 10 * SECOND)] {
        let mut limiter = Limiter::new(rule);
        limiter.tell(T0, 5, 0, 4 * SECOND);
        let take = |limiter: &mut Limiter| {
            let reserved = limiter.ask(T0, 1, MAX_BUDGET);
            (reserved.at, reserved.parts.expect("granted")[0].grant)
        };
        let grants: Vec<_> = (0..7).map(|_| take(&mut limiter)).collect();
        assert!(grants.iter().map(|(at, _)| *at).is_sorted() && grants[5].0 >= 4 * SECOND);
        for i in [6, 0, 1] {
            limiter.refund(T0, grants[i].1, 1);
        }
        assert_eq!(limiter.gate.as_ref().map(|gate| gate.left), Some(2), "{rule:?}");
        limiter.tell(T0, 1, 3, 4 * SECOND);
        limiter.refund(T0, grants[2].1, 1);
        assert_eq!(limiter.gate.as_ref().map(|gate| gate.left), Some(1), "{rule:?}");
    }
}

/// Nothing remains although the count has granted two of its permits: their slots are none any more, here and at other gateways, and
/// the permits do not come back. A second answer that says so is no news.
#[test]
fn nothing_remains_of_a_count_that_has_granted_permits() {
    for rule in [bucket(50, 10 * SECOND, 50), window(50, 10 * SECOND)] {
        let mut limiter = Limiter::new(rule);
        limiter.tell(T0, 2, 0, 4 * SECOND);
        let grant = limiter.ask(T0, 2, MAX_BUDGET).parts.expect("granted")[0].grant;
        limiter.tell(T0, 0, 0, 4 * SECOND);
        let told = limiter.gate.clone().expect("a gate");
        assert_eq!((told.left, told.reset), (0, T0 + 4 * SECOND + 3), "{rule:?}");
        limiter.refund(T0, grant, 2);
        limiter.tell(T0 + 1, 0, 0, 4 * SECOND - 1);
        assert_eq!(limiter.gate, Some(told), "{rule:?}");
        assert!(limiter.level(T0).remaining == 0, "{rule:?}");
        assert!(limiter.ask(T0, 1, MAX_BUDGET).at > 4 * SECOND, "{rule:?}");
    }
}

/// Gateways tell answers in another order than the upstream gave them: one of before says that a permit remains.
#[test]
fn a_late_answer_returns_no_permit_where_nothing_remains() {
    let rule = Algorithm::from(SlidingWindow::new(40, 1_000_000, 0).expect("a rule"));
    let (open, told) =
        (rule.open(None, T0), |permits, waiting| Remainder { permits, waiting, span: 900_000 });
    let emptied = Gate::remaining(None, &open, T0, told(0, 1)).expect("news").gate;
    let gate = OpenGate::new(Some(emptied), T0 + 2_000, &rule, None).expect("a gate");
    for waiting in [0, 4] {
        assert!(Gate::remaining(Some(&gate), &open, T0 + 2_000, told(1, waiting)).is_none());
    }
}
