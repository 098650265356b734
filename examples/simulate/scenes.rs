//! The upstreams before which limiters learn, and the ways in which they learn.

use super::outcome::Outcome;
use crate::SECOND;
use paceway::algorithm::Micros;

/// How the limiter before the upstream learns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// `rate: N/s`; callers get the refusals.
    Fixed,
    /// The same; a refusal pauses the limiter.
    Paused,
    /// The same; answers say how many calls remain in the upstream's window.
    Remaining,
    /// `rate: auto` with `start: N/s`, between 1/s and 100/s; a refusal pauses the limiter, too.
    Auto,
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
    /// The seconds that are measured.
    pub(super) measured: (i64, i64),
}

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
    measured: (0, 120),
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
    Scene { name: "unknown, starts at 5/s", rate: 5, measured: (20, 140), ..SCENE },
    Scene {
        name: "unknown, refusals with times in ms",
        rate: 5,
        is_exact: true,
        max_wait: SECOND / 2,
        measured: (20, 140),
        ..SCENE
    },
    Scene { name: "unknown, ten minutes later", rate: 5, measured: (600, 1200), ..SCENE },
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
];

// === impl Strategy ===

impl Strategy {
    pub(super) fn name(self, rate: i64) -> String {
        match self {
            Self::Fixed => format!("rate: {rate}/s, no pauses"),
            Self::Paused => format!("rate: {rate}/s"),
            Self::Remaining => format!("rate: {rate}/s, remaining"),
            Self::Auto => format!("rate: auto from {rate}/s"),
        }
    }
}

// === impl Scene ===

impl Scene {
    pub(super) fn strategies(&self) -> Vec<Strategy> {
        match self.rate {
            5 => vec![Strategy::Auto],
            _ => vec![Strategy::Fixed, Strategy::Paused, Strategy::Remaining, Strategy::Auto],
        }
    }

    pub(super) fn quota_at(&self, now: Micros) -> i64 {
        let steps = self.quota.iter().rev();
        steps.clone().find(|(from, _)| from * SECOND <= now).map_or(0, |(_, quota)| *quota)
    }

    /// Whatever the quota, a rate that is learned meets few refusals, and uses most of a quota that it has for itself.
    pub(super) fn broken_law(&self, strategy: Strategy, seen: Outcome) -> Option<String> {
        // A single seed is up to five points away from the mean of the table.
        let least = if self.strangers > 0 || self.quota.len() > 1 { 0.55 } else { 0.75 };
        let is_good = seen.refused_share() <= 0.03 && seen.used() >= least;
        (strategy == Strategy::Auto && !is_good).then(|| format!("{}: {}", self.name, seen.cell()))
    }
}
