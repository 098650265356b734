//! The callers that wait for one limiter.

use crate::{MS, Random, SECOND};
use paceway::algorithm::{
    Micros,
    fair::Priority::{self, High, Low, Normal},
};

/// Callers of one tenant, with one priority.
#[derive(Clone, Copy)]
pub(super) struct Callers {
    pub(super) name: &'static str,
    pub(super) weight: i64,
    pub(super) priority: Priority,
    /// Requests that come at the beginning.
    pub(super) at_once: i64,
    /// Requests in 10 s that come at random from then on.
    pub(super) later: i64,
    pub(super) max_wait: Micros,
    /// The permits that their requests cost, one after the other.
    pub(super) costs: &'static [i64],
    /// When all of them that wait leave.
    pub(super) leave_at: Option<Micros>,
    /// The longest wait in slots of the token bucket, a law: the turn of a newcomer.
    pub(super) most_slots: Option<Micros>,
}

/// Callers that wait for one limiter, all with the same law of shares.
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) callers: &'static [Callers],
    /// For how long requests come.
    pub(super) length: Micros,
}

const BATCH: Callers = Callers {
    name: "batch",
    weight: 1,
    priority: Normal,
    at_once: 600,
    later: 0,
    max_wait: 120 * SECOND,
    costs: &[1],
    leave_at: None,
    most_slots: None,
};
/// Users whose calls come one by one and wait for a second at most.
const USERS: Callers = Callers {
    name: "users",
    at_once: 0,
    later: 40,
    max_wait: SECOND,
    most_slots: Some(3),
    ..BATCH
};
const QUEUED: Callers = Callers { at_once: 300, ..BATCH };

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "three tenants wait",
        callers: &[
            Callers { name: "a", weight: 4, ..QUEUED },
            Callers { name: "b", ..QUEUED },
            Callers { name: "c", ..QUEUED },
        ],
        length: SECOND,
    },
    Scene {
        name: "users beside a batch",
        callers: &[BATCH, Callers { weight: 4, most_slots: Some(3), ..USERS }],
        length: 20 * SECOND,
    },
    Scene { name: "the same, equal weights", callers: &[BATCH, USERS], length: 20 * SECOND },
    Scene {
        name: "the batch has a low priority",
        callers: &[Callers { priority: Low, ..BATCH }, Callers { most_slots: Some(3), ..USERS }],
        length: 20 * SECOND,
    },
    Scene {
        name: "three priorities wait",
        callers: &[
            Callers { name: "high", priority: High, ..BATCH },
            Callers { name: "normal", ..QUEUED },
            Callers { name: "low", priority: Low, ..QUEUED },
        ],
        length: SECOND,
    },
    Scene {
        name: "a tenant leaves after 2 s",
        callers: &[
            Callers { name: "a", weight: 4, leave_at: Some(2 * SECOND), ..QUEUED },
            Callers { name: "b", weight: 2, ..QUEUED },
            Callers { name: "c", later: 30, ..QUEUED },
        ],
        length: 10 * SECOND,
    },
    Scene {
        name: "costs from 1 to 5",
        callers: &[
            Callers { name: "a", weight: 4, costs: &[3, 1, 5, 2, 4], ..QUEUED },
            Callers { name: "b", costs: &[2, 5, 1, 4, 3], ..QUEUED },
        ],
        length: SECOND,
    },
];

// === impl Scene ===

impl Scene {
    /// The greatest cost of a request, which is the burst of the token bucket.
    pub(super) fn burst(&self) -> i64 {
        let costs = self.callers.iter().flat_map(|callers| callers.costs);
        costs.copied().max().unwrap_or(1)
    }

    /// The share of callers by their weight, while all callers wait.
    pub(super) fn share(&self, callers: usize) -> f64 {
        let all: i64 = self.callers.iter().map(|callers| callers.weight).sum();
        self.callers[callers].weight as f64 / all as f64
    }
}

// === impl Callers ===

impl Callers {
    /// The instants of their requests, from 0 on: those of the beginning come within 10 ms.
    pub(super) fn arrivals(&self, scene: &Scene, random: &mut Random) -> Vec<Micros> {
        let mut at: Vec<_> = (0..self.at_once).map(|_| random.below(10 * MS)).collect();
        if self.later > 0 {
            let (mean, mut next) = (10 * SECOND / self.later, 0);
            loop {
                next += random.exponential(mean);
                if next >= scene.length {
                    break;
                }
                at.push(next);
            }
        }
        at
    }

    /// Its weight and its priority, as a cell of the table.
    pub(super) fn cell(&self) -> String {
        format!("{}, weight {}, {}", self.name, self.weight, self.priority.name())
    }
}
