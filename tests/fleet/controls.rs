//! Defects that a gateway or a store could have, or once had. They are put into the seam between the two, and each must
//! be found.

use crate::{
    history::{MS, Micros, Scene, Weather},
    network::Ask,
    store::Server,
};
use paceway::{
    algorithm::{
        MAX_BUDGET, Rule,
        fair::{Floors, Priority},
        reserve::Part,
    },
    store::{
        Alternatives, Beat, Check, Checks, Entry, Heartbeat, Pause, Reply, memory::MemoryStore,
    },
};
use std::{sync::Arc, time::Duration};

/// The time-out of the gateways' calls, which is the default of `store.timeout` in the configuration.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A heartbeat whose answer is late does not bring the number of gateways.
    LateBeatsAreDropped,
    /// Each heartbeat brings 1 as the number of gateways, so that each gateway takes the whole rule for its share.
    NobodyElseLives,
    /// Gateways with a store do not leave a share to those without one.
    AbsentOnesHaveNoShare,
    /// No gateway notices that states are lost, so that their limiters grant a second burst.
    LossesAreHidden,
    /// The store decides each gateway's calls by another clock, 300 ms ahead of that of the gateway before.
    OwnClocks,
    /// Permits that are given back stay taken, so that limiters are idle while requests wait.
    NothingIsGivenBack,
    /// Decisions that were made without the store are never charged to it, so that it grants the same permits again.
    ChargesAreForgotten,
    /// The store executes each call twice, as it would if a driver sent it again.
    CallsAreRepeated,
    /// One call in seven finds its state gone, as if the TTL of states were too short.
    StatesEndSoon,
    /// A gateway receives no messages about pauses, so its waiting requests are sent as if there were none.
    PausesComeLate,
    /// A request whose slot lies within a pause that was learned later is sent.
    SlotsAreKept,
    /// The store never receives a pause, so that only the gateway whose call was refused keeps it.
    PausesAreForgotten,
    /// A request that wakes after its margin is sent anyway, close to the request after it.
    LateSlotsAreSent,
    /// The permits of blocks stay free in the store, as if gateways used each of them twice.
    BlocksAreFree,
    /// The others leave its share to a dead gateway that has granted nothing.
    IdleOnesAreMissed,
    /// A new life of a gateway does not replace the one before.
    LivesAreGateways,
    /// The limiters of a request have their states beside that of its first one, so that each list has its own.
    ListsHaveStates,
    /// A waiting request takes an earlier slot while it has its own, so that in a window its own promise leaves no room.
    SlotsAreTakenFirst,
    /// A debt that the present window has no room for is charged to the first one that has, and the present one stays open.
    DebtsSkipWindows,
    /// Permits that calls did not use come back twice, so that they are granted beside promised slots.
    UnusedComesTwice,
    /// The other gateways do not learn that an operator has reset a limiter, so that their waiting requests stay held.
    EndsAreNotTold,
    /// A pause of a second empties a limiter of a long period.
    PausesEmptyAll,
    /// The store never receives what remains of the upstream's quota.
    RemaindersAreForgotten,
    /// Permits that come back to a limiter which works at a lower rate stay taken.
    LoweredOnesKeepAll,
    /// A pause lowers the rate although the gateways do not learn.
    KeptRatesFall,
    /// Each permit that comes back takes the store a ms, so that it is late when many do at once.
    RefundsTakeLong,
    /// Requests of low priority are normal ones.
    PrioritiesAreIgnored,
    /// All tenants have one weight.
    WeightsAreIgnored,
    /// Limiters keep no permits back.
    FloorsAreIgnored,
    /// All keys have the rate of the one that came first.
    KeysHaveOneRate,
    /// Each request takes the first account.
    TheFirstWayIsTaken,
}

