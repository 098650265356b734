//! Draws the grants of each algorithm and the rate after refusals, from the rules of this crate on virtual time, into `docs/pictures`. The same
//! rules draw the same pictures; a test compares them with those that are checked in.
//!
//! ```sh
//! cargo run --example pictures
//! ```

#[path = "pictures/picture.rs"]
mod picture;
#[path = "pictures/refusals.rs"]
mod refusals;

use paceway::{
    algorithm::{
        Concurrency, FixedWindow, Grant, LeakyBucket, Micros, Rule, SlidingWindow, TokenBucket,
        WarmUp, concurrency::Ticket,
    },
    store::{Check, Decision, Entry, Reply, memory::MemoryStore},
};
use picture::{Picture, SECOND};
use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

const MS: Micros = 1_000;
/// The instant on the store's clock at which each picture begins: the start of a second, µs.
const EPOCH: Micros = 1_000_000_000_000_000;
/// The rate of all limiters that have one: 5 permits each second.
const COUNT: i64 = 5;
const MAX_WAIT: Micros = SECOND;
/// The time for which a call holds its concurrency permit, until its answer has ended.
const WORK: Micros = 300 * MS;
const PLACES: i64 = 4;

fn main() -> io::Result<()> {
    fs::create_dir_all(directory())?;
    for picture in pictures() {
        fs::write(picture.path(), picture.svg())?;
    }
    fs::write(path_of(refusals::NAME), refusals::svg().unwrap_or_default())?;
    Ok(())
}

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures"))
}

fn path_of(name: &str) -> PathBuf {
    directory().join(format!("{name}.svg"))
}

fn pictures() -> Vec<Picture> {
    [token_bucket(), leaky_bucket(), sliding_window(), fixed_window(), warm_up(), concurrency()]
        .into_iter()
        .flatten()
        .collect()
}

// === what is drawn ===

fn token_bucket() -> Option<Picture> {
    let rule = Rule::from(TokenBucket::new(COUNT, SECOND, COUNT)?);
    let picture = Picture::of(rule, &burst_then_steady(), 0);
    Some(Picture {
        name: "token_bucket",
        settings: "rate 5/s, burst 5, max_wait 1s",
        bound: filling(&picture.grants, COUNT, picture.seconds),
        bound_name: "allowed: sent + what is in the bucket",
        curve: total(&picture.grants),
        curve_name: "sent so far",
        ..picture
    })
}

fn leaky_bucket() -> Option<Picture> {
    let rule = Rule::from(LeakyBucket::new(COUNT, SECOND, 0, Some(3))?);
    let picture = Picture::of(rule, &burst_then_steady(), 0);
    Some(Picture {
        name: "leaky_bucket",
        settings: "rate 5/s, capacity 3, max_wait 1s",
        bound: filling(&picture.grants, 1, picture.seconds),
        bound_name: "allowed: one more each 200 ms",
        curve: total(&picture.grants),
        curve_name: "sent so far",
        ..picture
    })
}

fn sliding_window() -> Option<Picture> {
    let rule = Rule::from(SlidingWindow::new(COUNT, SECOND, 0)?);
    let picture = Picture::of(rule, &burst_then_steady(), 0);
    let sent = picture.grants.iter().map(|at| (*at, 1.0));
    let forgotten = picture.grants.iter().map(|at| (at + SECOND, -1.0));
    Some(Picture {
        name: "sliding_window",
        settings: "rate 5/s, no margin, max_wait 1s",
        curve: sum(sent.chain(forgotten)),
        curve_name: "sent in the last second",
        bound: level(COUNT as f64, picture.seconds),
        bound_name: "allowed: 5",
        ..picture
    })
}

fn fixed_window() -> Option<Picture> {
    let rule = Rule::from(FixedWindow::new(COUNT, SECOND)?);
    // The burst comes late in a window, which shows what a fixed window allows around its end.
    let phase = 700 * MS;
    let picture = Picture::of(rule, &burst_then_steady(), phase);
    let marks: Vec<_> = (1..=picture.seconds).map(|i| i * SECOND - phase).collect();
    let sent = picture.grants.iter().map(|at| (*at, 1.0));
    let emptied = picture.grants.iter().map(|at| ((at + phase) / SECOND + 1) * SECOND - phase);
    Some(Picture {
        name: "fixed_window",
        settings: "rate 5/s, max_wait 1s; the dashed lines are the ends of windows",
        curve: sum(sent.chain(emptied.map(|end| (end, -1.0)))),
        curve_name: "sent in this window",
        bound: level(COUNT as f64, picture.seconds),
        bound_name: "allowed: 5",
        marks,
        ..picture
    })
}

