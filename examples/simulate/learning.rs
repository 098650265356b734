//! Limiters that learn, before upstreams whose quota is not the configured one, steps, or is shared with another program.
//! The limiter and its rules are those of this crate; callers, round trips and the upstream are a model on virtual time.

mod outcome;
mod scenes;

use super::{EPOCH, MS, Random, SECOND, table};
use outcome::Outcome;
use paceway::{
    algorithm::{
        Algorithm, Micros, SlidingWindow, TokenBucket,
        auto_margin::{AutoMargin, LearnedMargin, MarginReport},
        auto_rate::{AutoRate, LearnedRate, Nanohertz, RateReport, RefusedCall, nanohertz},
        reserve::Part,
    },
    store::{Check, Entry, Pause, Reply, memory::MemoryStore},
};
use scenes::{SCENES, Scene, Strategy};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

/// Refusals say `Retry-After: 1`.
const PAUSE: Micros = SECOND;
/// The shortest pause of a gateway, where refusals say to the ms when the next call would be accepted.
const LEAST_PAUSE: Micros = SECOND / 10;
/// How often each of the gateways reports.
const REPORT: Micros = SECOND / 2;
const GATEWAYS: usize = 3;
pub(crate) const LEGEND: &str = "Learning. The vendor accepts N calls in any second (sliding log), or in each second of its clock \
(fixed window).
A cell: calls that the upstream refused, of those sent · share of what strangers leave of the quota, or of the load if that
is less, that it accepted.
";
const LEARNED: &str = "The rates and margins that were learned, after ten minutes.\n";

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
    /// The slot of the request with this number.
    Slot(u64),
    /// A call arrives that was sent at this instant, with a slot of this rate.
    Arrival(Micros, i64),
    /// Its answer.
    Answer(Micros, i64, Verdict),
    /// A gateway reports.
    Report(usize),
}

/// An answer of the upstream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Verdict {
    accepted: bool,
    /// How many calls remain.
    remaining: i64,
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
    auto: AutoRate,
    learned: LearnedRate,
    auto_margin: AutoMargin,
    margin: LearnedMargin,
    /// Since when the shortest and the longest time of an answer are those of this minute; and those of the one before.
    times: [(Micros, Micros, Micros); 2],
    /// When the calls were sent that are not answered yet.
    flying: Vec<Micros>,
    waiting: BTreeMap<u64, Waiting>,
    paused: Micros,
    /// The instants of the calls that count in the upstream's windows.
    log: VecDeque<Micros>,
    /// When the newest answer was sent that said how many calls remain.
    heard: Micros,
    /// Whether that answer left a call for the next request; and when the upstream refused a call last.
    had_rest: bool,
    refused: Micros,
    /// Requests of each gateway since its last report, and those of them that the limiter held.
    asked: [(i64, i64); GATEWAYS],
    seen: Outcome,
}

/// The table of all scenes, that of the learned rates and margins, and what broke a law.
pub(crate) fn simulate(seeds: u64, markdown: bool) -> (String, Vec<String>) {
    let head = ["scene", "limiter", "sliding log", "fixed window"].map(str::to_owned);
    let (mut lines, mut learned, mut broken) = (vec![head.clone()], vec![head], Vec::new());
    for scene in SCENES {
        for &strategy in scene.strategies {
            let seen = [false, true].map(|is_window| {
                let seen = (0..seeds).map(|seed| Run::new(*scene, strategy, is_window, seed).run());
                let seen = seen.reduce(Outcome::and).unwrap_or_default();
                broken.extend(scene.broken_law(strategy, is_window, seen));
                seen
            });
            let line = |[log, window]: [String; 2]| {
                [scene.name.to_owned(), strategy.name(scene.rate), log, window]
            };
            lines.push(line(seen.map(Outcome::cell)));
            if scene.is_settled() && strategy.learns() {
                learned.push(line(seen.map(|seen| seen.learned(strategy))));
            }
        }
    }
    let all = format!("{}\n{LEARNED}\n{}", table(&lines, markdown), table(&learned, markdown));
    (all, broken)
}

