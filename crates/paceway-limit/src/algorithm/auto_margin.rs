//! The margin of a limiter before an upstream to which the delay varies by an unknown time: it grows when the
//! upstream refuses a call of a window that the limiter kept, and shrinks slowly. A pure function of the record
//! that all gateways share.
//!
//! A margin that is as great as the variation of the delay is exact, and a greater one costs permits. The times
//! of answers bound that variation: if they differ by 80 ms, so does the delay at most. They also vary because
//! the upstream works for a while, so their spread is no margin by itself, only the most that can be of use.

use super::Micros;

/// All gateways know a refusal after 100 ms. Calls that were sent before that belong to the wave that caused the last
/// growth.
const WAVE: Micros = 100_000;

/// The least growth, 5 ms: less is not worth a further refusal.
const STEP: Micros = 5_000;

/// The margin shrinks by a fiftieth per so many periods without a refusal, and at most once a minute.
const PERIODS: i64 = 60;
const MINUTE: Micros = 60_000_000;

/// The bound of an automatic margin, and the pace at which it shrinks.
///
/// ```
/// use paceway_limit::algorithm::auto_margin::{AutoMargin, MarginReport};
///
/// let rule = AutoMargin { most: 1_000_000 };
/// // The times of answers differ by 100 ms, and the upstream refuses: a quarter of that, and once more.
/// let mut learned = rule.first(0);
/// for sent in [1_000_000, 2_000_000] {
///     let report = MarginReport { spread: Some(100_000), refused: Some(sent) };
///     learned = rule.next(learned, report, sent + 50_000);
/// }
/// assert_eq!(learned.margin, 50_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoMargin {
    /// The greatest margin: the period of the limiter, µs.
    pub most: Micros,
}

/// The knowledge about the delay to one upstream, which all gateways share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedMargin {
    /// The margin that holds now, µs.
    pub margin: Micros,
    /// When it changed last, on the store's clock.
    pub changed: Micros,
    /// When it grew last; 0 if it never did.
    pub grew: Micros,
}

/// The observations of one gateway since its last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MarginReport {
    /// By how much the times of answers differed, µs. `None` without two of them.
    pub spread: Option<Micros>,
    /// When the last call was sent that the upstream refused while the limiter had no permit left.
    pub refused: Option<Micros>,
}

// === impl AutoMargin ===

impl AutoMargin {
    /// The record of a limiter that no gateway has used.
    pub fn first(&self, now: Micros) -> LearnedMargin {
        LearnedMargin { margin: 0, changed: now, grew: 0 }
    }

    /// The record after a report at `now`; the same record when the report changes nothing.
    pub fn next(&self, learned: LearnedMargin, report: MarginReport, now: Micros) -> LearnedMargin {
        // The clock of the store may have been set back: no refusal would count until it is there again.
        let [changed, grew] = [learned.changed, learned.grew].map(|at| at.min(now));
        let margin = learned.margin.clamp(0, self.most);
        let learned = LearnedMargin { margin, changed, grew };
        let is_new = |sent: &Micros| grew == 0 || *sent > grew + WAVE;
        if report.refused.as_ref().is_some_and(is_new) {
            // Beyond the spread the delay is not the reason: the quota is lower, or another program uses it.
            let most = report.spread.map_or(self.most, |spread| (spread + STEP).min(self.most));
            let step = (margin / 2).max(report.spread.unwrap_or(0) / 4).max(STEP);
            let margin = (margin + step).min(most).max(margin);
            return LearnedMargin { margin, changed: now, grew: now };
        }
        if margin > 0 && now - changed >= self.most.saturating_mul(PERIODS).max(MINUTE) {
            let margin = margin - (margin / 50).max(1);
            return LearnedMargin { margin, changed: now, grew };
        }
        learned
    }
}

// === impl LearnedMargin ===

impl LearnedMargin {
    /// The record as a store keeps it: a version and three numbers.
    pub fn text(&self) -> String {
        let Self { margin, changed, grew } = self;
        format!("1 {margin} {changed} {grew}")
    }

    /// Reads [`Self::text`]; `None` for any other text, and for numbers that no rule makes.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<i64> =
            text.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [1, margin, changed, grew] = words[..] else { return None };
        let fits = [margin, changed, grew].iter().all(|number| (0..super::EXACT).contains(number));
        fits.then_some(Self { margin, changed, grew })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: AutoMargin = AutoMargin { most: 1_000_000 };

    fn refused(sent: Micros, spread: Option<Micros>) -> MarginReport {
        MarginReport { spread, refused: Some(sent) }
    }

    #[test]
    fn a_margin_grows_once_for_each_wave_up_to_the_spread() {
        let mut learned = RULE.next(RULE.first(0), refused(10, Some(40_000)), 20);
        assert_eq!(learned.margin, 10_000);
        assert_eq!(RULE.next(learned, refused(20 + WAVE, Some(40_000)), 200_000), learned);
        for now in (1..9).map(|second| second * 1_000_000) {
            learned = RULE.next(learned, refused(now, Some(40_000)), now + 1);
        }
        assert_eq!(learned.margin, 45_000, "the spread and 5 ms");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_silence_refusals() {
        let learned = LearnedMargin { margin: 0, changed: 60 * MINUTE, grew: 60 * MINUTE };
        let learned = RULE.next(learned, MarginReport::default(), MINUTE);
        let sent = MINUTE + WAVE + 1;
        assert!(RULE.next(learned, refused(sent, None), sent + 1).margin > 0);
    }

    #[test]
    fn a_margin_shrinks_by_a_fiftieth_a_minute() {
        let learned = LearnedMargin { margin: 50_000, changed: 0, grew: 1 };
        let report = MarginReport::default();
        assert_eq!(RULE.next(learned, report, MINUTE - 1), learned);
        assert_eq!(RULE.next(learned, report, MINUTE).margin, 49_000);
    }

    #[test]
    fn the_text_of_a_record_is_read_again() {
        let learned = LearnedMargin { margin: 50_000, changed: 7, grew: 1 };
        assert_eq!(LearnedMargin::parse(&learned.text()), Some(learned));
        for wrong in ["", "1 5 1", "2 5 1 1", "1 -5 1 1", "1 5 1 1 1", "1 x 1 1"] {
            assert_eq!(LearnedMargin::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_margin_stays_within_its_bounds(
            most in 1_000..3_600_000_000i64,
            reports in prop::collection::vec(
                (0..200_000_000i64, any::<Option<u32>>(), any::<Option<u32>>()), 1..60
            ),
        ) {
            let rule = AutoMargin { most };
            let (mut learned, mut now) = (rule.first(0), 0);
            for (span, ago, spread) in reports {
                now += span;
                let refused = ago.map(|ago| now - i64::from(ago));
                learned = rule.next(learned, MarginReport { spread: spread.map(i64::from), refused }, now);
                prop_assert!((0..=most).contains(&learned.margin));
            }
        }
    }
}
