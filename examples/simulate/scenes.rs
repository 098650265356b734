//! The upstreams before which limiters learn, and the ways in which they learn.

use super::outcome::Outcome;
use crate::{MS, SECOND};
use paceway::algorithm::Micros;

/// How the limiter before the upstream learns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// `rate: N/s`; callers get the refusals.
    Fixed,
    /// The same; a refusal pauses the limiter.
    Paused,
    /// The same; answers say how many calls remain in the upstream's window, and those that were sent since are deducted.
    /// For so many seconds after a refusal, the first answer that says "nothing remains" pauses the limiter. The gateway
    /// has 10.
    Remaining(i64),
    /// The same with 10 s, and no call is deducted.
    Undeducted,
    /// `rate: auto` with `start: N/s`, between 1/s and 100/s; a refusal pauses the limiter, too.
    Auto,
    /// `rate: N/s` with a margin of so many ms; callers get the refusals.
    Margin(Micros),
    /// The same; a refusal pauses the limiter.
    PausedMargin(Micros),
    /// `margin: auto`; a refusal pauses the limiter.
    AutoMargin,
}

/// An upstream, its other user, and the callers of the gateways.
#[derive(Clone, Copy)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// The configured rate, or that from which an automatic one starts, per second.
    pub(super) rate: i64,
    /// From which second on the upstream accepts how many calls a second.
    pub(super) quota: &'static [(i64, i64)],
    /// Calls of another program in 10 s.
    pub(super) strangers: i64,
    /// Requests for 100 calls of the quota.
    pub(super) load: i64,
    /// Whether the limiter is a sliding window with a margin of 30 ms in place of a token bucket.
    pub(super) is_sliding: bool,
    /// Whether calls that the upstream refuses count in its windows.
    pub(super) counts_refused: bool,
    /// Whether refusals say to the ms when the next call would be accepted.
    pub(super) is_exact: bool,
    /// How long requests may wait.
    pub(super) max_wait: Micros,
    /// From which second to which one every call is refused.
    pub(super) closed: (i64, i64),
    /// The shortest way to the upstream, and back.
    pub(super) delay: Micros,
    /// By how much the way may be longer, each time.
    pub(super) jitter: Micros,
    /// The ways to learn that are compared.
    pub(super) strategies: &'static [Strategy],
    /// The seconds that are measured.
    pub(super) measured: (i64, i64),
}

const RATES: &[Strategy] =
    &[Strategy::Fixed, Strategy::Paused, Strategy::Remaining(60), Strategy::Auto];
const REMAINDERS: &[Strategy] =
    &[Strategy::Paused, Strategy::Undeducted, Strategy::Remaining(60), Strategy::Remaining(10)];
const MARGINS: &[Strategy] = &[
    Strategy::Margin(0),
    Strategy::Margin(30),
    Strategy::Margin(50),
    Strategy::PausedMargin(0),
    Strategy::PausedMargin(30),
    Strategy::PausedMargin(50),
    Strategy::AutoMargin,
];

const SCENE: Scene = Scene {
    name: "",
    rate: 30,
    quota: &[(0, 30)],
    strangers: 0,
    load: 200,
    is_sliding: false,
    counts_refused: false,
    is_exact: false,
    max_wait: 2 * SECOND,
    closed: (0, 0),
    delay: 20 * MS,
    jitter: 5 * MS,
    strategies: RATES,
    measured: (0, 120),
};

/// A sliding window of 50/s with a margin of 30 ms, before an upstream that is near and says what remains.
const FIFTY: Scene = Scene {
    rate: 50,
    quota: &[(0, 50)],
    is_sliding: true,
    is_exact: true,
    max_wait: 5 * SECOND,
    delay: 3 * MS,
    strategies: REMAINDERS,
    ..SCENE
};