fn rate_of(check: &Check) -> Nanohertz {
    check.algorithm.as_rate().map_or(0, |rate| rate.rate())
}

// === impl Run ===

impl Run {
    fn new(scene: Scene, strategy: Strategy, is_window: bool, seed: u64) -> Self {
        let rate = |count| nanohertz(count, SECOND);
        let auto =
            AutoRate { start: rate(scene.rate), min: rate(1), max: rate(100), period: SECOND };
        // An automatic rate has no burst.
        let burst = if strategy == Strategy::Auto { 1 } else { scene.rate };
        let margin = match strategy {
            Strategy::Margin(ms) | Strategy::PausedMargin(ms) => ms * MS,
            Strategy::AutoMargin => 0,
            _ => 30 * MS,
        };
        let auto_margin = AutoMargin { most: SECOND };
        let base = match scene.is_sliding {
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
            auto,
            learned: auto.first(0),
            auto_margin,
            margin: auto_margin.first(0),
            times: [(0, Micros::MAX, 0); 2],
            flying: Vec::new(),
            waiting: BTreeMap::new(),
            paused: 0,
            log: VecDeque::new(),
            heard: -1,
            had_rest: false,
            refused: Micros::MIN / 2,
            asked: [(0, 0); GATEWAYS],
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
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= until * SECOND {
                break;
            }
            self.happens(now, event, now >= from * SECOND);
        }
        let wanted = (from..until).map(|second| self.scene.quota_at(second * SECOND) as f64);
        let quota: f64 = wanted.sum();
        let load = quota * self.scene.load as f64 / 100.0;
        Outcome { wanted: (quota - self.seen.strangers as f64).min(load), ..self.seen }
    }

