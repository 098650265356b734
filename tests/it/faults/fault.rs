//! Faults of a store that last for the length of an outage.

use super::{
    Policy,
    link::Weather,
    servers::{Servers, Step},
};
use crate::support::{Redis, eventually};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// A fault. In a Cluster it happens to one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Stopped,
    RestartedEmpty,
    RestartedWithAof,
    Paused,
    Sleeps,
    SlowLink,
    SwallowingLink,
    CutLink,
    FunctionsFlushed,
    Flushed,
    Evicting,
    WrongType,
    /// Until a replica is master. It comes back as one that has no data.
    KilledAndReplaced,
    /// The server is stopped until a replica is master, and then continues as if nothing had happened.
    StoppedAndReplaced,
    SlotsMove,
}

// === impl Fault ===

impl Fault {
    /// Arguments of redis-server that this fault needs, such as those of an append-only file.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::RestartedWithAof => &["--appendonly", "yes", "--appendfsync", "always"],
            // Let through on purpose; the gateway warns of the policy.
            Self::Sleeps => &["--enable-debug-command", "yes"],
            _ => &[],
        }
    }

    pub(super) fn begin(self, servers: &mut Servers, outage: Duration) {
        let millis = outage.as_millis().to_string();
        match self {
            Self::Stopped | Self::StoppedAndReplaced => servers.suffers().freeze(),
            Self::RestartedEmpty | Self::RestartedWithAof | Self::KilledAndReplaced => {
                servers.suffers().kill();
            }
            Self::Paused => {
                drop(servers.suffers().command(&["CLIENT", "PAUSE", &millis, "ALL"]));
            }
            Self::Sleeps => {
                servers.suffers().begin(&["DEBUG", "SLEEP", &outage.as_secs_f64().to_string()]);
            }
            Self::SlowLink => servers.link().set(Weather::Slow(Duration::from_millis(300))),
            Self::SwallowingLink => servers.link().set(Weather::Swallows),
            Self::CutLink => servers.link().set(Weather::Cut),
            Self::FunctionsFlushed => drop(servers.suffers().command(&["FUNCTION", "FLUSH"])),
            Self::Flushed => drop(servers.suffers().command(&["FLUSHALL"])),
            Self::Evicting => {
                let redis = servers.suffers();
                redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
                redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
            }
            Self::WrongType => {
                let redis = servers.suffers();
                for key in states(redis) {
                    // In one step: between two steps, gateways would create it again.
                    let script = "redis.call('DEL', KEYS[1]); redis.call('LPUSH', KEYS[1], 'x')";
                    redis.command(&["EVAL", script, "1", &key]);
                }
            }
            Self::SlotsMove => servers.move_slots(Step::Begin),
        }
    }

    /// Waits for the length of the fault, from `broken` on. Up to the instant that it returns, a server that was stopped is
    /// still out, and no other has taken its place.
    pub(super) async fn last(
        self,
        servers: &Servers,
        broken: Instant,
        outage: Duration,
    ) -> Instant {
        match self {
            Self::KilledAndReplaced | Self::StoppedAndReplaced => {
                let mut gone = Instant::now();
                eventually("a replica is master", async || {
                    let asked = Instant::now();
                    if servers.are_replaced() {
                        return Some(());
                    }
                    gone = asked;
                    None
                })
                .await;
                gone
            }
            Self::SlotsMove => {
                for step in [Step::Keys, Step::End] {
                    sleep(outage / 3).await;
                    servers.move_slots(step);
                }
                sleep(outage / 3).await;
                Instant::now()
            }
            Self::Paused | Self::Sleeps => {
                // By itself it ends so much later than it began.
                sleep_until(broken + outage).await;
                broken + outage
            }
            _ => {
                sleep(outage).await;
                Instant::now()
            }
        }
    }

    pub(super) fn end(self, servers: &mut Servers) {
        match self {
            Self::Stopped | Self::StoppedAndReplaced => servers.suffers().thaw(),
            Self::RestartedEmpty | Self::RestartedWithAof | Self::KilledAndReplaced => {
                servers.suffers().start_again();
            }
            Self::SlowLink | Self::SwallowingLink | Self::CutLink => {
                servers.link().set(Weather::Fair);
            }
            Self::Evicting => {
                drop(servers.suffers().command(&["CONFIG", "SET", "maxmemory", "0"]));
            }
            Self::WrongType => {
                let redis = servers.suffers();
                for key in states(redis) {
                    redis.command(&["DEL", &key]);
                }
            }
            Self::Paused
            | Self::Sleeps
            | Self::FunctionsFlushed
            | Self::Flushed
            | Self::SlotsMove => {}
        }
    }

    /// Whether the store makes no decision while the fault lasts.
    pub(super) fn is_outage(self) -> bool {
        !matches!(self, Self::FunctionsFlushed | Self::Flushed | Self::WrongType | Self::SlotsMove)
    }

    /// Whether another server has the place of the one that is out, and keeps it.
    pub(super) fn is_replaced(self) -> bool {
        matches!(self, Self::KilledAndReplaced | Self::StoppedAndReplaced)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stopped => "SIGSTOP, SIGCONT",
            Self::RestartedEmpty => "SIGKILL, restart empty",
            Self::RestartedWithAof => "SIGKILL, restart with AOF",
            Self::Paused => "`CLIENT PAUSE`",
            Self::Sleeps => "`DEBUG SLEEP`",
            Self::SlowLink => "link slow by 300 ms each way",
            Self::SwallowingLink => "link swallows everything",
            Self::CutLink => "link cut",
            Self::FunctionsFlushed => "`FUNCTION FLUSH`",
            Self::Flushed => "`FLUSHALL`",
            Self::Evicting => "`maxmemory` reached, keys evicted",
            Self::WrongType => "the key holds a list",
            Self::KilledAndReplaced => "SIGKILL, a replica takes over",
            Self::StoppedAndReplaced => "SIGSTOP, a replica takes over",
            Self::SlotsMove => "slots move to another node",
        }
    }
}

/// The keys that the limiters `share`, `allow` and `reject` have on this server.
fn states(redis: &Redis) -> Vec<String> {
    let is_one = |key: &String| {
        Policy::ALL.iter().any(|policy| key.ends_with(&format!(":{}", policy.name())))
    };
    redis.keys().into_iter().filter(is_one).collect()
}
