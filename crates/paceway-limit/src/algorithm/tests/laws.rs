//! The laws that each algorithm of a rate keeps alone, whatever comes back to it.

use super::*;

proptest! {
    #![proptest_config(cases(2_560))]

    /// Laws 1 and 6: also with permits that come back late, and with those that another limiter delays.
    #[test]
    fn refunds_never_let_the_rule_be_exceeded(
        mut limiter in any_limiter(),
        steps in steps(900),
        (waits, delays) in any::<(bool, bool)>(),
    ) {
        let (mut grants, mut now) = (Vec::new(), T0);
        for Step { after, from, cost, budget, gives_back, .. } in steps {
            now += after;
            if delays && from > 0 {
                let (at, grant) = limiter.take_from(now, from, cost);
                prop_assert!(at >= now + from);
                grants.push((at, cost, grant));
            } else if let Ok((at, grant)) = limiter.ask(now, cost, budget) {
                grants.push((at, cost, grant));
            }
            let leaves: Vec<_> = (0..grants.len()).filter(|i| !waits || grants[*i].0 > now).collect();
            if let Some(i) = gives_back.and_then(|i| leaves.get(i)) {
                let (_, cost, grant) = grants.remove(*i);
                let given = limiter.refund(now, grant, cost);
                prop_assert!(given || !waits);
            }
            if let Open::WarmUp(open) = limiter.open(now) {
                prop_assert!(open.is_sound(), "{:?}", open);
            }
        }
        let grants: Vec<_> = grants.into_iter().map(|(at, cost, _)| (at, cost)).collect();
        prop_assert!(limiter.law.holds(&grants), "{:?}", grants);
    }

    /// Law 6: the next request gets the slot of one that leaves, and the one after it the slot that it would have had.
    #[test]
    fn a_refunded_slot_goes_to_the_next_request(
        mut limiter in any_limiter(),
        waiters in 2..20usize,
        leaves in 0..20usize,
    ) {
        let mut waiting = Vec::new();
        while waiting.len() < waiters && let Ok((at, grant)) = limiter.ask(T0, 1, MAX_BUDGET) {
            waiting.extend((at > T0).then_some((at, grant)));
        }
        prop_assume!(!waiting.is_empty());
        let next = limiter.ask(T0, 1, MAX_BUDGET).map(|(at, grant)| {
            limiter.refund(T0, grant, 1);
            at
        });
        let (at, grant) = waiting[leaves % waiting.len()];
        let before = limiter.open(T0);
        prop_assert!(limiter.refund(T0, grant, 1));
        // The permits of a window have no names.
        prop_assert!(limiter.rule.facts().window() > 0 || !limiter.refund(T0, grant, 1), "twice");
        prop_assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).map(|(at, _)| at), Ok(at));
        if let (Open::WarmUp(open), Open::WarmUp(before)) = (limiter.open(T0), before) {
            prop_assert!(open.colder_by(&before).is_some_and(|ticks| ticks <= 2), "{:?} {:?}", open, before);
            let last = waiting.iter().map(|(at, _)| *at).max();
            prop_assert!(limiter.clone().ask(T0, 1, MAX_BUDGET).map(|(at, _)| at) > last.ok_or(0));
        }
        let rounded = i64::from(matches!(limiter.rule, Algorithm::WarmUp(_)));
        match (limiter.ask(T0, 1, MAX_BUDGET), next) {
            (Ok((after, _)), Ok(next)) => prop_assert!((after - next).abs() <= rounded),
            (after, next) => prop_assert!(after.is_err() && next.is_err()),
        }
    }
}
