//! Chains of edits of the configuration, also with gateways before and after an edit side by side.

use super::*;

#[derive(Debug, Clone)]
struct Step {
    after: Micros,
    /// Which rule the gateway has that asks.
    rule: usize,
    cost: i64,
    budget: Micros,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![Just(0), 0..100i64, 0..2_000i64];
    let budget = prop_oneof![2 => Just(0), 1 => 0..3_000i64];
    let step = (after, 0..3usize, 1..4i64, budget);
    let step = step.prop_map(|(after, rule, cost, budget)| Step { after, rule, cost, budget });
    prop::collection::vec(step, 1..60)
}

fn three_of_a_kind() -> impl Strategy<Value = [Limiter; 3]> {
    prop_oneof![
        [token_bucket(), token_bucket(), token_bucket()],
        [leaky_bucket(), leaky_bucket(), leaky_bucket()],
        [warm_up(), warm_up(), warm_up()],
        [sliding_window(), sliding_window(), sliding_window()],
        [fixed_window(), fixed_window(), fixed_window()],
    ]
}

/// Limiters whose permits take some ms to some hundred ms, so that what is rounded does not count; with a burst
/// for all when there is one.
fn slow(law: Law, common: Option<i64>) -> Limiter {
    match law {
        Law::Bucket { count, period, burst } => {
            Limiter::token_bucket(count, 1_000 * period, common.unwrap_or(burst))
        }
        Law::Paced { count, period } => Limiter::leaky_bucket(count, 1_000 * period, 0, None),
        law => panic!("{law:?} does not flow"),
    }
}

/// Permits that are owed and flow off.
#[derive(Debug, Clone, Copy)]
struct Flow {
    owed: f64,
    written: Micros,
    law: Law,
}

impl Flow {
    fn pace(law: Law) -> (f64, i64) {
        match law {
            Law::Bucket { count, period, burst } => (period as f64 / count as f64, burst),
            Law::Paced { count, period } => (period as f64 / count as f64, 0),
            law => panic!("{law:?} does not flow"),
        }
    }

    /// At `now` under `law`: since the last grant the faster of both rules has been in force. Waiting requests keep their
    /// instants, and without them a greater burst has started empty. Nothing is owed once the old rule has forgotten.
    fn read(self, now: Micros, law: Law) -> Self {
        let ((old, old_burst), (new, new_burst)) = (Self::pace(self.law), Self::pace(law));
        let [old_burst, new_burst] = [old_burst, new_burst].map(|burst| burst.max(1) as f64);
        let converted = |owed: f64| match owed - old_burst {
            ahead if ahead > 0.0 => new_burst + ahead * old / new,
            ahead => new_burst + ahead,
        };
        let span = (now - self.written) as f64;
        let left = converted(self.owed - span / old).min(converted(self.owed) - span / new);
        let owed = if span / old >= self.owed { 0.0 } else { left.max(0.0) };
        Self { owed, written: now, law }
    }

