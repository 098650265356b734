//! Three gateways on one store under steady load, and what came of it.

use super::Policy;
use crate::support::{Conn, Gateway, PATIENCE, Upstream, eventually, request};
use parking_lot::Mutex;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, interval, timeout},
};

/// Permits per second, and at once.
pub(super) const RATE: f64 = 40.0;
pub(super) const BURST: f64 = 10.0;
/// Offered, in sum.
const OFFERED: f64 = 80.0;
/// Between two requests that no limiter holds, to each gateway: what an answer takes is what the store adds.
const PROBE: Duration = Duration::from_millis(20);
const GATEWAYS: usize = 3;

/// What a request was answered, when it was sent, and how long that took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) sent: Instant,
    pub(super) took: Duration,
    /// 0: no answer.
    pub(super) status: u16,
}

pub(super) struct Stage {
    pub(super) gateways: Vec<Gateway>,
    upstream: Upstream,
    limited: Arc<Mutex<Vec<Seen>>>,
    probes: Arc<Mutex<Vec<Seen>>>,
    /// Of both kinds.
    sent: Arc<AtomicUsize>,
    load: Vec<JoinHandle<()>>,
}

// === impl Stage ===

impl Stage {
    /// `store` is what stands in the configuration behind `url`.
    pub(super) async fn set(store: &str, policy: Policy) -> Self {
        let upstream = Upstream::ok().await;
        let yaml = format!(
            "upstream: {}
workers: 1
store: {{ {store}, timeout: 50ms, on_failure: {} }}
limiters:
  it: {{ rate: {RATE}/s, burst: {BURST} }}
  free: {{ rate: 100000/s, burst: 100000 }}
routes:
  - {{ suffix: /x, limiters: [it], max_wait: 100ms }}
  - {{ suffix: /free, limiters: [free] }}
",
            upstream.url(),
            policy.name()
        );
        let mut gateways = Vec::new();
        for _ in 0..GATEWAYS {
            gateways.push(Gateway::start(&yaml).await);
        }
        for gateway in &gateways {
            gateway.until_answered("/free", 200).await;
        }
        eventually("all gateways know of each other", async || {
            for gateway in &gateways {
                if gateway.metric("paceway_store_gateways", &[]).await != GATEWAYS as f64 {
                    return None;
                }
            }
            Some(())
        })
        .await;
        let (limited, probes, sent) = (Arc::default(), Arc::default(), Arc::default());
        Self { gateways, upstream, limited, probes, sent, load: Vec::new() }
    }

    pub(super) fn begin(&mut self) {
        let addresses: Vec<_> = self.gateways.iter().map(|gateway| gateway.listen).collect();
        let pause = Duration::from_secs_f64(1.0 / OFFERED);
        for (target, pause, log) in
            [("/x", pause, &self.limited), ("/free", PROBE / GATEWAYS as u32, &self.probes)]
        {
            let log = (self.sent.clone(), log.clone());
            self.load.push(tokio::spawn(offer(target, addresses.clone(), pause, log)));
        }
    }

    /// Until every gateway decides by the store again.
    pub(super) async fn until_well(&self) {
        eventually("all breakers are closed", async || {
            for gateway in &self.gateways {
                if gateway.metric("paceway_store_breaker_state", &[]).await != 0.0 {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// No more requests; resolves when all that were sent have been answered, or were not in time.
    pub(super) async fn end(&mut self) {
        for load in self.load.drain(..) {
            load.abort();
            // Nothing is sent behind that.
            drop(load.await);
        }
        eventually("all requests have come to their end", async || {
            let ended = self.limited.lock().len() + self.probes.lock().len();
            (ended == self.sent.load(SeqCst)).then_some(())
        })
        .await;
    }

    pub(super) fn limited(&self) -> Vec<Seen> {
        self.limited.lock().clone()
    }

    pub(super) fn probes(&self) -> Vec<Seen> {
        self.probes.lock().clone()
    }

    /// When limited calls arrived at the upstream.
    pub(super) fn arrivals(&self) -> Vec<Instant> {
        let calls = self.upstream.calls();
        let mut arrivals: Vec<_> =
            calls.iter().filter(|call| call.target == "/x").map(|call| call.at).collect();
        arrivals.sort();
        arrivals
    }
}

/// One request each `pause`, to one gateway after the other, whatever the answers do.
async fn offer(
    target: &'static str,
    gateways: Vec<SocketAddr>,
    pause: Duration,
    (count, log): (Arc<AtomicUsize>, Arc<Mutex<Vec<Seen>>>),
) {
    let mut ticks = interval(pause);
    for gateway in gateways.iter().cycle() {
        ticks.tick().await;
        let (gateway, log) = (*gateway, log.clone());
        count.fetch_add(1, SeqCst);
        // Goes on when the load has ended: each is to be answered.
        tokio::spawn(async move {
            let sent = Instant::now();
            let status = timeout(PATIENCE / 2, ask(gateway, target)).await;
            let status = status.ok().and_then(Result::ok).unwrap_or(0);
            log.lock().push(Seen { sent, took: sent.elapsed(), status });
        });
    }
}

async fn ask(gateway: SocketAddr, target: &str) -> std::io::Result<u16> {
    let mut conn = Conn::to(gateway).await?;
    conn.send(request("GET", target, &[("connection", "close")])).await?;
    Ok(conn.answer().await?.status)
}