fn warm_up() -> Option<Picture> {
    let rule = Rule::from(WarmUp::new(COUNT, SECOND, 4 * SECOND, 3.0)?);
    // More than enough for 6 s, a pause of 5 s, and again for 4 s.
    let steady = (0..120).map(|i| i * 125 * MS);
    let requests: Vec<_> = steady.filter(|at| !(6 * SECOND..11 * SECOND).contains(at)).collect();
    let picture = Picture::of(rule, &requests, 0);
    let pairs = picture.grants.windows(2);
    Some(Picture {
        name: "warm_up",
        settings: "rate 5/s, warm_up 4s, cold_factor 3, max_wait 1s; 8 requests a second, and a pause",
        seconds: 16,
        curve: pairs.map(|pair| (pair[0], SECOND as f64 / (pair[1] - pair[0]) as f64)).collect(),
        curve_name: "per second (1 / time to the next)",
        bound: level(COUNT as f64, 16),
        bound_name: "full rate: 5/s",
        ..picture
    })
}

fn concurrency() -> Option<Picture> {
    let rule = Rule::from(Concurrency::new(PLACES, 60 * SECOND)?);
    let steady = (0..20).map(|i| 2 * SECOND + i * 50 * MS);
    let requests: Vec<_> = [0; 20].into_iter().chain(steady).collect();
    let (granted, grants) = held(rule, &requests);
    let taken = grants.iter().map(|at| (*at, 1.0));
    let released = grants.iter().map(|at| (at + WORK, -1.0));
    Some(Picture {
        name: "concurrency",
        settings: "max 4, calls of 300 ms, max_wait 1s",
        seconds: 4,
        requests: requests.into_iter().zip(granted).collect(),
        curve: sum(taken.chain(released)),
        curve_name: "places held",
        grants,
        bound: level(PLACES as f64, 4),
        bound_name: "allowed: 4",
        marks: Vec::new(),
    })
}

/// 20 at once, and from 3 s to 6.5 s 8 a second: more than the 5 that are allowed.
fn burst_then_steady() -> Vec<Micros> {
    [0; 20].into_iter().chain((0..=28).map(|i| 3 * SECOND + i * 125 * MS)).collect()
}

// === the rules at work ===

fn check(algorithm: Rule) -> Check {
    Check::new("it", algorithm)
}

fn decide(store: &MemoryStore, now: Micros, rule: Rule, ask: Option<Ticket>) -> Decision {
    let entry = Entry::Reserve { checks: [check(rule)].into(), budget: MAX_WAIT, ticket: ask };
    match store.run_at(EPOCH + now, &[entry]).pop() {
        Some(Reply::Decision(decision)) => decision,
        other => unreachable!("a decision is asked for and this is answered: {other:?}"),
    }
}

/// Runs requests that hold a concurrency permit for [`WORK`], and returns which were granted, and when.
fn held(rule: Rule, requests: &[Micros]) -> (Vec<bool>, Vec<Micros>) {
    let store = MemoryStore::default();
    let (mut granted, mut grants) = (vec![false; requests.len()], Vec::new());
    let mut releases: VecDeque<(Micros, Grant)> = VecDeque::new();
    let mut queue: VecDeque<(usize, Ticket)> = VecDeque::new();
    let mut ask = |now, i: usize, ticket, releases: &mut VecDeque<_>| {
        let decision = decide(&store, now, rule, Some(ticket));
        if let Some(part) = decision.parts.first() {
            granted[i] = true;
            grants.push(now);
            releases.push_back((now + WORK, part.grant));
        }
        decision.queued.map(|queued| Ticket { deadline: queued.deadline, ..ticket })
    };
    let mut coming = requests.iter().copied().enumerate().peekable();
    loop {
        let arrives = coming.peek().map(|(_, at)| *at);
        let ends = releases.front().map(|(at, _)| *at);
        match (arrives, ends) {
            (None, None) => break,
            // A request that arrives when a permit becomes free is decided after those that wait.
            (arrival, Some(end)) if arrival.is_none_or(|at| end <= at) => {
                let Some((_, grant)) = releases.pop_front() else { break };
                store.run_at(EPOCH + end, &[Entry::Refund { check: check(rule), grant }]);
                queue.retain(|(_, ticket)| ticket.deadline > EPOCH + end);
                if let Some((i, ticket)) = queue.pop_front() {
                    // The release has notified this request.
                    ask(end, i, ticket, &mut releases);
                }
            }
            _ => {
                let Some((i, at)) = coming.next() else { break };
                let ticket = Ticket { gateway: 1, number: i as i64, deadline: 0 };
                queue.extend(ask(at, i, ticket, &mut releases).map(|ticket| (i, ticket)));
            }
        }
    }
    (granted, grants)
}

