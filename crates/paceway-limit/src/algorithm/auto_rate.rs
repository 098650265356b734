//! The rate of a limiter whose quota is not known: it grows while the quota is used and nothing is refused, and
//! falls at a refusal. A pure function of the record that all gateways share; it grants no permits.
//!
//! Source: additive increase, multiplicative decrease (Chiu and Jain, 1989), with a growth of a tenth. A
//! refusal is expensive: the upstream's pause costs as many calls as a rate that is three percent too low for
//! half a minute. So the rule remembers which rate the upstream refused and which lower one it accepted, and halves the
//! distance between the two, as BIC does (Xu, Harfoush and Rhee, 2004). Then it stays at the accepted one for long, and
//! passes the refused one in small steps at first, as CUBIC does (RFC 9438, section 4.1).
//! `examples/simulate` compares it with fixed rates; `docs/limiting.md` has the figures.

use super::Micros;
use std::time::Duration;

/// A rate as the number of permits in 10^9 s: one permit a day is 11,574 of them.
pub type Nanohertz = i64;

/// The highest automatic rate: 1,000,000/s.
pub const MAX_RATE: Nanohertz = 1_000_000 * PER_SECOND;

/// The lowest automatic rate: a permit in 11.6 days.
pub const MIN_RATE: Nanohertz = 1_000;

const PER_SECOND: Nanohertz = 1_000_000_000;

/// All gateways know a refusal after 100 ms. Calls that were sent before that belong to the wave of the refusal that
/// caused the last decrease.
const WAVE: Micros = 100_000;

/// For how many periods the rate stays at the accepted one: 32 at first, and up to 128 when the upstream refuses at about
/// the same rate again.
const FIRST_HOLD: i64 = 32;
const MOST_HOLD: i64 = 128;

/// For how many periods the rate stays at each step from there to the refused rate, and at each step above it. A rate
/// counts as accepted after the first of the two.
const NEAR: i64 = 4;
const ABOVE: i64 = 2;

/// The distance of the accepted and the refused rate at which the search between them ends, as a part of the rate. Ways
/// that differ by 10 ms need half of it before an upstream that counts seconds.
const CLOSE: i64 = 40;

/// The bounds of an automatic rate, and the pace at which it changes.
///
/// ```
/// use paceway_limit::algorithm::auto_rate::{AutoRate, RateReport, RefusedCall, nanohertz};
///
/// // From 5/s, between 1/s and 100/s; a step each second.
/// let [start, min, max] = [5, 1, 100].map(|count| nanohertz(count, 1_000_000));
/// let rule = AutoRate { start, min, max, period: 1_000_000 };
/// let used = RateReport { used: true, refused: None };
/// let grown = rule.next(rule.first(0), used, 1_000_000);
/// assert_eq!(grown.rate, start + start / 10);
/// let call = RefusedCall { sent: 1_500_000, rate: grown.rate };
/// let refused = RateReport { used: true, refused: Some(call) };
/// assert_eq!(rule.next(grown, refused, 1_600_000).rate, grown.rate / 10 * 7);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoRate {
    /// The rate before anything is known.
    pub start: Nanohertz,
    /// The lowest rate.
    pub min: Nanohertz,
    /// The highest rate.
    pub max: Nanohertz,
    /// The time after which the rate may grow by a tenth, µs.
    pub period: Micros,
}

/// The knowledge about the quota of one limiter, which all gateways share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedRate {
    /// The rate that holds now.
    pub rate: Nanohertz,
    /// When the rate changed last, on the store's clock.
    pub changed: Micros,
    /// When it fell last; 0 if it never did.
    pub fell: Micros,
    /// The rate at about which the upstream refuses; 0 if that is not known.
    pub refused: Nanohertz,
    /// The highest rate that the upstream is known to accept; 0 if none is, as after a refusal at that rate.
    pub accepted: Nanohertz,
    /// For how many periods the rate stays shortly below `refused`.
    pub hold: i64,
}

/// The observations of one gateway since its last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateReport {
    /// Most requests had to wait for the limiter or were refused by it, so the quota is used.
    pub used: bool,
    /// The last of the calls that the upstream refused.
    pub refused: Option<RefusedCall>,
}

