//! Tables on virtual time. The calls that an upstream refuses, and the part of its quota that is used: policy × upstream × delay
//! that varies; limiters that learn; requests that share a limiter. The policies are the rules of this crate; the same run prints
//! the same numbers.
//!
//! ```sh
//! cargo run --release --example simulate
//! cargo run --release --example simulate -- --markdown --learning    # or --sharing, --reserves: this part alone
//! ```
//!
//! Ends with exit code 1 when a law is broken.

#[path = "simulate/learning.rs"]
mod learning;
#[path = "simulate/reserves.rs"]
mod reserves;
#[path = "simulate/sharing.rs"]
mod sharing;

use paceway::{
    algorithm::{Algorithm, FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket},
    store::{Check, Entry, Reply, memory::MemoryStore},
};
use std::{collections::VecDeque, env, io::Write, process::ExitCode};

const MS: Micros = 1_000;
const SECOND: Micros = 1_000_000;
/// The period of every quota: N calls per second, with N from the command's cases.
const T: Micros = SECOND;
/// The instant on the store's clock at which a run begins: the start of a second, µs.
const EPOCH: Micros = 1_000_000_000_000_000;
/// The shortest time that a call takes from its grant to the upstream, µs.
const BASE_DELAY: Micros = 20 * MS;
/// The jitters: by how much the way from grant to upstream may be longer.
const JITTERS: [Micros; 4] = [0, 5 * MS, 30 * MS, 50 * MS];
const MAX_WAIT: Micros = 500 * MS;
/// The offered load, as a multiple of the quota: twice as many requests as it allows.
const LOAD: i64 = 2;
const SEEDS: u64 = 3;
/// A single one is up to five points away from the mean of a row.
const LEARNING_SEEDS: u64 = 4;
const LEGEND: &str =
    "A cell: calls that the upstream refused, of those sent · share of the quota that it accepted.
N per T is the quota; J is the jitter, the most by which the delay to the upstream varies.
";

/// A limiter in front of the upstream, and the promises that the simulation checks.
struct Policy {
    name: &'static str,
    rule: Algorithm,
    /// The upstreams that must never refuse a call of this policy.
    never_refused_by: &'static [Upstream],
    /// The time that N calls take when the limiter is saturated, µs: at the upstreams above, at least the quota times T
    /// / this, less 1 %, is used.
    span: Micros,
}

/// How an upstream enforces N per T on the calls that arrive. Refused calls do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Upstream {
    /// Accepts at most N calls in any interval of length T.
    SlidingLog,
    /// Accepts at most N calls in each window of length T; the windows have a random phase.
    FixedWindow,
    /// Accepts a call for each permit of a bucket of N, into which N permits flow per T.
    TokenBucket,
    /// Accepts a call only if the last accepted one is at least T/N ago.
    Burst1,
}

/// The calls of one policy that one upstream received, and those that it refused.
#[derive(Clone, Copy, Default)]
struct Seen {
    sent: i64,
    refused: i64,
    /// The number of calls that the upstream's quota allows over the whole run.
    quota: i64,
}

/// The results of one policy with one jitter, a line of the table.
struct Row {
    policy: Policy,
    jitter: Micros,
    /// The results at each upstream, in the order of [`Upstream::ALL`].
    seen: [Seen; 4],
}

/// A generator of random numbers with a fixed seed: SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