impl Defect {
    pub(crate) const ALL: [Self; 31] = [
        Self::LateBeatsAreDropped,
        Self::NobodyElseLives,
        Self::AbsentOnesHaveNoShare,
        Self::LossesAreHidden,
        Self::OwnClocks,
        Self::NothingIsGivenBack,
        Self::ChargesAreForgotten,
        Self::CallsAreRepeated,
        Self::StatesEndSoon,
        Self::PausesComeLate,
        Self::SlotsAreKept,
        Self::PausesAreForgotten,
        Self::LateSlotsAreSent,
        Self::BlocksAreFree,
        Self::IdleOnesAreMissed,
        Self::LivesAreGateways,
        Self::ListsHaveStates,
        Self::SlotsAreTakenFirst,
        Self::DebtsSkipWindows,
        Self::UnusedComesTwice,
        Self::EndsAreNotTold,
        Self::PausesEmptyAll,
        Self::RemaindersAreForgotten,
        Self::LoweredOnesKeepAll,
        Self::KeptRatesFall,
        Self::RefundsTakeLong,
        Self::PrioritiesAreIgnored,
        Self::WeightsAreIgnored,
        Self::FloorsAreIgnored,
        Self::KeysHaveOneRate,
        Self::TheFirstWayIsTaken,
    ];

    /// The weather of the histories in which this defect shows, so that few histories find it.
    pub(crate) fn weather(self) -> Weather {
        match self {
            Self::LateBeatsAreDropped => Weather::Slow,
            Self::AbsentOnesHaveNoShare => Weather::Apart,
            Self::OwnClocks
            | Self::NothingIsGivenBack
            | Self::CallsAreRepeated
            | Self::PausesComeLate
            | Self::SlotsAreKept
            | Self::PausesAreForgotten
            | Self::BlocksAreFree
            | Self::IdleOnesAreMissed
            | Self::LivesAreGateways
            | Self::ListsHaveStates
            | Self::SlotsAreTakenFirst
            | Self::DebtsSkipWindows
            | Self::UnusedComesTwice
            | Self::EndsAreNotTold
            | Self::PausesEmptyAll
            | Self::RemaindersAreForgotten
            | Self::LoweredOnesKeepAll
            | Self::KeptRatesFall
            | Self::RefundsTakeLong
            | Self::PrioritiesAreIgnored
            | Self::WeightsAreIgnored
            | Self::FloorsAreIgnored
            | Self::KeysHaveOneRate
            | Self::TheFirstWayIsTaken
            | Self::StatesEndSoon => Weather::Calm,
            _ => Weather::Rough,
        }
    }

    /// The scene of those histories.
    pub(crate) fn scene(self) -> Scene {
        match self {
            Self::IdleOnesAreMissed => Scene::IdleLoop,
            Self::LivesAreGateways => Scene::BusyLoop,
            Self::ListsHaveStates => Scene::Lists,
            Self::SlotsAreTakenFirst => Scene::Settled,
            Self::DebtsSkipWindows => Scene::Owed,
            Self::UnusedComesTwice => Scene::Files,
            Self::EndsAreNotTold => Scene::Freed,
            Self::PausesEmptyAll => Scene::Long,
            Self::RemaindersAreForgotten
            | Self::LoweredOnesKeepAll
            | Self::KeptRatesFall
            | Self::RefundsTakeLong => Scene::Quota,
            Self::PrioritiesAreIgnored | Self::WeightsAreIgnored | Self::FloorsAreIgnored => {
                Scene::Turns
            }
            Self::KeysHaveOneRate => Scene::KeyRates,
            Self::TheFirstWayIsTaken => Scene::Accounts,
            _ => Scene::Plain,
        }
    }

    /// Whether the store never receives `entry`, because the defect is about what it asks for.
    fn swallows(self, entry: &Entry) -> bool {
        match (self, entry) {
            (Self::NothingIsGivenBack, Entry::Refund { .. }) => true,
            (Self::PausesAreForgotten, Entry::Pause { .. }) => true,
            (Self::RemaindersAreForgotten, Entry::Lower { .. }) => true,
            (Self::ChargesAreForgotten, Entry::Charge { .. }) => true,
            (Self::ChargesAreForgotten, Entry::Reserve { checks, budget, .. }) => {
                *budget >= MAX_BUDGET && checks.iter().any(|check| !check.enforce)
            }
            _ => false,
        }
    }
}

