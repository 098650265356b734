//! Three gateways on one store under steady load: a limiter of each policy, and the answers of each.

use super::Policy;
use crate::support::{Conn, Gateway, PATIENCE, Upstream, eventually, request};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    env, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

/// The rate of each limiter, permits per second; `BURST` is how many it grants at once.
pub(super) const RATE: f64 = 40.0;
pub(super) const BURST: f64 = 10.0;
/// The load of each limiter over all gateways, requests per second: twice its rate.
const OFFERED: f64 = 80.0;
const GATEWAYS: usize = 3;
/// Requests for one path that are under way at one time.
const MOST: usize = 100;
/// The limiters that may suffer. Those named `free-` hold no request, so the time of their answers is the time that the
/// store adds.
pub(super) const LIMITERS: [&str; 6] =
    ["share", "allow", "reject", "free-share", "free-allow", "free-reject"];

/// The answer to a request, when the request was sent, and how long the answer took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Its number among all requests for the same path, from 0.
    number: usize,
    pub(super) sent: Instant,
    pub(super) took: Duration,
    /// The status of the answer; 0 for a request that got none.
    pub(super) status: u16,
    /// The instant of its arrival at the upstream, if it was forwarded.
    pub(super) arrived: Option<Instant>,
}

pub(super) struct Stage {
    pub(super) gateways: Vec<Gateway>,
    upstream: Upstream,
    /// The requests to the limiters that hold requests, by policy.
    limited: [Log; 3],
    probes: [Log; 3],
    /// The log of a limiter on an untouched node, if there is one.
    healthy: Log,
    load: Vec<JoinHandle<()>>,
}

/// The requests for one path, in the order in which they were sent.
#[derive(Debug, Clone, Default)]
struct Log {
    sent: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

// === impl Seen ===

impl Seen {
    /// A request that was sent and arrived at these instants, for tests of the law.
    pub(super) fn passed(sent: Instant, arrived: Instant) -> Self {
        Self { number: 0, sent, took: arrived - sent, status: 200, arrived: Some(arrived) }
    }
}

// === impl Log ===

impl Log {
    fn all(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }
}

// === impl Stage ===

impl Stage {
    /// `store` is the value of `store` in the configuration, without its closing brace.
    pub(super) async fn set(store: &str) -> Self {
        Self::of([store; GATEWAYS]).await
    }

    /// The same, where gateways reach the store by ways of their own.
    pub(super) async fn of(stores: [&str; GATEWAYS]) -> Self {
        let upstream = Upstream::ok().await;
        let (mut limiters, mut routes) = (String::new(), String::new());
        for policy in Policy::ALL.map(Policy::name) {
            limiters += &format!(
                "  {policy}: {{ rate: {RATE}/s, burst: {BURST}, on_failure: {policy} }}
  free-{policy}: {{ rate: 100000/s, burst: 100000, on_failure: {policy} }}\n"
            );
            routes += &format!(
                "  - {{ suffix: /{policy}, limiters: [{policy}], max_wait: 100ms }}
  - {{ suffix: /free-{policy}, limiters: [free-{policy}] }}\n"
            );
        }
        let yaml = |store: &str| {
            format!(
                "upstreams: {{ it: {{ url: \"{}\", connect_timeout: 30s }} }}
workers: 1
store: {{ {store}, timeout: 50ms }}
limiters:
  healthy: {{ rate: 100000/s, burst: 100000 }}
{limiters}routes:
  - {{ suffix: /healthy, limiters: [healthy] }}
{routes}",
                upstream.url(),
            )
        };
        let mut gateways = Vec::new();
        for store in stores {
            gateways.push(Gateway::start(&yaml(store)).await);
        }
        for gateway in &gateways {
            gateway.until_answered("/free-reject", 200).await;
            eventually("all gateways know of each other", async || {
                let count = gateway.metric("paceway_store_gateways", &[]).await;
                (count == GATEWAYS as f64).then_some(())
            })
            .await;
        }
        let (limited, probes, healthy) = (Default::default(), Default::default(), Log::default());
        Self { gateways, upstream, limited, probes, healthy, load: Vec::new() }
    }

