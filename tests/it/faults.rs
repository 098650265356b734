//! The store stalls, dies, forgets, moves, while three gateways are under load: every fault under every policy. What
//! must hold is asserted here; with `FAILURES` (a folder) set each runs for longer and leaves a line of the table in
//! docs/failures.md there (`make failures`).

mod link;
mod stage;

use crate::support::Redis;
use link::{Link, Weather};
use rstest::rstest;
use stage::{BURST, RATE, Seen, Stage};
use std::{env, fs, path::Path, time::Duration};
use tokio::time::{Instant, sleep};

/// `on_failure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Share,
    Allow,
    Reject,
}

/// What goes wrong, and goes on for the length of an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Stopped,
    RestartedEmpty,
    RestartedWithAof,
    Paused,
    Sleeps,
    SlowLink,
    SwallowingLink,
    CutLink,
    ScriptsFlushed,
    Flushed,
    Evicting,
    WrongType,
}

/// How long it runs well, badly, and well again.
#[derive(Debug, Clone, Copy)]
struct Spans {
    before: Duration,
    outage: Duration,
    after: Duration,
}

/// Arrivals may come closer together than their slots by what a busy machine delays them.
const JITTER: f64 = 0.15;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_and_everybody_is_answered(
    #[values(
        Fault::Stopped,
        Fault::RestartedEmpty,
        Fault::RestartedWithAof,
        Fault::Paused,
        Fault::Sleeps,
        Fault::SlowLink,
        Fault::SwallowingLink,
        Fault::CutLink,
        Fault::ScriptsFlushed,
        Fault::Flushed,
        Fault::Evicting,
        Fault::WrongType
    )]
    fault: Fault,
    #[values(Policy::Share, Policy::Allow, Policy::Reject)] policy: Policy,
) {
    let spans = Spans::of_this_run();
    let args: &[&str] = match fault {
        Fault::RestartedWithAof => &["--appendonly", "yes", "--appendfsync", "always"],
        // Let through on purpose; the gateway warns of the policy.
        Fault::Sleeps => &["--enable-debug-command", "yes"],
        _ => &[],
    };
    let mut redis = Redis::with(args);
    let link = Link::before(redis.port()).await;
    let store = format!("url: \"redis://127.0.0.1:{}\"", link.port);
    let mut stage = Stage::set(&store, policy).await;

    let start = Instant::now();
    stage.begin();
    sleep(spans.before).await;
    let broken = Instant::now();
    fault.begin(&mut redis, &link, spans.outage);
    sleep(spans.outage).await;
    let mended = Instant::now();
    fault.end(&mut redis, &link);
    stage.until_well().await;
    let well = Instant::now();
    sleep(spans.after).await;
    let end = Instant::now();
    stage.end().await;

    let run = Run { start, broken, mended, well, end };
    let (limited, probes, arrivals) = (stage.limited(), stage.probes(), stage.arrivals());
    let over = over_the_law(&arrivals);
    run.write_down(fault, policy, &limited, &probes, &arrivals, over);

    let count = |status| limited.iter().filter(|seen| seen.status == status).count();
    assert_eq!(count(0), 0, "requests without an answer");
    let known = [200, 429, 503].iter().map(|status| count(*status)).sum::<usize>();
    assert_eq!(known, limited.len(), "other answers: {limited:?}");
    if policy != Policy::Allow {
        assert!(over <= RATE * JITTER, "{over:.1} more than the law allows");
    }
    if policy != Policy::Reject && fault != Fault::WrongType {
        assert_eq!(count(503), 0, "nobody is to be turned away");
    }
    if fault.is_outage() {
        let out = |seen: &&Seen| (broken + spans.outage / 4..mended).contains(&seen.sent);
        let during: Vec<_> = limited.iter().filter(out).collect();
        let passed = during.iter().filter(|seen| seen.status == 200).count();
        match policy {
            Policy::Share => assert!(passed > 0, "nothing passed in the outage"),
            Policy::Allow => assert_eq!(passed, during.len(), "all are to pass"),
            Policy::Reject => assert_eq!(passed, 0, "nothing is to pass"),
        }
    }
    let again = limited.iter().filter(|seen| seen.sent > well && seen.status == 200).count();
    assert!(again > 0, "nothing passed when the store was back");
}

// === impl Fault ===

impl Fault {
    fn begin(self, redis: &mut Redis, link: &Link, outage: Duration) {
        let millis = outage.as_millis().to_string();
        match self {
            Self::Stopped => redis.freeze(),
            Self::RestartedEmpty | Self::RestartedWithAof => redis.kill(),
            Self::Paused => drop(redis.command(&["CLIENT", "PAUSE", &millis, "ALL"])),
            Self::Sleeps => redis.begin(&["DEBUG", "SLEEP", &outage.as_secs_f64().to_string()]),
            Self::SlowLink => link.set(Weather::Slow(Duration::from_millis(300))),
            Self::SwallowingLink => link.set(Weather::Swallows),
            Self::CutLink => link.set(Weather::Cut),
            Self::ScriptsFlushed => drop(redis.command(&["SCRIPT", "FLUSH"])),
            Self::Flushed => drop(redis.command(&["FLUSHALL"])),
            Self::Evicting => {
                redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
                redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
            }
            Self::WrongType => {
                for key in redis.keys().iter().filter(|key| key.ends_with(":it")) {
                    // In one step: between two, gateways would make it anew.
                    let script = "redis.call('DEL', KEYS[1]); redis.call('LPUSH', KEYS[1], 'x')";
                    redis.command(&["EVAL", script, "1", key]);
                }
            }
        }
    }