/// Executes a call of `gateway` in the store, with the defect if there is one.
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
        Some(Defect::BlocksAreFree) => {
            let replies = server.run(at, entries);
            for step in entries.iter().zip(&replies) {
                let (Entry::Block { checks, ask, .. }, Reply::Block { decision, .. }) = step else {
                    continue;
                };
                let check = checks[0].clone().with_cost(checks[0].cost * ask.requests);
                let grant = decision.parts[0].grant;
                server.run(at, &Arc::new(vec![Entry::Refund { check, grant }]));
            }
            replies
        }
        Some(Defect::ListsHaveStates) => {
            server.run(at, &Arc::new(entries.iter().map(name_after_the_first).collect()))
        }
        Some(Defect::SlotsAreTakenFirst) => {
            entries.iter().flat_map(|entry| take_first(server, at, entry)).collect()
        }
        Some(Defect::DebtsSkipWindows) => {
            let skip = |entry: &Entry| match entry {
                Entry::Charge { check } => {
                    let checks = [check.clone()].into();
                    let budget = MAX_BUDGET;
                    server
                        .run(at, &Arc::new(vec![Entry::Reserve { checks, budget, ticket: None }]));
                    vec![Reply::Owed(0)]
                }
                _ => server.run(at, &Arc::new(vec![entry.clone()])),
            };
            entries.iter().flat_map(skip).collect()
        }
        Some(Defect::UnusedComesTwice) => {
            let refunds = entries.iter().filter(|entry| matches!(entry, Entry::Refund { .. }));
            server.run(at, &Arc::new(refunds.cloned().collect()));
            server.run(at, entries)
        }
        Some(Defect::PausesEmptyAll | Defect::KeptRatesFall) => {
            server.run(at, &Arc::new(entries.iter().map(longer_pause).collect()))
        }
        Some(Defect::LoweredOnesKeepAll) => {
            entries.iter().flat_map(|entry| keep_all(server, at, entry)).collect()
        }
        Some(
            defect @ (Defect::PrioritiesAreIgnored
            | Defect::WeightsAreIgnored
            | Defect::FloorsAreIgnored
            | Defect::KeysHaveOneRate),
        ) => {
            let first = *server.first_rule.get_or_insert(entries[0].checks()[0].algorithm);
            let changed = entries.iter().map(|entry| otherwise(defect, first, entry.clone()));
            server.run(at, &Arc::new(changed.collect()))
        }
        Some(Defect::TheFirstWayIsTaken) => {
            let first = |entry: &Entry| match entry {
                Entry::Choose { among, budget, ticket } => {
                    let among = Alternatives::new(vec![among.ways()[0].clone()]).expect("a way");
                    Entry::Choose { among: among.into(), budget: *budget, ticket: *ticket }
                }
                other => other.clone(),
            };
            server.run(at, &Arc::new(entries.iter().map(first).collect()))
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

/// The same entry with the checks of a defect; `first` is the rule of the first one of all.
fn otherwise(defect: Defect, first: Rule, entry: Entry) -> Entry {
    let change = |check: &Check| {
        let mut check = check.clone();
        match (defect, &mut check.turn) {
            (Defect::PrioritiesAreIgnored, Some(turn)) => {
                turn.priority = turn.priority.min(Priority::Normal);
            }
            (Defect::WeightsAreIgnored, Some(turn)) => turn.weight = 1,
            (Defect::FloorsAreIgnored, _) => check.floors = Floors::default(),
            (Defect::KeysHaveOneRate, _) => check.algorithm = first,
            _ => {}
        }
        check
    };
    let all = |checks: Checks| checks.iter().map(change).collect();
    match entry {
        Entry::Reserve { checks, budget, ticket } => {
            Entry::Reserve { checks: all(checks), budget, ticket }
        }
        Entry::MoveUp { checks, budget, parts } => {
            Entry::MoveUp { checks: all(checks), budget, parts }
        }
        Entry::Confirm { checks, place } => Entry::Confirm { checks: all(checks), place },
        Entry::Leave { checks, place } => Entry::Leave { checks: all(checks), place },
        Entry::Refund { check, grant } => Entry::Refund { check: change(&check), grant },
        other => other,
    }
}

/// Decides on an earlier slot beside the own one, and refunds that afterwards.
fn take_first(server: &mut Server, at: Micros, entry: &Entry) -> Vec<Reply> {
    let Entry::MoveUp { checks, budget, parts } = entry else {
        return server.run(at, &Arc::new(vec![entry.clone()]));
    };
    let (checks, budget) = (checks.clone(), *budget);
    let asked = Entry::Reserve { checks: checks.clone(), budget, ticket: None };
    let replies = server.run(at, &Arc::new(vec![asked]));
    if matches!(&replies[..], [Reply::Decision(decision)] if decision.admitted) {
        let own = checks.iter().zip(parts).filter(|(_, part)| part.at >= 0);
        let refund = |(check, part): (&Check, &Part)| Entry::Refund {
            check: check.clone(),
            grant: part.grant,
        };
        server.run(at, &Arc::new(own.map(refund).collect()));
    }
    replies
}

/// The same entry; a pause takes as long as the period of its limiter, so that it concerns its rate.
fn longer_pause(entry: &Entry) -> Entry {
    let Entry::Pause { check, pause } = entry.clone() else { return entry.clone() };
    let whole = pause.span.max(check.period);
    Entry::Pause { check, pause: Pause { whole, ..pause } }
}

/// Does without a refund to a limiter that works at a lower rate.
fn keep_all(server: &mut Server, at: Micros, entry: &Entry) -> Vec<Reply> {
    match entry {
        Entry::Refund { check, .. } if server.level(at, check).rate > 0 => {
            vec![Reply::Done(false)]
        }
        _ => server.run(at, &Arc::new(vec![entry.clone()])),
    }
}

/// The same request, whose states have the name of its first limiter. Refunds do not find them.
fn name_after_the_first(entry: &Entry) -> Entry {
    let Entry::Reserve { checks, budget, ticket } = entry else { return entry.clone() };
    let first = checks[0].key.clone();
    let beside =
        |check: &Check| Check { key: format!("{first}{}", check.key).into(), ..check.clone() };
    Entry::Reserve { checks: checks.iter().map(beside).collect(), budget: *budget, ticket: *ticket }
}

/// How long the store takes for a call, µs.
pub(crate) fn takes(defect: Option<Defect>, ask: &Ask) -> Micros {
    match ask {
        Ask::Run(entries) if defect == Some(Defect::RefundsTakeLong) => {
            let is_refund = |entry: &&Entry| matches!(entry, Entry::Refund { .. });
            entries.iter().filter(is_refund).count() as Micros * MS
        }
        _ => 0,
    }
}

/// Changes a heartbeat on its way to the store, if the defect is about that.
pub(crate) fn heartbeat(defect: Option<Defect>, heartbeat: &Heartbeat) -> Heartbeat {
    match defect {
        Some(Defect::IdleOnesAreMissed) => Heartbeat { is_idle: false, ..heartbeat.clone() },
        Some(Defect::LivesAreGateways) => Heartbeat { is_first: false, ..heartbeat.clone() },
        _ => heartbeat.clone(),
    }
}

/// Changes the store's answer to a heartbeat, if the defect is about that.
pub(crate) fn beat(defect: Option<Defect>, beat: Beat) -> Beat {
    match defect {
        Some(Defect::NobodyElseLives) => Beat { gateways: 1, absent: 0, ..beat },
        Some(Defect::AbsentOnesHaveNoShare) => Beat { absent: 0, ..beat },
        _ => beat,
    }
}

/// Whether the gateway ignores the answer to a heartbeat because it took `took`.
pub(crate) fn drops_beat(defect: Option<Defect>, took: Duration) -> bool {
    defect == Some(Defect::LateBeatsAreDropped) && took > TIMEOUT
}