fn main() -> ExitCode {
    let has = |name: &str| env::args().any(|arg| arg == name);
    let (markdown, learning, sharing) = (has("--markdown"), has("--learning"), has("--sharing"));
    let reserves = has("--reserves");
    let is_whole = !learning && !sharing && !reserves;
    let mut text = String::new();
    let mut broken = Vec::new();
    if is_whole {
        text.push_str(&format!("{LEGEND}\n"));
    }
    let counts = if is_whole { &[5, 50][..] } else { &[] };
    for &count in counts {
        let rows = simulate(count, 600 * SECOND, SEEDS);
        broken.extend(rows.iter().flat_map(|row| row.broken_laws(count)));
        let lines = rows.iter().map(Row::cells);
        let head =
            ["policy", "jitter", "sent", "sliding log", "fixed window", "token bucket", "burst 1"];
        let lines: Vec<_> = [head.map(str::to_owned)].into_iter().chain(lines).collect();
        let title =
            format!("{count}/s, {SEEDS} × 10 min, offered {LOAD} × the quota, max_wait 500 ms");
        text.push_str(&format!("{title}\n\n{}\n", table(&lines, markdown)));
    }
    if is_whole || learning {
        let (tables, more) = learning::simulate(LEARNING_SEEDS, markdown);
        broken.extend(more);
        text.push_str(&format!("{}\n{tables}\n", learning::LEGEND));
    }
    if is_whole || sharing {
        let (tables, more) = sharing::simulate(SEEDS, markdown);
        broken.extend(more);
        text.push_str(&format!("{}\n{tables}\n", sharing::LEGEND));
    }
    if is_whole || reserves {
        let [table, more] = reserves::simulate(4, markdown);
        broken.extend(Some(more).filter(|more| !more.is_empty()));
        text.push_str(&format!("{}\n{table}\n", reserves::LEGEND));
    }
    let verdict = match broken.is_empty() {
        true => "Every law holds.".to_owned(),
        false => format!("Broken:\n{}", broken.join("\n")),
    };
    // A reader that closes the pipe has read enough, but not the verdict: that is a failure, too.
    match writeln!(std::io::stdout(), "{text}{verdict}") {
        Ok(()) if broken.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Runs every policy for `count` per second with every jitter, for `duration` µs and `seeds` times.
fn simulate(count: i64, duration: Micros, seeds: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for jitter in JITTERS {
        for policy in Policy::all(count, jitter) {
            let mut seen = [Seen::default(); 4];
            for seed in 0..seeds {
                let requests = requests(count, duration, &mut Random(seed));
                let sent = grants(policy.rule, &requests, duration);
                let arrivals = arrivals(&sent, jitter, &mut Random(seed ^ 0xa5a5));
                let phase = Random(seed ^ 0x5a5a).below(T);
                for (upstream, seen) in Upstream::ALL.into_iter().zip(&mut seen) {
                    let accepted = upstream.accepted(&arrivals, count, phase);
                    seen.sent += sent.len() as i64;
                    seen.refused += sent.len() as i64 - accepted;
                    seen.quota += count * duration / T;
                }
            }
            rows.push(Row { policy, jitter, seen });
        }
    }
    rows
}

/// Draws the instants of the requests: a Poisson process, given the number of its events.
fn requests(count: i64, duration: Micros, random: &mut Random) -> Vec<Micros> {
    let many = LOAD * count * duration / T;
    let mut instants: Vec<_> = (0..many).map(|_| random.below(duration)).collect();
    instants.sort_unstable();
    instants
}

/// The instants at which the limiter lets the requests pass, up to `duration`.
fn grants(rule: Algorithm, requests: &[Micros], duration: Micros) -> Vec<Micros> {
    let store = MemoryStore::default();
    let check = Check::new("it", rule);
    let ask = [Entry::Reserve { checks: [check].into(), budget: MAX_WAIT, ticket: None }];
    let granted = requests.iter().filter_map(|now| match &store.run_at(EPOCH + now, &ask)[..] {
        [Reply::Decision(decision)] if decision.admitted => Some(now + decision.wait),
        _ => None,
    });
    granted.filter(|at| *at < duration).collect()
}

/// Adds a random delay to each call and returns the instants at the upstream, sorted.
fn arrivals(sent: &[Micros], jitter: Micros, random: &mut Random) -> Vec<Micros> {
    let mut delay = || BASE_DELAY + random.below(jitter + 1);
    let mut instants: Vec<_> = sent.iter().map(|at| at + delay()).collect();
    instants.sort_unstable();
    instants
}

// === impl Policy ===

impl Policy {
    fn all(count: i64, jitter: Micros) -> Vec<Self> {
        use Upstream::{Burst1, FixedWindow as Window, SlidingLog, TokenBucket as Bucket};
        const ANY_WINDOW: &[Upstream] = &[SlidingLog, Window, Bucket];
        const EVERY: &[Upstream] = &[SlidingLog, Window, Bucket, Burst1];
        let within = |margin, upstreams| if margin >= jitter { upstreams } else { &[][..] };
        let ring = |margin| SlidingWindow::new(count, T, margin).map(Algorithm::SlidingWindow);
        let leaky = |margin| LeakyBucket::new(count, T, margin, None).map(Algorithm::LeakyBucket);
        let bucket =
            |n, period, burst| TokenBucket::new(n, period, burst).map(Algorithm::TokenBucket);
        let fixed = FixedWindow::new(count, T).map(Algorithm::FixedWindow);
        let (j, n) = (jitter, count);
        let policies = [
            ("sliding_window, margin 0", ring(0), T, within(0, ANY_WINDOW)),
            ("sliding_window, margin J/2", ring(j / 2), T + j / 2, within(j / 2, ANY_WINDOW)),
            ("sliding_window, margin J", ring(j), T + j, ANY_WINDOW),
            ("sliding_window, margin 2 J", ring(2 * j), T + 2 * j, ANY_WINDOW),
            ("token_bucket N/T, burst N", bucket(n, T, n), T, within(0, &[Bucket])),
            ("token_bucket N/2T, burst N/2 (half)", bucket(n, 2 * T, n / 2), 2 * T, &[]),
            ("token_bucket N/T, burst 1", bucket(n, T, 1), T, within(0, EVERY)),
            ("token_bucket N/(T+J), burst 1", bucket(n, T + j, 1), T + j, ANY_WINDOW),
            ("fixed_window N/T", fixed, T, &[]),
            ("leaky_bucket N/T", leaky(0), T, within(0, EVERY)),
            ("leaky_bucket N/T, margin J", leaky(j), T + n * j, EVERY),
        ];
        let mut all: Vec<Self> = Vec::new();
        for (name, rule, span, never_refused_by) in policies {
            // Without a jitter some policies are the same; each is simulated once.
            if let Some(rule) = rule.filter(|rule| all.iter().all(|policy| policy.rule != *rule)) {
                all.push(Self { name, rule, span, never_refused_by });
            }
        }
        all
    }
}

// === impl Upstream ===

impl Upstream {
    const ALL: [Self; 4] = [Self::SlidingLog, Self::FixedWindow, Self::TokenBucket, Self::Burst1];

    /// Counts the `arrivals` that the upstream accepts; its windows begin `phase` µs before the clock's.
    fn accepted(self, arrivals: &[Micros], count: i64, phase: Micros) -> i64 {
        match self {
            Self::SlidingLog => sliding_log(arrivals, count),
            Self::FixedWindow => fixed_window(arrivals, count, phase),
            Self::TokenBucket => bucket(arrivals, count, count),
            Self::Burst1 => bucket(arrivals, count, 1),
        }
    }
}

fn sliding_log(arrivals: &[Micros], count: i64) -> i64 {
    let (mut log, mut accepted) = (VecDeque::new(), 0);
    for at in arrivals {
        while log.front().is_some_and(|first| first + T <= *at) {
            log.pop_front();
        }
        if (log.len() as i64) < count {
            log.push_back(*at);
            accepted += 1;
        }
    }
    accepted
}

fn fixed_window(arrivals: &[Micros], count: i64, phase: Micros) -> i64 {
    let (mut window, mut used, mut accepted) = (-1, 0, 0);
    for at in arrivals {
        let current = (at + phase) / T;
        if current != window {
            (window, used) = (current, 0);
        }
        if used < count {
            used += 1;
            accepted += 1;
        }
    }
    accepted
}

/// Counts the calls that a bucket accepts, in units of 1/`count` µs, so that nothing is rounded.
fn bucket(arrivals: &[Micros], count: i64, burst: i64) -> i64 {
    let (mut empty_until, mut accepted) = (0, 0);
    for at in arrivals {
        let new = empty_until.max(at * count) + T;
        if new - at * count <= burst * T {
            empty_until = new;
            accepted += 1;
        }
    }
    accepted
}

// === impl Row ===

impl Row {
    fn cells(&self) -> [String; 7] {
        let [log, window, bucket, burst_1] = self.seen.map(|seen| seen.cell());
        let jitter = format!("{} ms", self.jitter / MS);
        [
            self.policy.name.to_owned(),
            jitter,
            self.seen[0].sent.to_string(),
            log,
            window,
            bucket,
            burst_1,
        ]
    }

    /// Describes each law that this row breaks, with the policy, the jitter and the upstream.
    fn broken_laws(&self, count: i64) -> Vec<String> {
        let of = format!("{} at {count}/s, jitter {} ms", self.policy.name, self.jitter / MS);
        let mut broken = Vec::new();
        for (upstream, seen) in Upstream::ALL.iter().zip(self.seen) {
            if !self.policy.never_refused_by.contains(upstream) {
                continue;
            }
            if seen.refused > 0 {
                broken.push(format!("{of}: {upstream:?} refused {}", seen.refused));
            }
            let least = T as f64 / self.policy.span as f64 - 0.01;
            if seen.share() < least {
                broken.push(format!("{of}: {upstream:?} used {:.4} < {least:.4}", seen.share()));
            }
        }
        // If nothing was refused without a margin, the simulation would show nothing.
        let rule = self.policy.rule;
        let no_margin = matches!(rule, Algorithm::SlidingWindow(_)) && rule.facts().margin == 0;
        if no_margin && self.jitter >= 50 * MS && self.seen[0].refused == 0 {
            broken.push(format!("{of}: no refusal in the negative control"));
        }
        broken
    }
}

// === impl Seen ===

impl Seen {
    /// The part of the quota that the upstream accepted: 1.0 if all of it was used.
    fn share(self) -> f64 {
        (self.sent - self.refused) as f64 / self.quota as f64
    }

    fn cell(self) -> String {
        let refused = 100.0 * self.refused as f64 / self.sent as f64;
        let refused = match self.refused {
            0 => "0".to_owned(),
            n => format!("{n} ({refused:.1} %)"),
        };
        format!("{refused} · {:.1} %", 100.0 * self.share())
    }
}

// === impl Random ===

impl Random {
    /// Draws a whole number from 0 to `bound` - 1, each with the same probability.
    fn below(&mut self, bound: i64) -> i64 {
        ((u128::from(self.bits()) * bound as u128) >> 64) as i64
    }

    /// Draws a span of the exponential distribution with this mean: the time between two events of a Poisson process.
    fn exponential(&mut self, mean: Micros) -> Micros {
        let below_one = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - below_one).ln() * mean as f64) as Micros
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Formats lines with columns of equal width, as plain text or as a Markdown table.
fn table<const N: usize>(lines: &[[String; N]], markdown: bool) -> String {
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |line: &[String; N]| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| match cell == &line[0] {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        let cells: Vec<_> = cells.collect();
        if markdown { format!("| {} |\n", cells.join(" | ")) } else { cells.join("  ") + "\n" }
    };
    let mut lines: Vec<_> = lines.iter().map(line).collect();
    if markdown {
        lines.insert(1, format!("|---|{}\n", "--:|".repeat(N - 1)));
    }
    lines.concat()
}

#[test]
fn the_laws_hold_in_a_shorter_run() {
    for count in [5, 50] {
        let rows = simulate(count, 60 * SECOND, 1);
        let broken: Vec<_> = rows.iter().flat_map(|row| row.broken_laws(count)).collect();
        assert_eq!(broken, Vec::<String>::new());
    }
}

#[test]
fn refusals_lower_a_rate_as_far_as_they_must() {
    assert_eq!(learning::broken_laws(LEARNING_SEEDS), Vec::<String>::new());
}

#[test]
fn requests_that_wait_share_the_slots_by_law() {
    assert_eq!(sharing::simulate(1, false).1, Vec::<String>::new());
}

#[test]
fn a_learned_reserve_uses_the_quota_of_a_vendor() {
    assert_eq!(reserves::simulate(1, false)[1], "");
}