/// A call that the upstream refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedCall {
    /// When it was sent, on the store's clock.
    pub sent: Micros,
    /// The rate that held when its slot was promised. The rate may have grown while the call waited for that slot.
    pub rate: Nanohertz,
}

/// Where a rate is with regard to the one that the upstream refused.
enum Phase {
    /// No refused rate is known: the rate grows by a tenth.
    Free,
    /// The rate is below the given one, to which it returns by a tenth at a time.
    Below(Nanohertz),
    /// The rate is halfway between an accepted and a refused one.
    Halfway,
    /// The rate is as high as it can probably be, and stays for `hold` periods.
    Knee,
    /// The rate is close to the refused one and grows by a hundredth at a time.
    Near,
    /// The quota has probably grown: each step is twice the last one, up to a tenth.
    Above,
}

/// `count` permits per `period` µs, as permits in 10^9 s, rounded down.
pub fn nanohertz(count: i64, period: Micros) -> Nanohertz {
    let rate = i128::from(count) * 1_000_000_000_000_000 / i128::from(period.max(1));
    i64::try_from(rate).unwrap_or(MAX_RATE)
}

/// The time in which `count` permits flow in at a rate, µs, rounded up, so that the rule is never faster; `None` beyond exact
/// integers.
pub(super) fn span_of(count: i64, rate: Nanohertz) -> Option<Micros> {
    let rate = i128::from(rate.clamp(MIN_RATE, MAX_RATE));
    i64::try_from((i128::from(count) * 1_000_000_000_000_000 + rate - 1) / rate).ok()
}

/// How many permits flow in during `span` µs at a rate, rounded down; `None` beyond exact integers.
pub(super) fn permits_in(span: Micros, rate: Nanohertz) -> Option<i64> {
    let rate = i128::from(rate.clamp(MIN_RATE, MAX_RATE));
    i64::try_from(rate * i128::from(span) / 1_000_000_000_000_000).ok()
}

// === impl AutoRate ===

impl AutoRate {
    /// The record of a limiter that no gateway has used.
    pub fn first(&self, now: Micros) -> LearnedRate {
        let rate = self.start.clamp(self.min, self.max);
        LearnedRate { rate, changed: now, fell: 0, refused: 0, accepted: 0, hold: FIRST_HOLD }
    }

    /// The time between two permits at the lowest rate.
    pub fn longest_interval(&self) -> Duration {
        Duration::from_nanos(1_000_000_000_000_000_000 / self.min.max(1).unsigned_abs())
    }

    /// The record after a report at `now`; the same record when the report changes nothing. A record that was made with
    /// other bounds is brought within these.
    pub fn next(&self, learned: LearnedRate, report: RateReport, now: Micros) -> LearnedRate {
        let rate = learned.rate.clamp(self.min, self.max);
        // The clock of the store may have been set back: no refusal would count until it is there again.
        let [changed, fell] = [learned.changed, learned.fell].map(|at| at.min(now));
        let learned = LearnedRate { rate, changed, fell, ..learned };
        if let Some(call) = report.refused
            && (learned.fell == 0 || call.sent > learned.fell + WAVE)
        {
            let at = call.rate.clamp(self.min, self.max);
            return match at > rate && learned.fell > 0 {
                // Its slot was promised before the last decrease. As long as such calls are sent, those of the present rate are
                // refused because of them.
                true => LearnedRate { changed: now, fell: now, ..learned },
                false => self.fallen(learned, at, now),
            };
        }
        if report.used && now - learned.changed >= self.stay(&learned) {
            return self.grown(learned, now);
        }
        learned
    }

    /// The record after the upstream refused a call whose slot was promised at the rate `at`.
    fn fallen(&self, learned: LearnedRate, at: Nanohertz, now: Micros) -> LearnedRate {
        let LearnedRate { rate, refused: known, fell, .. } = learned;
        let period = self.period.max(1);
        let periods = ((now - fell) / period).clamp(1, 1_000_000);
        let has_stayed = now - learned.changed >= period.saturating_mul(NEAR);
        // The rate came there by a tenth at a time.
        let before = at / 11 * 10;
        let (refused, accepted) = match learned.accepted {
            // An upstream with a bucket lets a burst pass before it refuses. The sooner it refuses again, the further is
            // the rate above its own. A single refusal may also be due to another program, so it counts up to a tenth.
            _ if known > 0 && has_stayed => {
                ((at - at / (3 * periods + 1)).max(known - known / 10), 0)
            }
            0 if known == 0 => (at, 0),
            accepted if accepted > 0 && accepted < at => (at, accepted),
            _ => (at, before),
        };
        let hold = match known > 0 && refused >= known - known / 20 {
            true => (learned.hold * 2).clamp(FIRST_HOLD, MOST_HOLD),
            false => FIRST_HOLD,
        };
        // At least 0.7 of the rate, and not less by rounding.
        let rate = (rate - rate / 10 * 3).max(self.min);
        LearnedRate { rate, changed: now, fell: now, refused, accepted, hold }
    }