/// Adds up the steps until each instant: the points of a step line.
fn sum(steps: impl Iterator<Item = (Micros, f64)>) -> Vec<(Micros, f64)> {
    let mut steps: Vec<_> = steps.collect();
    steps.sort_by_key(|(at, _)| *at);
    let mut sums: Vec<(Micros, f64)> = vec![(0, 0.0)];
    for (at, step) in steps {
        let last = sums[sums.len() - 1];
        match last.0 == at {
            true => sums.pop(),
            false => None,
        };
        sums.push((at, last.1 + step));
    }
    sums
}

fn total(grants: &[Micros]) -> Vec<(Micros, f64)> {
    sum(grants.iter().map(|at| (*at, 1.0)))
}

fn level(value: f64, seconds: i64) -> Vec<(Micros, f64)> {
    vec![(0, value), (seconds * SECOND, value)]
}

/// The most permits that may have been sent by each instant, given those that were sent before it: the line rises with
/// the rate, up to `burst` above them.
fn filling(grants: &[Micros], burst: i64, seconds: i64) -> Vec<(Micros, f64)> {
    let per = SECOND / COUNT;
    // `left` is the time until the bucket is empty if no more permits were sent, µs.
    let (mut last, mut left, mut line) = (0, burst * per, vec![(0, burst as f64)]);
    for (sent, at) in grants.iter().copied().chain([seconds * SECOND]).enumerate() {
        let full = last + burst * per - left;
        if full < at {
            line.push((full, (sent as i64 + burst) as f64));
        }
        left = (left + at - last).min(burst * per);
        line.push((at, sent as f64 + left as f64 / per as f64));
        (left, last) = (left - per, at);
    }
    line
}

// === impl Picture ===

impl Picture {
    /// Makes the picture of a limiter with a rate; it begins `phase` µs after a second of the store's clock.
    fn of(rule: Rule, requests: &[Micros], phase: Micros) -> Self {
        let store = MemoryStore::default();
        let (mut came, mut grants) = (Vec::new(), Vec::new());
        for now in requests {
            let decision = decide(&store, phase + now, rule, None);
            came.push((*now, decision.admitted));
            grants.extend(decision.admitted.then_some(now + decision.wait));
        }
        Self {
            name: rule.name(),
            settings: "",
            seconds: 8,
            requests: came,
            grants,
            curve: Vec::new(),
            curve_name: "",
            bound: Vec::new(),
            bound_name: "",
            marks: Vec::new(),
        }
    }

    fn path(&self) -> PathBuf {
        path_of(self.name)
    }
}

#[test]
fn the_pictures_in_the_docs_match_the_rules() {
    let drawn = pictures();
    assert_eq!(drawn.len(), 6);
    for picture in drawn {
        let kept = fs::read_to_string(picture.path()).unwrap_or_default();
        let (name, fresh) = (picture.name, picture.svg());
        assert!(kept == fresh, "docs/pictures/{name}.svg: run `cargo run --example pictures`");
        assert!(fresh.len() < 15_000, "{name} is {} bytes", fresh.len());
    }
    let kept = fs::read_to_string(path_of(refusals::NAME)).unwrap_or_default();
    assert!(kept == refusals::svg().unwrap_or_default(), "run `cargo run --example pictures`");
}
