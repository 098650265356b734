//! Defects that a gateway or a store could have, or once had, put into the seam between the two: each must be found.

use crate::{
    history::{Micros, Weather},
    store::Server,
};
use paceway::store::{Entry, Reply, batch::Beat, memory::MemoryStore};
use std::{sync::Arc, time::Duration};

/// The default of `store.timeout`.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The number of gateways that a sign of life brings is not heard when it comes late.
    LateBeatsAreDropped,
    /// Each gateway takes itself for the only one.
    NobodyElseLives,
    /// Nobody notices that states are gone.
    LossesAreHidden,
    /// Each gateway's own clock decides.
    OwnClocks,
    /// What is given back does not come back.
    NothingIsGivenBack,
    /// Each call is sent twice.
    CallsAreRepeated,
    /// States end before they equal absent ones.
    StatesEndSoon,
}

impl Defect {
    pub(crate) const ALL: [Self; 7] = [
        Self::LateBeatsAreDropped,
        Self::NobodyElseLives,
        Self::LossesAreHidden,
        Self::OwnClocks,
        Self::NothingIsGivenBack,
        Self::CallsAreRepeated,
        Self::StatesEndSoon,
    ];

    /// In which it shows.
    pub(crate) fn weather(self) -> Weather {
        match self {
            Self::LateBeatsAreDropped => Weather::Slow,
            Self::OwnClocks
            | Self::NothingIsGivenBack
            | Self::CallsAreRepeated
            | Self::StatesEndSoon => Weather::Calm,
            _ => Weather::Rough,
        }
    }

    /// Whether the store never hears of `entry`.
    fn swallows(self, entry: &Entry) -> bool {
        matches!((self, entry), (Self::NothingIsGivenBack, Entry::GiveBack { .. }))
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
        _ => beat,
    }
}

/// Whether the answer to a sign of life that took so long is not heard.
pub(crate) fn drops_beat(defect: Option<Defect>, took: Duration) -> bool {
    defect == Some(Defect::LateBeatsAreDropped) && took > TIMEOUT
}
