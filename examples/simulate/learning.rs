//! Limiters that learn, before upstreams whose quota is not the configured one, steps, or is shared with another program.
//! The limiter and its rules are those of this crate; callers, round trips and the upstream are a model on virtual time.

mod outcome;
mod scenes;
mod tables;

use super::{EPOCH, MS, Random, SECOND};
use outcome::Outcome;
use paceway::{
    algorithm::{
        Algorithm, Level, Micros, SlidingWindow, TokenBucket,
        auto_margin::{AutoMargin, LearnedMargin, MarginReport},
        gate::Bounds,
        nanohertz::nanohertz,
        reserve::Part,
    },
    store::{Check, Entry, Pause, Reply, memory::MemoryStore},
};
use scenes::{Scene, Strategy};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};
#[cfg(test)]
pub(crate) use tables::broken_laws;
pub(crate) use tables::{LEGEND, simulate};

/// Refusals say `Retry-After: 1`.
const PAUSE: Micros = SECOND;
/// The shortest pause of a gateway, where refusals say to the ms when the next call would be accepted.
const LEAST_PAUSE: Micros = SECOND / 10;
/// How often each of the gateways reports.
const REPORT: Micros = SECOND / 2;
const GATEWAYS: usize = 3;
/// A request that waits for its slot.
struct Waiting {
    at: Micros,
    deadline: Micros,
    check: Check,
    part: Part,
}

/// An event of a run, ordered by its number among those of one instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request,
    Stranger,
    /// The upstream refuses the next call without a cause.
    Hiccup,
    /// The slot of the request with this number.
    Slot(u64),
    /// A call arrives that was sent at this instant.
    Arrival(Micros),
    /// Its answer.
    Answer(Micros, Verdict),
    /// A gateway reports.
    Report(usize),
}

/// An answer of the upstream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Verdict {
    accepted: bool,
    /// For how long a refusal says to wait.
    pause: Micros,
}

struct Run {
    scene: Scene,
    strategy: Strategy,
    is_window: bool,
    random: Random,
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    count: u64,
    store: MemoryStore,
    base: Algorithm,
    auto_margin: AutoMargin,
    margin: LearnedMargin,
    /// Since when the shortest and the longest time of an answer are those of this minute; and those of the one before.
    times: [(Micros, Micros, Micros); 2],
    waiting: BTreeMap<u64, Waiting>,
    /// When the last pause ends.
    paused: Micros,
    has_hiccup: bool,
    /// The instants of the calls that count in the upstream's windows.
    log: VecDeque<Micros>,
    seen: Outcome,
}

// === impl Run ===

impl Run {
    fn new(scene: Scene, strategy: Strategy, is_window: bool, seed: u64) -> Self {
        // An automatic rate has no burst, and a constant one none.
        let is_even = matches!(strategy, Strategy::Auto | Strategy::Constant(_));
        let burst = if is_even { 1 } else { scene.rate };
        let margin = match strategy {
            Strategy::Margin(ms) | Strategy::PausedMargin(ms) => ms * MS,
            Strategy::AutoMargin => 0,
            _ => 30 * MS,
        };
        let auto_margin = AutoMargin { most: SECOND };
        let base = match scene.is_sliding && !matches!(strategy, Strategy::Constant(_)) {
            true => Algorithm::SlidingWindow(
                SlidingWindow::new(scene.rate, SECOND, margin).expect("a legal rule"),
            ),
            false => Algorithm::TokenBucket(
                TokenBucket::new(scene.rate, SECOND, burst).expect("a legal rule"),
            ),
        };
        Self {
            scene,
            strategy,
            is_window,
            random: Random(seed),
            events: BinaryHeap::new(),
            count: 0,
            store: MemoryStore::default(),
            base,
            auto_margin,
            margin: auto_margin.first(0),
            times: [(0, Micros::MAX, 0); 2],
            waiting: BTreeMap::new(),
            paused: 0,
            has_hiccup: false,
            log: VecDeque::new(),
            seen: Outcome::default(),
        }
    }

