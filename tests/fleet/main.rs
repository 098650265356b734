//! A fleet of gateways on virtual time: the product's own limit, guard, batch and health code over a store that
//! executes the native rules, and between them a network that fails. A seed is a history; every law is checked over
//! every one.
//!
//! `FLEET_SEED=7 cargo test --test fleet every_law` shows one history in full. `FLEET_HISTORIES=100000` sets how many
//! are tried, and `FLEET_SCENE=Turns` in which scene.

#![allow(
    clippy::print_stdout,
    reason = "a history that is asked for by its seed is printed on stdout"
)]

mod controls;
mod exceptions;
mod gateway;
mod history;
mod laws;
mod network;
mod run;
mod steps;
mod store;
mod upstream;

use controls::Defect;
use history::{History, Scene, Weather};
use laws::{Broken, judge};
use std::{
    env,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

/// The number of histories that are tried, unless the variable `FLEET_HISTORIES` names another number.
const HISTORIES: u64 = 1200;
/// The number of histories of each scene that no seed draws by itself.
const NAMED_HISTORIES: u64 = 60;
const THREADS: usize = 2;
/// Each defect must be found within this number of histories, or its law is too weak.
const SOON: u64 = 1500;
/// The number of seeds that are run twice, and must give the same record both times.
const REPEATED: u64 = 45;

type Found = (History, Broken);

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn try_one(history: History, defect: Option<Defect>) -> Option<Found> {
    let broken = judge(&history, &run::run(&history, defect, false)).err()?;
    Some((history, broken))
}

/// Finds the history with the smallest seed among `seeds` that breaks a law, on two threads.
fn search(
    seeds: Range<u64>,
    draw: impl Fn(u64) -> History + Sync,
    defect: Option<Defect>,
) -> Option<Found> {
    let (next, is_over) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let look = || {
        while !is_over.load(Relaxed) {
            let seed = Some(next.fetch_add(1, Relaxed)).filter(|seed| seeds.contains(seed))?;
            if let Some(found) = try_one(draw(seed), defect) {
                is_over.store(true, Relaxed);
                return Some(found);
            }
        }
        None
    };
    let found = thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(look));
        threads.map(|it| it.join().expect("a history that panics is a defect"))
    });
    found.into_iter().flatten().min_by_key(|(history, _)| history.seed)
}

/// Finds a history that breaks the same law with as few faults and in as little time as possible.
fn shrunk((mut history, mut broken): Found) -> Found {
    let mut fewer: Vec<History> = Vec::new();
    loop {
        for i in 0..history.faults.len() {
            let mut less = history.clone();
            less.faults.remove(i);
            fewer.push(less);
        }
        let mut shorter = history.clone();
        shorter.load -= history::SECOND;
        fewer.extend(Some(shorter).filter(|it| it.load > 0));
        let mut found = fewer.drain(..).filter_map(|less| try_one(less, None));
        match found.find(|(_, less)| less.law == broken.law) {
            Some(found) => (history, broken) = found,
            None => return (history, broken),
        }
    }
}

/// Describes the events in their order; with `store`, also the calls that the store executed.
fn told(history: &History, store: bool) -> String {
    let record = run::run(history, None, store);
    let seen = record.seen.iter().map(|seen| (seen.came, seen.to_string()));
    let mut lines: Vec<_> = seen.chain(record.store).collect();
    lines.sort_by_key(|(at, _)| *at);
    let lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
    format!("{history}{}", lines.join("\n"))
}

/// Draws the history of a seed, in the scene that the variable `FLEET_SCENE` names if it is set.
fn draw(seed: u64) -> History {
    let name = env::var("FLEET_SCENE").ok();
    let is_named = |scene: &Scene| name.as_ref().is_some_and(|name| format!("{scene:?}") == *name);
    match Scene::ALL.into_iter().chain(Scene::NAMED).find(is_named) {
        Some(scene) => draw_in(scene, seed),
        None => History::draw(seed),
    }
}

fn draw_in(scene: Scene, seed: u64) -> History {
    History::draw_in(scene.weather(Weather::of(seed)), scene, seed)
}

fn panic_of(found: Found) -> ! {
    let seed = found.0.seed;
    let (history, broken) = shrunk(found);
    panic!(
        "{}\n\nFLEET_SEED={seed} FLEET_SCENE={:?}: {} is broken: {}",
        told(&history, false),
        history.scene,
        broken.law,
        broken.how
    );
}

