//! The upstreams before which limiters learn, and the ways in which they learn.

use super::outcome::Outcome;
use crate::{MS, SECOND};
use paceway::algorithm::{Micros, nanohertz::Nanohertz};

/// How the limiter before the upstream learns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// `rate: N/s`; a refusal pauses the limiter, and lowers its working rate.
    Paused,
    /// Exactly this rate without a burst; a refusal pauses the limiter alone.
    Constant(Nanohertz),
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
    /// Requests for 1000 calls of the quota.
    pub(super) load: i64,
    /// Whether the limiter is a sliding window with a margin of 30 ms in place of a token bucket.
    pub(super) is_sliding: bool,
    /// Whether calls that the upstream refuses count in its windows.
    pub(super) counts_refused: bool,
    /// Whether refusals say to the ms when the next call would be accepted.
    pub(super) is_exact: bool,
    /// How many calls are refused without a cause, evenly over the seconds that are measured.
    pub(super) hiccups: i64,
    /// How long requests may wait.
    pub(super) max_wait: Micros,
    /// The shortest way to the upstream, and back.
    pub(super) delay: Micros,
    /// By how much the way may be longer, each time.
    pub(super) jitter: Micros,
    /// The ways to learn that are compared.
    pub(super) strategies: &'static [Strategy],
    /// The seconds that are measured, and those whose working rates are.
    pub(super) measured: (i64, i64),
    pub(super) looked: (i64, i64),
    /// The most runs that are needed.
    pub(super) most_seeds: u64,
    /// The musts, before a sliding log and before a fixed window.
    pub(super) musts: [Must; 2],
}

/// The least that `rate: N/s` reaches.
#[derive(Clone, Copy)]
pub(super) struct Must {
    /// The least share that is used.
    used: f64,
    /// The largest share that is refused.
    refused: f64,
    /// The largest swing of the working rate.
    swing: f64,
    /// When the written rate is reached again, µs.
    returned: Micros,
}

const ONLY: &[Strategy] = &[Strategy::Paused];
const RATES: &[Strategy] = &[Strategy::Paused, Strategy::Auto];
const MARGINS: &[Strategy] = &[
    Strategy::Margin(0),
    Strategy::Margin(30),
    Strategy::Margin(50),
    Strategy::PausedMargin(0),
    Strategy::PausedMargin(30),
    Strategy::PausedMargin(50),
    Strategy::AutoMargin,
];

const ANY: Must = Must { used: 0.0, refused: 1.0, swing: 1.0, returned: Micros::MAX };
const STRANGERS: Must = Must { used: 0.76, refused: 0.02, ..ANY };
/// A constant rate that pauses at refusals reaches 79 % before a sliding log, and 73 % where it counts refused calls.
const NEARLY: Must = Must { used: 0.70, ..STRANGERS };
const BELOW: Must = Must { used: 0.93, refused: 0.004, swing: 0.15, ..ANY };

const SCENE: Scene = Scene {
    name: "",
    rate: 30,
    quota: &[(0, 30)],
    strangers: 0,
    load: 2000,
    is_sliding: false,
    counts_refused: false,
    is_exact: false,
    hiccups: 0,
    max_wait: 2 * SECOND,
    delay: 20 * MS,
    jitter: 5 * MS,
    strategies: ONLY,
    measured: (20, 140),
    looked: (0, 0),
    most_seeds: u64::MAX,
    musts: [ANY; 2],
};

const SHARED: Scene = Scene { strangers: 60, musts: [STRANGERS; 2], ..SCENE };
const LOWER: Scene = Scene { rate: 33, musts: [BELOW; 2], looked: (60, 180), ..SCENE };
/// An upstream that accepts every call except for its hiccups.
const HICCUP: Scene = Scene {
    rate: 50,
    quota: &[(0, 100)],
    load: 475,
    measured: (20, 80),
    musts: [Must { used: 0.94, ..ANY }; 2],
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
    measured: (0, 300),
    most_seeds: 1,
    ..SCENE
};