    fn wait(self, cost: i64) -> f64 {
        let (per, burst) = Self::pace(self.law);
        let room = if burst > 0 { burst - cost } else { 0 };
        (self.owed - room as f64).max(0.0) * per
    }
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    /// Law 3 across edits: the state of an earlier rule locks no request out for longer than a refusal said.
    #[test]
    fn a_caller_passes_at_the_announced_instant_after_any_edits(
        rules in three_of_a_kind(),
        steps in steps(),
    ) {
        let (mut limiter, mut now) = (rules[0].clone(), T0);
        for Step { after, rule, cost, budget } in steps {
            now += after;
            limiter.rule = rules[rule].rule;
            let before = limiter.state.clone();
            if let Err(retry_after) = limiter.ask(now, cost, budget) {
                prop_assert_eq!(&limiter.state, &before);
                let again = limiter.clone().ask(now + retry_after, cost, budget);
                prop_assert!(again.is_ok(), "{:?} behind {}", again, retry_after);
            }
        }
    }
    /// Law 9: the level is that of a tank which is edited.
    #[test]
    fn edits_neither_create_nor_lose_permits(
        rules in prop_oneof![
            [token_bucket(), token_bucket(), token_bucket()],
            [leaky_bucket(), leaky_bucket(), leaky_bucket()],
        ],
        burst in prop::option::of(3..8i64),
        steps in steps(),
    ) {
        let rules = rules.map(|limiter| slow(limiter.law, burst));
        let (mut limiter, mut now) = (rules[0].clone(), T0);
        let mut flow = Flow { owed: 0.0, written: T0, law: limiter.law };
        let paces = rules.each_ref().map(|limiter| Flow::pace(limiter.law).0);
        let [fastest, slowest] = [f64::min, f64::max].map(|of| paces.into_iter().reduce(of).unwrap());
        let (mut grants, mut rounded) = (Vec::new(), 2.0);
        for Step { after, rule, cost, budget } in steps {
            now += 1_000 * after;
            (limiter.rule, limiter.law) = (rules[rule].rule, rules[rule].law);
            let read = flow.read(now, limiter.law);
            let left = flow.owed - (now - flow.written) as f64 / Flow::pace(flow.law).0;
            // A microsecond under the fastest rule is a part of a permit. Under the slowest one that part is a longer time,
            // such as 77 µs at 6.8 ms and 526 ms a permit, and a promised instant keeps it under every later rule.
            let tolerance = rounded / fastest * slowest;
            if left.abs() * Flow::pace(flow.law).0 < tolerance {
                // Forgotten or not is a matter of rounding.
                break;
            }
            let (at, granted) = match limiter.ask(now, cost, 1_000 * budget) {
                Ok((at, _)) => (at - now, true),
                Err(retry_after) => (1_000 * budget + retry_after, false),
            };
            prop_assert!((at as f64 - read.wait(cost)).abs() <= tolerance, "{} {:?}", at, read);
            if granted {
                flow = Flow { owed: read.owed + cost as f64, ..read };
                rounded += 2.0;
                grants.push((now + at, cost));
            }
        }
        // Law 14: all requests obey at least the fastest of the rules. A bucket that was full under a smaller burst
        // is forgotten, and with it that its burst was smaller.
        let Some(burst) = burst else { return Ok(()) };
        let most = if Flow::pace(limiter.law).1 > 0 { burst } else { 3 };
        grants.sort_unstable();
        for i in 0..grants.len() {
            for j in i..grants.len() {
                let through: i64 = grants[i..=j].iter().map(|(_, cost)| cost).sum();
                let span = (grants[j].0 - grants[i].0) as f64;
                let span = span + rounded / fastest * slowest;
                prop_assert!(through as f64 <= most as f64 + span / fastest + 0.1, "{:?}", grants);
            }
        }
    }

    /// Law 9: a limit of one a day that is used up locks no request out of ten a second, and grants no permit
    /// too many.
    #[test]
    fn a_caller_without_a_wait_passes_soon_after_an_edit(kind in 0..3usize, idle in 0..3_600_000_000i64) {
        const DAY: Micros = 86_400_000_000;
        let pair = |count, period| match kind {
            0 => Limiter::token_bucket(count, period, count),
            1 => Limiter::leaky_bucket(count, period, 0, None),
            _ => Limiter::warm_up(count, period, 1, 2.0),
        };
        let (mut limiter, edited) = (pair(1, DAY), pair(1, 100_000));
        limiter.ask(T0, 1, 0).expect("granted");
        limiter.rule = edited.rule;
        let mut now = T0 + idle;
        while let Err(retry_after) = limiter.ask(now, 1, 0) {
            prop_assert!(retry_after <= 100_001 && now < T0 + idle + 100_001);
            now += retry_after;
        }
        prop_assert!(now >= T0 + 100_000);
    }
}
