//! The cycle in which calls repeat that come as fast as their limiters allow: most of a long forecast follows from it. It decides
//! no call.

use crate::{
    algorithm::{Algorithm, Micros, Rule},
    store::Check,
};

/// Calls whose instants follow from those of the cycle before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cycle {
    /// How many calls it has.
    pub(super) calls: usize,
    /// How long it takes, µs.
    pub(super) span: Micros,
}

impl Cycle {
    /// The cycle at the end of these instants of calls with `checks`; `None` if there is none, or none that is certain to last.
    ///
    /// It lasts if no limiter grants less than it takes, and the instants have repeated for longer than any limiter
    /// remembers a call.
    pub(super) fn of(instants: &[Micros], checks: &[Check]) -> Option<Self> {
        let rules: Vec<_> = checks.iter().map(|check| repeating(&check.algorithm)).collect();
        let rules = rules.into_iter().collect::<Option<Vec<_>>>()?;
        let memory = |rule: &&Algorithm| rule.refill_time().max(rule.facts().window());
        let memory = rules.iter().map(memory).max()? + 1;
        let cycle = Self::last_of(instants, memory)?;
        let lasts = |(rule, check): (&&Algorithm, &Check)| {
            let [period, count] = rule.facts().pace.map(i128::from);
            let taken = i128::from(check.cost) * cycle.calls as i128;
            let is_aligned = match rule {
                Algorithm::FixedWindow(_) => cycle.span % rule.facts().window() == 0,
                _ => true,
            };
            taken * period <= i128::from(cycle.span) * count && is_aligned
        };
        rules.iter().zip(checks).all(lasts).then_some(cycle)
    }

    /// The shortest cycle by which at least half of the instants and a time of `memory` repeat the ones before.
    fn last_of(instants: &[Micros], memory: Micros) -> Option<Self> {
        let last = *instants.last()?;
        // The steps from the end on, and for each the length of the longest end of those up to it that is also their beginning
        // (Knuth, Morris and Pratt 1977).
        let steps: Vec<_> = instants.windows(2).rev().map(|pair| pair[1] - pair[0]).collect();
        let mut repeated = vec![0_usize; steps.len()];
        for i in 1..steps.len() {
            let mut length = repeated[i - 1];
            while length > 0 && steps[i] != steps[length] {
                length = repeated[length - 1];
            }
            length += usize::from(steps[i] == steps[length]);
            repeated[i] = length;
            let calls = i + 1 - length;
            let before = instants.len() - 1 - length;
            if 2 * length >= steps.len() && last - instants[before] >= memory {
                let span = last - instants[instants.len() - 1 - calls];
                return (span > 0).then_some(Self { calls, span });
            }
        }
        None
    }
}

/// The rule of a rate, if it grants the same whenever it is asked. One that warms up may rise too slowly for whole µs to tell.
fn repeating(rule: &Rule) -> Option<&Algorithm> {
    let changes =
        |rate: &Algorithm| matches!(rate, Algorithm::CalendarWindow(_) | Algorithm::WarmUp(_));
    rule.as_rate().filter(|rate| !changes(rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
    use rstest::rstest;

    fn bucket(count: i64, period: Micros, burst: i64) -> Rule {
        TokenBucket::new(count, period, burst).expect("a rule").into()
    }

    #[rstest]
    #[case::a_bucket(&[bucket(5, 1_000_000, 2)], 1, 200_000, Some((1, 200_000)))]
    #[case::a_fraction_of_a_microsecond(&[bucket(3, 1_000_000, 1)], 3, 1_000_000, Some((3, 1_000_000)))]
    #[case::faster_than_the_bucket(&[bucket(5, 1_000_000, 2)], 1, 199_999, None)]
    #[case::not_for_as_long_as_a_window(&[SlidingWindow::new(900, 900_000_000, 0).expect("a rule").into()], 1, 1_000_000, None)]
    #[case::windows(&[FixedWindow::new(5, 1_000_000).expect("a rule").into()], 5, 1_000_000, Some((5, 1_000_000)))]
    #[case::beside_the_windows(&[FixedWindow::new(5, 1_000_000).expect("a rule").into()], 1, 300_000, None)]
    fn a_cycle_lasts_if_each_limiter_grants_it(
        #[case] rules: &[Rule],
        #[case] calls: i64,
        #[case] span: Micros,
        #[case] expected: Option<(usize, Micros)>,
    ) {
        let checks: Vec<_> = rules.iter().map(|rule| Check::new("a", *rule)).collect();
        // Each cycle begins with its steps of a µs, after some calls of another one.
        let at = |i: i64| i / calls * span + i % calls;
        let instants: Vec<_> = [-900, -500].into_iter().chain((0..600).map(at)).collect();
        let found = Cycle::of(&instants, &checks).map(|cycle| (cycle.calls, cycle.span));
        assert_eq!(found, expected);
    }
}