    pub(super) fn begin(&mut self, with_healthy: bool) {
        let pause = Duration::from_secs_f64(1.0 / OFFERED);
        // The table has percentiles of them; the tests look at the answers alone.
        let probe = Duration::from_millis(if env::var_os("FAILURES").is_some() { 10 } else { 60 });
        for policy in Policy::ALL {
            let (limited, probes) = (&self.limited[policy as usize], &self.probes[policy as usize]);
            self.load.push(self.offer(format!("/{}", policy.name()), pause, true, limited));
            self.load.push(self.offer(format!("/free-{}", policy.name()), probe, false, probes));
        }
        if with_healthy {
            self.load.push(self.offer("/healthy".into(), pause, true, &self.healthy));
        }
    }

    /// Begins the load, with requests of one policy only.
    pub(super) fn begin_with(&mut self, policy: Policy) {
        let (pause, log) = (Duration::from_secs_f64(1.0 / OFFERED), &self.limited[policy as usize]);
        self.load.push(self.offer(format!("/{}", policy.name()), pause, true, log));
    }

    /// One request each `pause`, to one gateway after the other, whatever the answers do. `keeps`: on connections that
    /// have had an answer, where there is one.
    fn offer(&self, target: String, pause: Duration, keeps: bool, log: &Log) -> JoinHandle<()> {
        let log = log.clone();
        let gateways: Vec<_> = self
            .gateways
            .iter()
            .map(|it| (it.listen, Arc::<Mutex<Vec<Conn>>>::default()))
            .collect();
        tokio::spawn(async move {
            let mut ticks = interval(pause);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for (gateway, idle) in gateways.iter().cycle() {
                ticks.tick().await;
                // A machine that does not keep up is not to be buried.
                if log.sent.load(SeqCst) >= log.seen.lock().len() + MOST {
                    continue;
                }
                let number = log.sent.fetch_add(1, SeqCst);
                let target = format!("{target}?{number}");
                let (gateway, idle, log) = (*gateway, idle.clone(), log.clone());
                // Goes on when the load has ended: each is to be answered.
                tokio::spawn(async move {
                    let sent = Instant::now();
                    let kept = idle.lock().pop();
                    let answer = timeout(PATIENCE, ask(gateway, &target, kept)).await;
                    let answer = answer.ok().and_then(Result::ok);
                    let status = answer.as_ref().map_or(0, |(status, _)| *status);
                    let took = sent.elapsed();
                    log.seen.lock().push(Seen { number, sent, took, status, arrived: None });
                    if let Some((_, conn)) = answer
                        && keeps
                    {
                        idle.lock().push(conn);
                    }
                });
            }
        })
    }

    /// Decisions of a limiter by the store so far, of one gateway each.
    pub(super) async fn shared(&self, limiter: &str) -> Vec<f64> {
        let mut all = Vec::new();
        for gateway in &self.gateways {
            let labels = [("limiter", limiter), ("source", "shared")];
            all.push(gateway.metric("paceway_decisions_total", &labels).await);
        }
        all
    }

    /// Until each gateway has made more than `before` decisions of a limiter that carry `labels`.
    async fn until_decided(&self, limiter: &str, labels: &[(&str, &str)], before: &[f64]) {
        let labels = [&[("limiter", limiter)], labels].concat();
        for (i, (gateway, before)) in self.gateways.iter().zip(before).enumerate() {
            eventually(&format!("gateway {i} decides: {labels:?}"), async || {
                let count = gateway.metric("paceway_decisions_total", &labels).await;
                (count > *before).then_some(())
            })
            .await;
        }
    }

    /// Permits that gateways have granted by their shares so far.
    pub(super) async fn granted_alone(&self) -> f64 {
        let mut sum = 0.0;
        for gateway in &self.gateways {
            sum += granted_alone(gateway).await;
        }
        sum
    }