    fn grown(&self, learned: LearnedRate, now: Micros) -> LearnedRate {
        let LearnedRate { rate, refused, .. } = learned;
        let tenth = rate + (rate / 10).max(1);
        let phase = learned.phase();
        let accepted = match phase {
            Phase::Below(_) => learned.accepted,
            _ => rate,
        };
        let learned = LearnedRate { accepted, ..learned };
        let grown = match phase {
            Phase::Free => tenth,
            Phase::Below(target) => tenth.min(target),
            // Calls that were promised at a lower rate may be refused, so the distance can be more than a tenth.
            Phase::Halfway => learned.target().min(tenth),
            Phase::Knee | Phase::Near => rate + (refused / 100).max(1),
            Phase::Above => tenth.min(rate + (rate - refused)),
        };
        match grown.min(self.max) {
            same if same == rate => learned,
            rate => LearnedRate { rate, changed: now, ..learned },
        }
    }

    /// How long the rate stays as it is before it may grow, µs.
    fn stay(&self, learned: &LearnedRate) -> Micros {
        let periods = match learned.phase() {
            Phase::Free | Phase::Below(_) => 1,
            Phase::Knee => learned.hold.clamp(FIRST_HOLD, MOST_HOLD),
            Phase::Halfway | Phase::Near => NEAR,
            Phase::Above => ABOVE,
        };
        self.period.saturating_mul(periods)
    }
}

// === impl LearnedRate ===

impl LearnedRate {
    /// The record as a store keeps it: a version and six numbers.
    pub fn text(&self) -> String {
        let Self { rate, changed, fell, refused, accepted, hold } = self;
        format!("1 {rate} {changed} {fell} {refused} {accepted} {hold}")
    }

    /// Reads [`Self::text`]; `None` for any other text, and for numbers that no rule makes.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let mut number = || words.next()?.parse().ok();
        let all = [number()?, number()?, number()?, number()?, number()?, number()?];
        let [rate, changed, fell, refused, accepted, hold] = all;
        let is_rate = |rate: i64| (0..=MAX_RATE).contains(&rate);
        let is_instant = |at: i64| (0..super::EXACT).contains(&at);
        let fits = rate > 0 && is_rate(rate) && is_rate(refused) && is_rate(accepted);
        let fits =
            fits && is_instant(changed) && is_instant(fell) && (0..=MOST_HOLD).contains(&hold);
        let is_all = words.next().is_none();
        (fits && is_all).then_some(Self { rate, changed, fell, refused, accepted, hold })
    }

    /// The rate to which it returns after a fall: 2 % below the refused one, or the accepted one if that is lower and
    /// close to it, or halfway between the two.
    fn target(&self) -> Nanohertz {
        let Self { refused, accepted, .. } = *self;
        let knee = refused - refused / 50;
        match accepted {
            0 => knee,
            _ if self.is_wide() => accepted + (refused - accepted) / 2,
            _ => accepted.min(knee),
        }
    }

    /// Whether a rate between the accepted and the refused one is still to be tried.
    fn is_wide(&self) -> bool {
        self.accepted > 0 && self.refused - self.accepted > self.refused / CLOSE
    }

    fn phase(&self) -> Phase {
        let Self { rate, refused, .. } = *self;
        let target = self.target();
        match rate {
            _ if refused == 0 => Phase::Free,
            _ if rate < target => Phase::Below(target),
            _ if rate == target && self.is_wide() => Phase::Halfway,
            _ if rate == target => Phase::Knee,
            _ if rate <= refused + refused / 50 => Phase::Near,
            _ => Phase::Above,
        }
    }
}

#[cfg(test)]
mod tests;
