//! Upstreams that count calls in ways of their own, and see them after a travel time that varies within the
//! margin.

use super::*;

#[derive(Debug, Clone)]
struct Step {
    after: Micros,
    budget: Micros,
    leaves: Option<usize>,
    /// How long its way to the upstream takes, parts of the margin.
    way: f64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![Just(0), 0..60i64, 0..2_000i64];
    let budget = prop_oneof![Just(0), 0..4_000i64];
    let way = prop_oneof![Just(0.0), Just(1.0), 0.0..=1.0f64];
    let step = (after, budget, prop::option::weighted(0.3, 0..6usize), way);
    let step = step.prop_map(|(after, budget, leaves, way)| Step { after, budget, leaves, way });
    prop::collection::vec(step, 1..80)
}

/// When the requests that did not leave arrive.
fn arrivals(limiter: &mut Limiter, margin: Micros, steps: Vec<Step>) -> Vec<Micros> {
    let (mut sent, mut waiting, mut now) = (Vec::new(), Vec::<(Micros, Grant, f64)>::new(), T0);
    for Step { after, budget, leaves, way } in steps {
        now += after;
        sent.extend(waiting.extract_if(.., |(at, ..)| *at <= now));
        if let Some(i) = leaves.filter(|i| *i < waiting.len()) {
            let (_, grant, _) = waiting.remove(i);
            assert!(limiter.refund(now, grant, 1));
        }
        if let Ok((at, grant)) = limiter.ask(now, 1, budget) {
            waiting.push((at, grant, way));
        }
    }
    sent.append(&mut waiting);
    let arrives = |(at, _, way): (Micros, Grant, f64)| at + (way * margin as f64) as Micros;
    let mut arrivals: Vec<_> = sent.into_iter().map(arrives).collect();
    arrivals.sort_unstable();
    arrivals
}

/// Counts in windows of `period` since `phase`.
fn fixed_windows(arrivals: &[Micros], count: i64, period: Micros, phase: Micros) -> bool {
    let window = |at: Micros| (at - phase).div_euclid(period);
    arrivals.iter().all(|at| {
        let inside = arrivals.iter().filter(|other| window(**other) == window(*at));
        inside.count() as i64 <= count
    })
}

/// An upstream that opens a window at the first call, and a new one at the first call that comes a period
/// later.
fn first_hit_windows(arrivals: &[Micros], count: i64, period: Micros) -> bool {
    let (mut start, mut hits) = (Micros::MIN / 2, 0);
    arrivals.iter().all(|at| {
        if at - start >= period {
            (start, hits) = (*at, 0);
        }
        hits += 1;
        hits <= count
    })
}

/// Counts those of the last period.
fn sliding_log(arrivals: &[Micros], count: i64, period: Micros) -> bool {
    arrivals.iter().all(|at| {
        let inside = arrivals.iter().filter(|other| (at - period + 1..=*at).contains(other));
        inside.count() as i64 <= count
    })
}

/// Refills a bucket of `count` evenly; levels in permits times the period.
fn bucket(arrivals: &[Micros], count: i64, period: Micros) -> bool {
    let (mut level, mut last) = (count * period, T0);
    arrivals.iter().all(|at| {
        level = (level + (at - last) * count).min(count * period) - period;
        last = *at;
        level >= 0
    })
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    /// The upstream has nothing to refuse, whichever way it counts and whichever waiting requests leave.
    #[test]
    fn no_upstream_refuses_calls_paced_by_a_sliding_window_or_leaky_bucket(
        leaky in any::<bool>(),
        (count, period, margin) in (1..9i64, 9..900i64, 0..200i64),
        phase in 0..900i64,
        steps in steps(),
    ) {
        let mut limiter = match leaky {
            true => Limiter::leaky_bucket(count, period, margin, None),
            false => Limiter::sliding_window(count, period, margin),
        };
        let arrivals = arrivals(&mut limiter, margin, steps);
        prop_assert!(fixed_windows(&arrivals, count, period, T0 + phase));
        prop_assert!(first_hit_windows(&arrivals, count, period));
        prop_assert!(sliding_log(&arrivals, count, period));
        prop_assert!(bucket(&arrivals, count, period));
    }
}