    fn happens(&mut self, now: Micros, event: Event, is_measured: bool) {
        match event {
            Event::Request => {
                let mean = SECOND * 100 / (self.scene.quota_at(now) * self.scene.load);
                let next = now + self.random.exponential(mean);
                self.push(next, Event::Request);
                let held = self.ask(now, now + self.scene.max_wait);
                if now >= self.paused {
                    let (asked, waited) = &mut self.asked[self.random.below(3) as usize];
                    (*asked, *waited) = (*asked + 1, *waited + i64::from(held));
                }
            }
            Event::Stranger => {
                let next = now + self.random.exponential(10 * SECOND / self.scene.strangers);
                self.push(next, Event::Stranger);
                let Verdict { accepted, .. } = self.arrives(now);
                self.seen.strangers += i64::from(accepted && is_measured);
            }
            Event::Slot(number) => {
                if let Some(Waiting { check, .. }) = self.waiting.remove(&number) {
                    self.seen.sent += i64::from(is_measured);
                    self.flying.push(now);
                    let arrival = now + self.delay();
                    self.push(arrival, Event::Arrival(now, rate_of(&check)));
                }
            }
            Event::Arrival(sent, rate) => {
                let verdict = self.arrives(now);
                self.seen.refused += i64::from(!verdict.accepted && is_measured);
                let answer = now + self.delay();
                self.push(answer, Event::Answer(sent, rate, verdict));
            }
            Event::Answer(sent, rate, Verdict { accepted, remaining, pause }) => {
                if let Some(i) = self.flying.iter().position(|at| *at == sent) {
                    self.flying.swap_remove(i);
                }
                if accepted && sent > self.heard {
                    self.hears(now, sent, remaining);
                }
                if accepted {
                    self.took(now, now - sent);
                } else if self.strategy.pauses() {
                    self.refused = now;
                    let refused = Some(RefusedCall { sent, rate });
                    self.report(now, RateReport { used: false, refused });
                    self.pause(now, pause);
                }
            }
            Event::Report(gateway) => {
                self.push(now + REPORT, Event::Report(gateway));
                let (asked, held) = std::mem::take(&mut self.asked[gateway]);
                let used = held > 0 && held >= asked / 2;
                self.report(now, RateReport { used, refused: None });
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

    /// Lowers the limiter to what an answer says remains, or pauses it, as `lower` of the gateway does.
    fn hears(&mut self, now: Micros, sent: Micros, remaining: i64) {
        let since = self.flying.iter().filter(|at| **at > sent).count() as i64;
        let (span, since) = match self.strategy {
            Strategy::Remaining(span) => (span, since),
            Strategy::Undeducted => (10, 0),
            _ => return,
        };
        self.heard = sent;
        let remaining = (remaining - since).max(0);
        let had_rest = std::mem::replace(&mut self.had_rest, remaining > 0);
        if had_rest && remaining == 0 && now - self.refused < span * SECOND {
            self.pause(now, LEAST_PAUSE.max(2 * SECOND / self.scene.rate));
        } else {
            let lower = Entry::Lower { check: self.check(), remaining, span: 0 };
            self.store.run_at(EPOCH + now, &[lower]);
        }
    }

    /// Notes the time of an answer, as `AutoLimit` of the gateway does.
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

    fn report(&mut self, now: Micros, report: RateReport) {
        match self.strategy {
            Strategy::Auto => self.learned = self.auto.next(self.learned, report, now),
            Strategy::AutoMargin => {
                let refused = report.refused.map(|call| call.sent);
                let report = MarginReport { spread: self.spread(), refused };
                self.margin = self.auto_margin.next(self.margin, report, now);
            }
            _ => {}
        }
        if now >= self.scene.measured.0 * SECOND {
            self.seen.rates.is(self.learned.rate);
            self.seen.margins.is(self.margin.margin);
        }
    }

    fn check(&self) -> Check {
        let rule = match self.strategy {
            Strategy::Auto => self.base.at_rate(self.learned.rate, 1).expect("a legal rule"),
            Strategy::AutoMargin => Algorithm::SlidingWindow(
                SlidingWindow::new(self.scene.rate, SECOND, self.margin.margin)
                    .expect("a legal rule"),
            ),
            _ => self.base,
        };
        Check::new("it", rule)
    }

    /// Asks the limiter for a slot before `deadline`. Returns whether the request has to wait or is refused.
    fn ask(&mut self, now: Micros, deadline: Micros) -> bool {
        let check = self.check();
        let checks = [check.clone()].into();
        let ask = Entry::Reserve { checks, budget: deadline - now, ticket: None };
        let replies = self.store.run_at(EPOCH + now, &[ask]);
        let [Reply::Decision(decision)] = &replies[..] else { return true };
        if let Some(part) = decision.parts.first().filter(|_| decision.admitted) {
            let at = now + decision.wait;
            self.push(at, Event::Slot(self.count));
            let waiting = Waiting { at, deadline, check, part: *part };
            self.waiting.insert(self.count - 1, waiting);
        }
        decision.wait > 0 || !decision.admitted
    }

    /// Pauses the limiter. Requests with a slot within the pause, or of a higher rate, ask again in their order.
    fn pause(&mut self, now: Micros, span: Micros) {
        let pause = Pause::for_micros(span, 429);
        self.store.run_at(EPOCH + now, &[Entry::Pause { check: self.check(), pause }]);
        self.paused = self.paused.max(now + span);
        let all = std::mem::take(&mut self.waiting);
        let rate = rate_of(&self.check());
        let is_covered = |waiting: &Waiting| {
            waiting.at < self.paused || rate_of(&waiting.check) > rate + rate / 20
        };
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
        let (from, until) = self.scene.closed;
        if (from * SECOND..until * SECOND).contains(&now) {
            return Verdict { accepted: false, remaining: 0, pause: until * SECOND - now };
        }
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
        Verdict { accepted: left > 0, remaining: (left - 1).max(0), pause }
    }
}