    fn run(mut self) -> Outcome {
        self.push(0, Event::Request);
        if self.scene.strangers > 0 {
            self.push(0, Event::Stranger);
        }
        for gateway in 0..GATEWAYS {
            self.push(REPORT * gateway as i64 / GATEWAYS as i64, Event::Report(gateway));
        }
        let (from, until) = self.scene.measured;
        for i in 0..self.scene.hiccups {
            let at = from * SECOND + (until - from) * SECOND * i / self.scene.hiccups;
            self.push(at, Event::Hiccup);
        }
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= until.max(self.scene.looked.1) * SECOND {
                break;
            }
            self.happens(now, event, (from * SECOND..until * SECOND).contains(&now));
        }
        let wanted = (from..until).map(|second| self.scene.quota_at(second * SECOND) as f64);
        let quota: f64 = wanted.sum();
        let load = quota * self.scene.load as f64 / 1000.0;
        Outcome { wanted: (quota - self.seen.strangers as f64).min(load), ..self.seen }
    }

    fn happens(&mut self, now: Micros, event: Event, is_measured: bool) {
        match event {
            Event::Request => {
                let mean = SECOND * 1000 / (self.scene.quota_at(now) * self.scene.load);
                let next = now + self.random.exponential(mean);
                self.push(next, Event::Request);
                self.ask(now, now + self.scene.max_wait);
            }
            Event::Stranger => {
                let next = now + self.random.exponential(10 * SECOND / self.scene.strangers);
                self.push(next, Event::Stranger);
                let Verdict { accepted, .. } = self.arrives(now);
                self.seen.strangers += i64::from(accepted && is_measured);
            }
            Event::Hiccup => self.has_hiccup = true,
            Event::Slot(number) => {
                if self.waiting.remove(&number).is_some() {
                    self.seen.sent += i64::from(is_measured);
                    let arrival = now + self.delay();
                    self.push(arrival, Event::Arrival(now));
                }
            }
            Event::Arrival(sent) => {
                let mut verdict = self.arrives(now);
                verdict.accepted &= !std::mem::take(&mut self.has_hiccup);
                self.seen.refused += i64::from(!verdict.accepted && is_measured);
                let answer = now + self.delay();
                self.push(answer, Event::Answer(sent, verdict));
            }
            Event::Answer(sent, Verdict { accepted, pause }) => {
                if accepted {
                    self.took(now, now - sent);
                } else if self.strategy.pauses() {
                    self.report(now, Some(sent));
                    self.pause(now, sent, pause);
                }
            }
            Event::Report(gateway) => {
                self.push(now + REPORT, Event::Report(gateway));
                self.looks(now);
                self.report(now, None);
            }
        }
    }

    fn push(&mut self, at: Micros, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn delay(&mut self) -> Micros {
        self.scene.delay + self.random.below(self.scene.jitter + 1)
    }

    /// Notes the working rate.
    fn looks(&mut self, now: Micros) {
        if now < self.scene.looked.0 * SECOND || now >= self.scene.looked.1 * SECOND {
            return;
        }
        let level = self.level(now);
        let is_written = level.rate == 0;
        let rate = if is_written { nanohertz(self.scene.rate, SECOND) } else { level.rate };
        self.seen.working.is(rate);
        if is_written && level.paused == 0 && self.seen.returned == 0 {
            self.seen.returned = now - self.scene.looked.0 * SECOND;
        }
    }

    /// Notes the time of an answer, as `SharedMargin` of the gateway does.
    fn took(&mut self, now: Micros, time: Micros) {
        if now - self.times[0].0 >= 60 * SECOND {
            self.times = [(now, time, time), self.times[0]];
        }
        let (_, least, most) = &mut self.times[0];
        (*least, *most) = ((*least).min(time), (*most).max(time));
    }

    fn spread(&self) -> Option<Micros> {
        let [new, old] = self.times;
        Some(new.2.max(old.2) - new.1.min(old.1)).filter(|spread| *spread > 0)
    }

    fn report(&mut self, now: Micros, refused: Option<Micros>) {
        if let Strategy::AutoMargin = self.strategy {
            let report = MarginReport { spread: self.spread(), refused };
            self.margin = self.auto_margin.next(self.margin, report, now);
        }
        if now >= self.scene.measured.0 * SECOND {
            self.seen.rates.is(self.level(now).rate);
            self.seen.margins.is(self.margin.margin);
        }
    }

    fn level(&self, now: Micros) -> Level {
        let replies = self.store.run_at(EPOCH + now, &[Entry::Look { check: self.check() }]);
        let [Reply::Level(level)] = &replies[..] else { return Level::default() };
        *level
    }

    fn check(&self) -> Check {
        let at = |rate| self.base.at_rate(rate).expect("a legal rule");
        let rate = |count| nanohertz(count, SECOND);
        match self.strategy {
            Strategy::Auto => {
                let (start, min) = (rate(self.scene.rate), rate(1));
                Check::new("it", at(rate(100))).with_bounds(Bounds { start, min, unit: SECOND })
            }
            Strategy::Constant(rate) => Check::new("it", at(rate)),
            Strategy::AutoMargin => {
                let window = SlidingWindow::new(self.scene.rate, SECOND, self.margin.margin);
                Check::new("it", window.expect("a legal rule"))
            }
            _ => Check::new("it", self.base),
        }
    }

    /// Asks the limiter for a slot before `deadline`.
    fn ask(&mut self, now: Micros, deadline: Micros) {
        let check = self.check();
        let checks = [check.clone()].into();
        let ask = Entry::Reserve { checks, budget: deadline - now, ticket: None };
        let replies = self.store.run_at(EPOCH + now, &[ask]);
        let [Reply::Decision(decision)] = &replies[..] else { return };
        if let Some(part) = decision.parts.first().filter(|_| decision.admitted) {
            let at = now + decision.wait;
            self.push(at, Event::Slot(self.count));
            let waiting = Waiting { at, deadline, check, part: *part };
            self.waiting.insert(self.count - 1, waiting);
        }
    }

    /// Pauses the limiter because a call was refused that was `sent` then. If that was after the last pause, the working rate
    /// falls, and all that wait ask again in their order; otherwise those with a slot within the pause do.
    fn pause(&mut self, now: Micros, sent: Micros, span: Micros) {
        let keeps_rate = matches!(self.strategy, Strategy::Constant(_));
        let pause = if keeps_rate {
            Pause::keeping_rate(span, 429)
        } else {
            let ago = Duration::from_micros((now - sent).unsigned_abs());
            Pause::for_micros(span, 429).since_sent(ago)
        };
        let falls = !keeps_rate && sent >= self.paused;
        self.store.run_at(EPOCH + now, &[Entry::Pause { check: self.check(), pause }]);
        self.paused = self.paused.max(now + span);
        let all = std::mem::take(&mut self.waiting);
        let is_covered = |waiting: &Waiting| falls || waiting.at < self.paused;
        let (covered, rest): (BTreeMap<_, _>, _) =
            all.into_iter().partition(|(_, waiting)| is_covered(waiting));
        self.waiting = rest;
        for Waiting { check, part, .. } in covered.values() {
            let refund = Entry::Refund { check: check.clone(), grant: part.grant };
            self.store.run_at(EPOCH + now, &[refund]);
        }
        for Waiting { deadline, .. } in covered.into_values() {
            self.ask(now, deadline);
        }
    }

    /// The answer of the upstream to a call that arrives `now`.
    fn arrives(&mut self, now: Micros) -> Verdict {
        let begin = if self.is_window { now - now % SECOND } else { now - SECOND + 1 };
        while self.log.front().is_some_and(|first| *first < begin) {
            self.log.pop_front();
        }
        let quota = self.scene.quota_at(now);
        let left = quota - self.log.len() as i64;
        if left > 0 || self.scene.counts_refused {
            self.log.push_back(now);
        }
        let over = usize::try_from(self.log.len() as i64 - quota).unwrap_or(0);
        let free = match self.is_window {
            true => now - now % SECOND + SECOND,
            false => self.log.get(over).map_or(now, |first| first + SECOND),
        };
        let pause = if self.scene.is_exact { (free - now).max(LEAST_PAUSE) } else { PAUSE };
        Verdict { accepted: left > 0, pause }
    }
}