    /// Until each gateway has decided without the store what it may.
    pub(super) async fn until_policies_show(&self) {
        for (i, gateway) in self.gateways.iter().enumerate() {
            eventually(&format!("gateway {i} lets its share through"), async || {
                (granted_alone(gateway).await > 0.0).then_some(())
            })
            .await;
        }
        self.until_decided("allow", &[("source", "none")], &[0.0; GATEWAYS]).await;
    }

    /// Waits until a request of each policy has been answered 503, because no gateway knows what may pass.
    pub(super) async fn until_turned_away(&self) {
        for policy in Policy::ALL {
            eventually(&format!("503: {}", policy.name()), async || {
                self.limited(policy).iter().any(|seen| seen.status == 503).then_some(())
            })
            .await;
        }
    }

    /// Until each gateway has asked the node that nothing happens to once more.
    pub(super) async fn until_healthy(&self) {
        let before = self.shared("healthy").await;
        self.until_decided("healthy", &[("source", "shared")], &before).await;
    }

    /// Waits until a request of each policy has arrived that was sent after `since`.
    pub(super) async fn until_passed(&self, since: Instant) {
        for policy in Policy::ALL {
            eventually(&format!("something passes: {}", policy.name()), async || {
                let seen = self.limited(policy);
                seen.iter().any(|it| it.sent > since && it.status == 200).then_some(())
            })
            .await;
        }
    }

    /// Until every gateway decides by the store again, for each policy; `before` is what they had decided by it when the
    /// fault ended.
    pub(super) async fn until_well(&self, before: &[Vec<f64>; 3]) {
        for gateway in &self.gateways {
            eventually("all breakers are closed", async || {
                let state = gateway.metric("paceway_store_breaker_state", &[]).await;
                (state == 0.0).then_some(())
            })
            .await;
        }
        for policy in Policy::ALL {
            let before = &before[policy as usize];
            self.until_decided(policy.name(), &[("source", "shared")], before).await;
        }
    }

    /// No more requests; resolves when all that were sent have been answered, or were not in time.
    pub(super) async fn end(&mut self) {
        for load in self.load.drain(..) {
            load.abort();
            // Nothing is sent after that.
            drop(load.await);
        }
        eventually("all requests have come to their end", async || {
            let mut logs = self.limited.iter().chain(&self.probes).chain([&self.healthy]);
            logs.all(|log| log.seen.lock().len() == log.sent.load(SeqCst)).then_some(())
        })
        .await;
    }

    pub(super) fn limited(&self, policy: Policy) -> Vec<Seen> {
        let start = format!("/{}?", policy.name());
        let arrived: HashMap<usize, Instant> = (self.upstream.calls().iter())
            .filter_map(|call| Some((call.target.strip_prefix(&start)?.parse().ok()?, call.at)))
            .collect();
        let with = |seen: Seen| Seen { arrived: arrived.get(&seen.number).copied(), ..seen };
        self.limited[policy as usize].all().into_iter().map(with).collect()
    }

    pub(super) fn probes(&self, policy: Policy) -> Vec<Seen> {
        self.probes[policy as usize].all()
    }

    pub(super) fn healthy(&self) -> Vec<Seen> {
        self.healthy.all()
    }
}

async fn granted_alone(gateway: &Gateway) -> f64 {
    let mut sum = 0.0;
    for decision in ["pass", "wait"] {
        let labels = [("limiter", "share"), ("source", "local"), ("decision", decision)];
        sum += gateway.metric("paceway_decisions_total", &labels).await;
    }
    sum
}

/// Sends a request on `kept`, or on a new connection if that is `None`.
async fn ask(gateway: SocketAddr, target: &str, kept: Option<Conn>) -> io::Result<(u16, Conn)> {
    let mut conn = match kept {
        Some(conn) => conn,
        None => Conn::to(gateway).await?,
    };
    conn.send(request("GET", target, &[])).await?;
    let status = conn.answer().await?.status;
    Ok((status, conn))
}
