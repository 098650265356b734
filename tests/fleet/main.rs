//! A fleet of gateways on virtual time: the product's own limit, guard, batch and health code over a store that executes
//! the native rules, and between them a network that fails. A seed is a history; every law is checked over every one.
//!
//! `FLEET_SEED=7 cargo test --test fleet` tells one history in full, `FLEET_HISTORIES=100000` sets how many are tried.

mod controls;
mod exceptions;
mod gateway;
mod history;
mod laws;
mod network;
mod run;
mod store;
mod upstream;

use controls::Defect;
use history::{Fault, History};
use laws::{Broken, judge};
use std::{
    env,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

/// Histories that are tried when nobody says how many.
const HISTORIES: u64 = 2000;
const THREADS: usize = 2;
/// A defect is found in so many histories.
const SOON: u64 = 600;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Tries histories from `first` on; the first that breaks a law.
fn search(first: u64, count: u64, defect: Option<Defect>) -> Option<(u64, Broken)> {
    let (next, is_over) = (AtomicU64::new(first), AtomicBool::new(false));
    let look = || {
        while !is_over.load(Relaxed) {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= first + count {
                break;
            }
            let history = History::draw(seed);
            if let Err(broken) = judge(&history, &run::run(&history, defect, false)) {
                is_over.store(true, Relaxed);
                return Some((seed, broken));
            }
        }
        None
    };
    let found = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(look)).collect();
        threads.into_iter().filter_map(|it| it.join().expect("no panic")).collect::<Vec<_>>()
    });
    found.into_iter().min_by_key(|(seed, _)| *seed)
}

/// The same law broken by as few faults as possible.
fn shrunk(mut history: History, law: &str) -> History {
    let is_broken = |history: &History| {
        matches!(judge(history, &run::run(history, None, false)), Err(broken) if broken.law == law)
    };
    let mut i = 0;
    while i < history.faults.len() {
        let mut less = history.clone();
        let _: Fault = less.faults.remove(i);
        if is_broken(&less) {
            history = less;
        } else {
            i += 1;
        }
    }
    history
}

/// What happened, in lines.
fn told(history: &History) -> String {
    let record = run::run(history, None, number("FLEET_SEED").is_some());
    let mut lines: Vec<String> = record.seen.iter().map(ToString::to_string).collect();
    lines.extend(record.store);
    lines.sort_by(|a, b| a.split(" ms").next().map(|at| at.trim().parse::<f64>().unwrap_or(0.0)).partial_cmp(&b.split(" ms").next().map(|at| at.trim().parse::<f64>().unwrap_or(0.0))).unwrap_or(std::cmp::Ordering::Equal));
    format!("{history}{}", lines.join("\n"))
}

fn fail(seed: u64, broken: &Broken) -> ! {
    let history = shrunk(History::draw(seed), broken.law);
    let now = judge(&history, &run::run(&history, None, false));
    panic!("{}\n\nFLEET_SEED={seed}: {broken:?}\nwith the faults above: {now:?}", told(&history));
}

#[test]
fn every_law_holds_over_every_history() {
    if let Some(seed) = number("FLEET_SEED") {
        let history = History::draw(seed);
        println!("{}", told(&history));
        if let Err(broken) = judge(&history, &run::run(&history, None, false)) {
            fail(seed, &broken);
        }
        return;
    }
    let (first, count) = (number("FLEET_FIRST").unwrap_or(0), number("FLEET_HISTORIES").unwrap_or(HISTORIES));
    if number("FLEET_CENSUS").is_some() {
        let mut by_law = std::collections::BTreeMap::<(String, &str), (u64, Vec<u64>)>::new();
        for seed in first..first + count {
            let history = History::draw(seed);
            if let Err(broken) = judge(&history, &run::run(&history, None, false)) {
                let entry = by_law.entry((format!("{:?}", history.weather), broken.law)).or_default();
                entry.0 += 1;
                if entry.1.len() < 8 { entry.1.push(seed); println!("{seed} {broken:?}"); }
            }
        }
        panic!("{by_law:#?}");
    }
    if let Some((seed, broken)) = search(first, count, None) {
        fail(seed, &broken);
    }
}

#[test]
fn a_seed_is_one_history() {
    for seed in 0..60 {
        let history = History::draw(seed);
        let [first, second] = [(); 2].map(|()| run::run(&history, None, true));
        assert_eq!(first.seen, second.seen, "seed {seed}");
        assert_eq!(first.left_over, second.left_over, "seed {seed}");
        assert_eq!(first.store.len(), second.store.len(), "seed {seed}");
    }
}

#[test]
fn every_defect_is_found() {
    for defect in Defect::ALL {
        let found = search(0, SOON, Some(defect));
        println!("{defect:?}: {found:?}");
        assert!(found.is_some(), "{defect:?}");
    }
}
