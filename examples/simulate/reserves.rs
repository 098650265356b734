//! Calls of a language model before a quota of tokens, by the reserve of a call: learned, `max_tokens`, a constant. The limiter
//! and the model of costs are those of this crate; the calls and the vendor are a model on virtual time.

use super::{EPOCH, MS, Random, SECOND, table};
use paceway::{
    algorithm::{Algorithm, Micros, TokenBucket, reserve::Part},
    key::CostModel,
    store::{Check, Entry, Reply, memory::MemoryStore},
};
use std::{cmp::Reverse, collections::BinaryHeap};

/// The vendor's tokens a minute, and the burst of the limiter: some calls arrive closer together than they were sent.
const QUOTA: i64 = 200_000;
const BURST: i64 = 190_000;
const MINUTE: Micros = 60 * SECOND;
const HOUR: Micros = 60 * MINUTE;
const MAX_WAIT: Micros = MINUTE;
/// The offered load, in percent of the quota.
const LOAD: i64 = 150;
/// The time for a token of the output.
const TOKEN: Micros = 20 * MS;

pub(crate) const LEGEND: &str = "Reserves. Calls of 100 to 20,000 tokens of input and 400 of output (median, lognormal), before 200,000 tokens a
minute; max_tokens is 16,000 to 64,000. Used: the part of the quota. Refused: of the calls that were sent.
";

/// The permits that are reserved for a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reserved {
    Learned,
    MaxTokens,
    Constant(i64),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    bytes: u64,
    input: i64,
    output: i64,
    reserve: i64,
}

/// An event of a run, ordered by its number among those of one instant.
#[derive(Clone, Copy)]
enum Event {
    Request,
    Sent(Call, Part),
    Answer(Call, Part),
}

struct Run {
    reserved: Reserved,
    random: Random,
    /// The calls on their way, by their number.
    events: BinaryHeap<Reverse<(Micros, usize)>>,
    all: Vec<Event>,
    store: MemoryStore,
    model: CostModel,
    /// The vendor's tokens that are left, and when.
    left: i64,
    refilled: Micros,
    seen: Seen,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    sent: i64,
    refused: i64,
    tokens: i64,
}

/// The table, and the laws that are broken.
pub(crate) fn simulate(hours: i64, markdown: bool) -> [String; 2] {
    let (mut lines, mut broken) = (Vec::new(), String::new());
    lines.push(["reserve", "used", "refused"].map(str::to_owned));
    for (name, reserved) in [
        ("learned", Reserved::Learned),
        ("max_tokens", Reserved::MaxTokens),
        ("1000", Reserved::Constant(1000)),
        ("20000", Reserved::Constant(20_000)),
    ] {
        let seen = Run::new(reserved).run(HOUR / 4, HOUR / 4 + hours * HOUR);
        let used = seen.tokens as f64 / (hours * 60 * QUOTA) as f64 * 100.0;
        let refused = seen.refused as f64 / seen.sent as f64 * 100.0;
        if reserved == Reserved::Learned && (used < 92.0 || refused > 0.5) {
            broken = format!("a learned reserve uses {used:.1} % and is refused {refused:.2} %");
        }
        lines.push([name.to_owned(), format!("{used:.1} %"), format!("{refused:.2} %")]);
    }
    [table(&lines, markdown), broken]
}

// === impl Run ===

impl Run {
    fn new(reserved: Reserved) -> Self {
        Self {
            reserved,
            random: Random(7),
            events: BinaryHeap::new(),
            all: Vec::new(),
            store: MemoryStore::default(),
            model: CostModel::default(),
            left: QUOTA,
            refilled: 0,
            seen: Seen::default(),
        }
    }

    fn run(mut self, from: Micros, until: Micros) -> Seen {
        self.push(0, Event::Request);
        while let Some(Reverse((now, number))) = self.events.pop().filter(|next| next.0.0 < until) {
            if now < from {
                self.seen = Seen::default();
            }
            match self.all[number] {
                Event::Request => {
                    let mean = MINUTE * 4_400 * 100 / (QUOTA * LOAD);
                    let next = now + self.random.exponential(mean);
                    self.push(next, Event::Request);
                    self.ask(now);
                }
                Event::Sent(call, part) => self.arrives(now, call, part),
                Event::Answer(call, part) => self.settle(now, call, part),
            }
        }
        self.seen
    }

    fn push(&mut self, at: Micros, event: Event) {
        self.all.push(event);
        self.events.push(Reverse((at, self.all.len() - 1)));
    }

    fn uniform(&mut self) -> f64 {
        self.random.below(1 << 40) as f64 / (1_i64 << 40) as f64
    }

    /// A call. A token has 3.4 to 5 bytes; the rest of the body is 200 bytes.
    fn call(&mut self) -> Call {
        let input = 100.0 * 200_f64.powf(self.uniform());
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.uniform()).cos();
        let output = (400.0 * (0.8 * normal).exp()).max(1.0);
        let bytes = (input * (3.4 + 1.6 * self.uniform())) as u64 + 200;
        let (input, output) = (input as i64, output as i64);
        let reserve = match self.reserved {
            Reserved::Learned => self.model.reserve(bytes).unwrap_or(1000).min(BURST),
            Reserved::MaxTokens => 16_000 << self.random.below(3),
            Reserved::Constant(constant) => constant,
        };
        Call { bytes, input, output, reserve }
    }

    fn check(&self, cost: i64) -> Check {
        let rule = TokenBucket::new(QUOTA, MINUTE, BURST).expect("a legal rule");
        Check { cost, ..Check::new("tokens", Algorithm::TokenBucket(rule)) }
    }

    fn ask(&mut self, now: Micros) {
        let call = self.call();
        let checks = [self.check(call.reserve)].into();
        let ask = Entry::Reserve { checks, budget: MAX_WAIT, ticket: None };
        let replies = self.store.run_at(EPOCH + now, &[ask]);
        let [Reply::Decision(decision)] = &replies[..] else { return };
        if let Some(part) = decision.parts.first().filter(|_| decision.admitted) {
            let (part, delay) = (*part, 20 * MS + self.random.below(30 * MS));
            self.push(now + decision.wait + delay, Event::Sent(call, part));
        }
    }

    /// The vendor takes the input when a call arrives, and the output when it is complete.
    fn arrives(&mut self, now: Micros, call: Call, part: Part) {
        let more = (now - self.refilled) * QUOTA / MINUTE;
        self.left = (self.left + more).min(QUOTA);
        self.refilled += more * MINUTE / QUOTA;
        self.seen.sent += 1;
        if self.left < call.input {
            self.seen.refused += 1;
            return;
        }
        self.left -= call.input;
        self.push(now + SECOND / 2 + call.output * TOKEN, Event::Answer(call, part));
    }

    fn settle(&mut self, now: Micros, call: Call, part: Part) {
        let cost = call.input + call.output;
        self.left -= call.output;
        self.seen.tokens += cost;
        let known = self.model.known();
        self.model.observe(call.bytes, cost, known);
        let check = self.check(call.reserve);
        let Some(rate) = check.algorithm.as_rate().copied() else { return };
        if let Some((grant, cost)) = rate.unused_part(part.grant, call.reserve, cost) {
            let refund = Entry::Refund { check: self.check(cost), grant };
            self.store.run_at(EPOCH + now, &[refund]);
        } else if cost > call.reserve {
            let charge = Check { enforce: false, ..self.check(cost - call.reserve) };
            self.store.run_at(EPOCH + now, &[Entry::Charge { check: charge }]);
        }
    }
}