/// A limiter whose rate is not known.
const UNKNOWN: Scene = Scene { rate: 5, strategies: &[Strategy::Auto], most_seeds: 1, ..SCENE };

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "strangers use 20 %, load 75 %", load: 750, ..SHARED },
    Scene { name: "strangers use 20 %, load 2 ×", musts: [NEARLY, STRANGERS], ..SHARED },
    Scene {
        name: "the same, refused calls count",
        counts_refused: true,
        musts: [Must { used: 0.68, ..NEARLY }, STRANGERS],
        ..SHARED
    },
    Scene { name: "10 % below the written rate", strategies: RATES, ..LOWER },
    Scene { name: "the same, a sliding window", is_sliding: true, ..LOWER },
    Scene { name: "the same, refused calls count", counts_refused: true, ..LOWER },
    Scene { name: "the same, calls wait up to 0.5 s", max_wait: SECOND / 2, ..LOWER },
    Scene { name: "one hiccup, load 95 % of 50/s", hiccups: 1, ..HICCUP },
    Scene {
        name: "a hiccup each 36 s, 100 in an hour",
        hiccups: 20,
        measured: (20, 740),
        most_seeds: 1,
        musts: [Must { used: 0.97, ..ANY }; 2],
        ..HICCUP
    },
    Scene {
        name: "60/s, the quota doubles from 30/s",
        rate: 60,
        quota: &[(0, 30), (60, 60)],
        measured: (60, 120),
        looked: (60, 100),
        musts: [Must { returned: 30 * SECOND, ..ANY }; 2],
        ..SCENE
    },
    Scene { name: "4/s of a quota of 3/s", rate: 4, quota: &[(0, 3)], musts: [ANY; 2], ..LOWER },
    Scene {
        name: "300/s of a quota of 30/s",
        rate: 300,
        load: 10_000,
        most_seeds: 1,
        musts: [ANY; 2],
        ..LOWER
    },
    Scene {
        name: "120/s of a quota of 100/s",
        rate: 120,
        quota: &[(0, 100)],
        most_seeds: 4,
        ..LOWER
    },
    Scene { name: "30/s falls to 10/s", quota: &[(0, 30), (60, 10)], measured: (60, 180), ..SCENE },
    Scene { name: "unknown, starts at 5/s", ..UNKNOWN },
    Scene {
        name: "unknown, refusals with times in ms",
        is_exact: true,
        max_wait: SECOND / 2,
        ..UNKNOWN
    },
    Scene { name: "unknown, ten minutes later", measured: (600, 900), ..UNKNOWN },
    Scene { name: "ways of 0 to 50 ms", ..DELAYED },
    Scene {
        name: "the same, ten minutes later",
        is_exact: true,
        strategies: &[Strategy::PausedMargin(30), Strategy::AutoMargin],
        measured: (600, 900),
        ..DELAYED
    },
];

// === impl Strategy ===

impl Strategy {
    pub(super) fn name(self, rate: i64) -> String {
        match self {
            Self::Paused => format!("rate: {rate}/s"),
            Self::Constant(rate) => format!("exactly {:.1}/s", rate as f64 / 1e9),
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
        !matches!(self, Self::Margin(_))
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

    pub(super) fn is_looked_at(&self) -> bool {
        self.looked.1 > 0
    }

    /// The laws that a row breaks.
    pub(super) fn broken_laws(&self, strategy: Strategy, seen: [Outcome; 2]) -> Vec<String> {
        let vendors = ["sliding log", "fixed window"];
        let rows = seen.into_iter().zip(vendors).zip(self.musts);
        let broken = rows.filter(|((seen, vendor), must)| {
            !self.keeps(strategy, *vendor == vendors[1], *seen, *must)
        });
        let text = broken.map(|((seen, vendor), _)| {
            let (of, cell) = (strategy.name(self.rate), seen.cell());
            let learned = match strategy {
                Strategy::Paused => seen.working(),
                strategy => seen.learned(strategy),
            };
            format!("{}, {of}, {vendor}: {cell}, {learned}", self.name)
        });
        text.collect()
    }

    /// Whether the musts of a scene are reached. Whatever the quota, a rate that is learned meets few refusals, and uses most of
    /// it. Later it stays within 30 % of its mean. A margin that is learned leaves 1 % of refusals.
    fn keeps(&self, strategy: Strategy, is_window: bool, seen: Outcome, must: Must) -> bool {
        match strategy {
            Strategy::Paused => {
                seen.used() >= must.used
                    && seen.refused_share() <= must.refused
                    && (!self.is_looked_at() || seen.working.swing() <= must.swing)
                    && seen.returned <= must.returned
                    && (must.returned == Micros::MAX || seen.returned > 0)
            }
            Strategy::Auto => {
                seen.refused_share() <= 0.03
                    && seen.used() >= 0.75
                    && (!self.is_settled() || seen.oscillation() < 0.3)
            }
            Strategy::AutoMargin => seen.refused_share() <= 0.01 && seen.used() >= 0.9,
            // If nothing was refused without a margin, the simulation would show nothing.
            Strategy::Margin(0) => is_window || seen.refused_share() >= 0.05,
            _ => true,
        }
    }
}