/// A limiter that has the right rate, before an upstream to which the way takes 0 to 50 ms, and the way back too.
const DELAYED: Scene = Scene {
    rate: 20,
    quota: &[(0, 20)],
    is_sliding: true,
    max_wait: SECOND / 2,
    delay: 0,
    jitter: 50 * MS,
    strategies: MARGINS,
    ..SCENE
};

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "strangers use 20 %, load 75 %", strangers: 60, load: 75, ..SCENE },
    Scene { name: "strangers use 20 %, load 2 ×", strangers: 60, counts_refused: true, ..SCENE },
    Scene { name: "10 % below the configured rate", rate: 33, ..SCENE },
    Scene { name: "the same, refused calls count", rate: 33, counts_refused: true, ..SCENE },
    Scene { name: "the same, a sliding window", rate: 33, is_sliding: true, ..SCENE },
    Scene {
        name: "the same, 20 s later",
        rate: 33,
        is_sliding: true,
        measured: (20, 140),
        ..SCENE
    },
    Scene {
        name: "the same, calls wait up to 0.5 s",
        rate: 33,
        max_wait: SECOND / 2,
        measured: (20, 140),
        ..SCENE
    },
    Scene {
        name: "unknown, starts at 5/s",
        rate: 5,
        strategies: &[Strategy::Auto],
        measured: (20, 140),
        ..SCENE
    },
    Scene {
        name: "unknown, refusals with times in ms",
        rate: 5,
        strategies: &[Strategy::Auto],
        is_exact: true,
        max_wait: SECOND / 2,
        measured: (20, 140),
        ..SCENE
    },
    Scene {
        name: "unknown, ten minutes later",
        rate: 5,
        strategies: &[Strategy::Auto],
        measured: (600, 1200),
        ..SCENE
    },
    Scene {
        name: "falls from 30/s to 10/s",
        quota: &[(0, 30), (60, 10)],
        measured: (60, 180),
        ..SCENE
    },
    Scene {
        name: "grows from 30/s to 60/s",
        quota: &[(0, 30), (60, 60)],
        measured: (60, 360),
        ..SCENE
    },
    Scene {
        name: "30/s, strangers use 20 %, load 75 %",
        strangers: 60,
        load: 75,
        is_exact: true,
        strategies: REMAINDERS,
        ..SCENE
    },
    Scene {
        name: "the same, load 2 ×",
        strangers: 60,
        is_exact: true,
        strategies: REMAINDERS,
        ..SCENE
    },
    Scene {
        name: "30/s without strangers, load 75 %, answers after 2 s",
        load: 75,
        is_exact: true,
        delay: SECOND,
        strategies: REMAINDERS,
        ..SCENE
    },
    Scene { name: "50/s, strangers use 20 %, load 75 %", strangers: 100, load: 75, ..FIFTY },
    Scene {
        name: "the same, answers after 1 s",
        strangers: 100,
        load: 75,
        delay: SECOND / 2,
        ..FIFTY
    },
    Scene {
        name: "50/s, strangers use 20 %, load 2 ×, refused calls count",
        strangers: 100,
        counts_refused: true,
        max_wait: SECOND / 2,
        ..FIFTY
    },
    Scene {
        name: "50/s after a lone refusal, load 95 %",
        load: 95,
        is_sliding: false,
        closed: (5, 6),
        measured: (6, 51),
        ..FIFTY
    },
    Scene { name: "ways of 0 to 50 ms", measured: (0, 600), ..DELAYED },
    Scene { name: "the same, ten minutes later", is_exact: true, measured: (600, 1200), ..DELAYED },
];

// === impl Strategy ===

impl Strategy {
    pub(super) fn name(self, rate: i64) -> String {
        match self {
            Self::Fixed => format!("rate: {rate}/s, no pauses"),
            Self::Paused => format!("rate: {rate}/s"),
            Self::Remaining(60) => format!("rate: {rate}/s, remaining"),
            Self::Remaining(span) => format!("the same, suspicion of {span} s"),
            Self::Undeducted => "the same, nothing deducted".to_owned(),
            Self::Auto => format!("rate: auto from {rate}/s"),
            Self::Margin(ms) => format!("margin: {ms} ms, no pauses"),
            Self::PausedMargin(ms) => format!("margin: {ms} ms"),
            Self::AutoMargin => "margin: auto".to_owned(),
        }
    }

    /// Whether the limiter learns its rate or its margin.
    pub(super) fn learns(self) -> bool {
        matches!(self, Self::Auto | Self::AutoMargin)
    }

    /// Whether refusals pause the limiter.
    pub(super) fn pauses(self) -> bool {
        !matches!(self, Self::Fixed | Self::Margin(_))
    }
}

// === impl Scene ===

impl Scene {
    pub(super) fn quota_at(&self, now: Micros) -> i64 {
        let steps = self.quota.iter().rev();
        steps.clone().find(|(from, _)| from * SECOND <= now).map_or(0, |(_, quota)| *quota)
    }

    /// Whether its learned rates and margins have had ten minutes.
    pub(super) fn is_settled(&self) -> bool {
        self.measured.0 >= 600
    }

    /// Whatever the quota, a rate that is learned meets few refusals, and uses most of a quota that it has for itself. Later
    /// it stays within 30 % of its mean. A margin that is learned leaves 1 % of refusals.
    pub(super) fn broken_law(
        &self,
        strategy: Strategy,
        is_window: bool,
        seen: Outcome,
    ) -> Option<String> {
        // A single seed is up to five points away from the mean of the table.
        let least = if self.strangers > 0 || self.quota.len() > 1 { 0.55 } else { 0.75 };
        let is_good = match strategy {
            Strategy::Auto => {
                seen.refused_share() <= 0.03
                    && seen.used() >= least
                    && (!self.is_settled() || seen.oscillation() < 0.3)
            }
            Strategy::AutoMargin => seen.refused_share() <= 0.01 && seen.used() >= 0.9,
            // If nothing was refused without a margin, the simulation would show nothing.
            Strategy::Margin(0) => is_window || seen.refused_share() >= 0.05,
            _ => true,
        };
        let learned = seen.learned(strategy);
        (!is_good).then(|| {
            format!("{}, {}: {}, {learned}", self.name, strategy.name(self.rate), seen.cell())
        })
    }
}