    fn end(self, redis: &mut Redis, link: &Link) {
        match self {
            Self::Stopped => redis.thaw(),
            Self::RestartedEmpty | Self::RestartedWithAof => redis.start_again(),
            Self::SlowLink | Self::SwallowingLink | Self::CutLink => link.set(Weather::Fair),
            Self::Evicting => drop(redis.command(&["CONFIG", "SET", "maxmemory", "0"])),
            Self::WrongType => {
                for key in redis.keys().iter().filter(|key| key.ends_with(":it")) {
                    redis.command(&["DEL", key]);
                }
            }
            Self::Paused | Self::Sleeps | Self::ScriptsFlushed | Self::Flushed => {}
        }
    }

    /// Whether no decision comes while it lasts.
    fn is_outage(self) -> bool {
        matches!(
            self,
            Self::Stopped
                | Self::RestartedEmpty
                | Self::RestartedWithAof
                | Self::Paused
                | Self::Sleeps
                | Self::SlowLink
                | Self::SwallowingLink
                | Self::CutLink
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::Stopped => "SIGSTOP, SIGCONT",
            Self::RestartedEmpty => "SIGKILL, restart empty",
            Self::RestartedWithAof => "SIGKILL, restart with AOF",
            Self::Paused => "`CLIENT PAUSE`",
            Self::Sleeps => "`DEBUG SLEEP`",
            Self::SlowLink => "link slow by 300 ms each way",
            Self::SwallowingLink => "link swallows everything",
            Self::CutLink => "link cut",
            Self::ScriptsFlushed => "`SCRIPT FLUSH`",
            Self::Flushed => "`FLUSHALL`",
            Self::Evicting => "`maxmemory` reached, keys evicted",
            Self::WrongType => "the key holds a list",
        }
    }
}

// === impl Policy ===

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Allow => "allow",
            Self::Reject => "reject",
        }
    }
}

// === impl Spans ===

impl Spans {
    fn of_this_run() -> Self {
        let span = |millis, long| match env::var_os("FAILURES") {
            None => Duration::from_millis(millis),
            Some(_) => Duration::from_secs(long),
        };
        Self { before: span(500, 3), outage: span(1200, 5), after: span(500, 3) }
    }
}

/// The most that arrived in any interval above what the law allows there.
fn over_the_law(arrivals: &[Instant]) -> f64 {
    // What a bucket owes that is never refused, less its burst.
    let (mut owed, mut most, mut last) = (0.0_f64, 0.0_f64, None);
    for arrival in arrivals {
        let since = last.map_or(0.0, |last: Instant| (*arrival - last).as_secs_f64());
        owed = (owed - since * RATE).max(0.0) + 1.0;
        most = most.max(owed - BURST);
        last = Some(*arrival);
    }
    most
}

/// When what happened.
struct Run {
    start: Instant,
    broken: Instant,
    mended: Instant,
    well: Instant,
    end: Instant,
}

// === impl Run ===

impl Run {
    fn write_down(
        &self,
        fault: Fault,
        policy: Policy,
        limited: &[Seen],
        probes: &[Seen],
        arrivals: &[Instant],
        over: f64,
    ) {
        let Some(folder) = env::var_os("FAILURES") else { return };
        let answers = |from: Instant, to: Instant| {
            let status = |status| {
                let seen = |seen: &&Seen| seen.status == status && (from..to).contains(&seen.sent);
                limited.iter().filter(seen).count()
            };
            format!("{} / {} / {}", status(200), status(429), status(503))
        };
        let opening = self.broken + Duration::from_secs(1);
        let used = |from: Instant, to: Instant| {
            let count = arrivals.iter().filter(|at| (from..to).contains(at)).count() as f64;
            100.0 * count / (RATE * (to - from).as_secs_f64())
        };
        let line = format!(
            "| {} | `{}` | {} | {} | {} | {} | {} | {} | {:.0} % | {:.0} % | {} | {:.2} |\n",
            fault.name(),
            policy.name(),
            answers(self.start, self.broken),
            answers(self.broken, self.mended),
            answers(self.mended, self.end),
            p99(probes, self.start, self.broken),
            p99(probes, self.broken, opening),
            p99(probes, opening, self.mended),
            used(opening, self.mended),
            used(self.well, self.end),
            if policy == Policy::Allow { "-".to_owned() } else { format!("{over:.1}") },
            (self.well - self.mended).as_secs_f64(),
        );
        let file = Path::new(&folder).join(format!("{:02}-{}", fault as u8, policy.name()));
        fs::write(file, line).expect("a line of the table");
    }
}

/// In ms.
fn p99(probes: &[Seen], from: Instant, to: Instant) -> String {
    let within = probes.iter().filter(|seen| (from..to).contains(&seen.sent));
    let mut took: Vec<_> = within.map(|seen| seen.took).collect();
    took.sort();
    let at = (took.len() * 99).div_ceil(100).saturating_sub(1);
    took.get(at).map_or("-".into(), |took| format!("{:.1}", took.as_secs_f64() * 1e3))
}

#[test]
fn the_law_is_read_from_arrivals() {
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let burst: Vec<_> = (0..10).map(|_| at(0)).collect();
    assert!(over_the_law(&burst) <= 0.0);
    let steady = burst.iter().copied().chain((1..100).map(|i| at(25 * i)));
    assert!(over_the_law(&steady.collect::<Vec<_>>()) < 1e-6);
    let twice = burst.iter().copied().chain((0..10).map(|_| at(100)));
    assert!((over_the_law(&twice.collect::<Vec<_>>()) - 6.0).abs() < 1e-6);
}
