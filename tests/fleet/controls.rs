//! Defects that a gateway or a store could have, or once had, put into the seam between the two: each must be found.

use crate::{
    history::{Micros, Weather},
    store::Server,
};
use paceway::{
    algorithm::MAX_BUDGET,
    store::{Entry, Reply, batch::Beat, memory::MemoryStore},
};
use std::{sync::Arc, time::Duration};

/// The default of `store.timeout`.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The number of gateways that a sign of life brings is not heard when it comes late.
    LateBeatsAreDropped,
    /// Each gateway takes itself for the only one.
    NobodyElseLives,
    /// Gateways that have the store leave nothing to those that have not.
    AbsentOnesHaveNoShare,
    /// Nobody notices that states are gone.
    LossesAreHidden,
    /// Each gateway's own clock decides.
    OwnClocks,
    /// What is given back does not come back.
    NothingIsGivenBack,
    /// What was decided without the store is never charged to it.
    ChargesAreForgotten,
    /// Each call is sent twice.
    CallsAreRepeated,
    /// States end before they equal absent ones.
    StatesEndSoon,
    /// Who wakes late sends all the same.
    LateSlotsAreSent,
}

impl Defect {
    pub(crate) const ALL: [Self; 10] = [
        Self::LateBeatsAreDropped,
        Self::NobodyElseLives,
        Self::AbsentOnesHaveNoShare,
        Self::LossesAreHidden,
        Self::OwnClocks,
        Self::NothingIsGivenBack,
        Self::ChargesAreForgotten,
        Self::CallsAreRepeated,
        Self::StatesEndSoon,
        Self::LateSlotsAreSent,
    ];

    /// In which it shows.
    pub(crate) fn weather(self) -> Weather {
        match self {
            Self::LateBeatsAreDropped => Weather::Slow,
            Self::AbsentOnesHaveNoShare => Weather::Apart,
            Self::OwnClocks
            | Self::NothingIsGivenBack
            | Self::CallsAreRepeated
            | Self::StatesEndSoon => Weather::Calm,
            _ => Weather::Rough,
        }
    }

    /// Whether the store never hears of `entry`.
    fn swallows(self, entry: &Entry) -> bool {
        match (self, entry) {
            (Self::NothingIsGivenBack, Entry::GiveBack { .. }) => true,
            (Self::ChargesAreForgotten, Entry::Decide { checks, budget, .. }) => {
                *budget >= MAX_BUDGET && checks.iter().any(|check| !check.enforce)
            }
            _ => false,
        }
    }
}

/// What the store does with a call of `gateway`.
pub(crate) fn run(
    defect: Option<Defect>,
    server: &mut Server,
    gateway: usize,
    at: Micros,
    entries: &Arc<Vec<Entry>>,
) -> Vec<Reply> {
    match defect {
        Some(Defect::OwnClocks) => {
            let ahead = i64::try_from(gateway).expect("few") * 300_000;
            server.run(at + ahead, entries)
        }
        Some(Defect::CallsAreRepeated) => {
            server.run(at, entries);
            server.run(at, entries)
        }
        Some(Defect::StatesEndSoon) if at % 7 == 0 => {
            let check = entries[0].checks()[0].clone();
            server.run(at, &Arc::new(vec![Entry::Forget { check }]));
            server.run(at, entries)
        }
        Some(defect) if entries.iter().any(|entry| defect.swallows(entry)) => {
            let nowhere = MemoryStore::default();
            let one = |entry: &Entry| match defect.swallows(entry) {
                true => nowhere.run_at(server.now(at), std::slice::from_ref(entry)),
                false => server.run(at, &Arc::new(vec![entry.clone()])),
            };
            entries.iter().flat_map(one).collect()
        }
        _ => server.run(at, entries),
    }
}

/// What the store says of those who live.
pub(crate) fn beat(defect: Option<Defect>, beat: Beat) -> Beat {
    match defect {
        Some(Defect::NobodyElseLives) => Beat { gateways: 1, absent: 0, ..beat },
        Some(Defect::AbsentOnesHaveNoShare) => Beat { absent: 0, ..beat },
        _ => beat,
    }
}

/// Whether the answer to a sign of life that took so long is not heard.
pub(crate) fn drops_beat(defect: Option<Defect>, took: Duration) -> bool {
    defect == Some(Defect::LateBeatsAreDropped) && took > TIMEOUT
}