#[test]
fn every_law_holds_over_every_history() {
    let (seed, histories) = (number("FLEET_SEED"), number("FLEET_HISTORIES"));
    let from = number("FLEET_FROM").unwrap_or(0);
    let seeds = from..from + histories.unwrap_or(HISTORIES);
    let seeds = seed.map_or(seeds, |seed| seed..seed + 1);
    if let Some(seed) = seed {
        eprintln!("{}", told(&draw(seed), true));
    }
    if let Some(found) = search(seeds, draw, None) {
        panic_of(found);
    }
}

#[test]
fn every_law_holds_over_turns_and_rates_by_key() {
    for scene in Scene::NAMED {
        if let Some(found) = search(0..NAMED_HISTORIES, |seed| draw_in(scene, seed), None) {
            panic_of(found);
        }
    }
}

/// Histories of which each broke a law once. In 56813 the set of gateways is lost while one is cut off, and in 77189 one
/// is killed 3 s before that: the others granted too much, or too little. In 7199 a gateway starts while it is cut off,
/// in 33659 a share is raised to the cost of a request, and in 54646 a request waits for two calls, which together take
/// longer than the time-out: these are documented limits, whose permits no exception counted. In 1639 the gateway that knew
/// of a pause sent calls within its last 100 ms, which the store had granted before it knew. In 7248 a slot is a fraction
/// of a microsecond late. In 8492 waiters of a queue handed their turns around without an end. In 16805 a gateway was
/// killed 1.47 s before a restart of the store, so it was missed for 10 s after that: the end of a history waits for it. In
/// 93233 the clock was set back after a loss, and every decision forgot the grants of those before it. In 62558 a gateway that
/// started during a restart of the store reached it 6 s early: a defect of the network here. In 8046 and 16107 some hundred waiting
/// requests asked again because a rate had fallen, and their refunds took the time in which others wait for an answer. In 1450, 2961
/// and 4472 nothing remained of a quota, and a slot from before was used: one that came back, one that a call of the same moment had
/// got, and one of the count. In 2712 a thousand waiters of a concurrency limiter asked at the end of its pause at once. In 11271 a
/// gateway told the store of 24 answers at one moment, over two connections: a gateway tells one value in 50 ms. In 68732 a gateway told
/// an answer that named one permit after another gateway had told a later one that named none. In 69491 and 95186 fewer permits
/// remained than other gateways had promised. In 93482 calls that need permits of two limiters handed these to each other without an
/// end, at one instant.
///
/// In the scene `Turns`: in 1552 and 1671 requests confirmed some ms after their slots and got others because of a floor, after which
/// the next window had room for fewer. In 6857 and 10040 a bucket granted one permit too many until such requests kept their slots.
/// In 9565 free permits were given to requests that learned of them too late.
#[test]
fn every_history_that_was_found_keeps_the_laws() {
    let turns = [1552, 1671, 6857, 9565, 10_040].map(|seed| draw_in(Scene::Turns, seed));
    let seeds = [
        1450, 1639, 2712, 2961, 4472, 7199, 7248, 8046, 8492, 11_271, 16_107, 16_805, 33_659,
        54_646, 56_813, 62_558, 68_732, 69_491, 77_189, 93_233, 93_482, 95_186,
    ];
    for history in seeds.map(History::draw).into_iter().chain(turns) {
        if let Some((history, broken)) = try_one(history, None) {
            panic!("{history}\n{} is broken: {}", broken.law, broken.how);
        }
    }
}

#[test]
fn a_seed_reproduces_its_history() {
    for seed in 0..REPEATED {
        let history = History::draw(seed);
        let [first, second] = [(); 2].map(|()| run::run(&history, None, true));
        assert!(!first.seen.is_empty(), "seed {seed}: no request came");
        for (first, second) in first.store.iter().zip(&second.store) {
            assert_eq!(first, second, "seed {seed}");
        }
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn every_defect_is_found() {
    let only = env::var("FLEET_DEFECT").ok();
    let is_asked = |it: &Defect| only.as_ref().is_none_or(|name| format!("{it:?}") == *name);
    for defect in Defect::ALL.into_iter().filter(is_asked) {
        let draw = |seed| History::draw_in(defect.weather(), defect.scene(), seed);
        let found = search(0..SOON, draw, Some(defect));
        let (history, broken) = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
        let without = judge(&history, &run::run(&history, None, false));
        assert_eq!(without, Ok(()), "without {defect:?}: {history}");
        eprintln!("{defect:?}: seed {}, {broken:?}", history.seed);
    }
}
