//! An upstream that counts calls by tenant, and refuses those above its quota.

use super::stage::head;
use parking_lot::Mutex;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};

/// Calls that the upstream takes at once beyond its rate: what the ways from gateways to it differ by.
const SLACK: f64 = 5.0;

/// The upstream. Clones share its counts.
#[derive(Clone)]
pub(crate) struct Meter {
    pub(crate) address: SocketAddr,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Default)]
struct Calls {
    /// The instants of the calls that were accepted, with their tenants.
    accepted: Vec<(Instant, String)>,
    refused: usize,
    /// How full the bucket of the quota was at the last call.
    level: Option<(Instant, f64)>,
}

// === impl Meter ===

impl Meter {
    pub(crate) async fn start(rate: u32) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let meter = Self { address: listener.local_addr()?, calls: Arc::default() };
        let calls = meter.calls.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let calls = calls.clone();
                // An error of a connection matters to its client alone.
                tokio::spawn(async move { drop(serve(stream, &calls, rate).await) });
            }
        });
        Ok(meter)
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.lock().accepted.len()
    }

    pub(crate) fn refused(&self) -> usize {
        self.calls.lock().refused
    }

    /// Waits for the call with this number, from 1, and returns its instant.
    pub(crate) async fn until(&self, number: usize) -> Instant {
        loop {
            if let Some((at, _)) = self.calls.lock().accepted.get(number - 1) {
                return *at;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The calls of a tenant among the first `until` calls.
    pub(crate) fn count(&self, tenant: &str, until: usize) -> usize {
        let calls = self.calls.lock();
        calls.accepted.iter().take(until).filter(|(_, own)| own == tenant).count()
    }

    /// The share of a tenant among `count` calls after the first `from`.
    pub(crate) fn share(&self, from: usize, count: usize, tenant: &str) -> f64 {
        let own = self.count(tenant, from + count) - self.count(tenant, from);
        own as f64 / count as f64
    }

    /// The part of the slots at this rate that were used between the first and the last call, and the seconds between them.
    pub(crate) fn used(&self, rate: f64) -> (f64, f64) {
        let calls = self.calls.lock();
        let (first, last) = (calls.accepted.first(), calls.accepted.last());
        let span = first.zip(last).map_or(0.0, |(first, last)| (last.0 - first.0).as_secs_f64());
        ((calls.accepted.len() - 1) as f64 / (rate * span), span)
    }
}

async fn serve(mut stream: TcpStream, calls: &Mutex<Calls>, rate: u32) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(head) = head(&mut stream).await? {
        let tenant = head.split_once("team=").and_then(|(_, rest)| rest.split([' ', '&']).next());
        let is_accepted = calls.lock().take(tenant.unwrap_or_default(), rate, Instant::now());
        sleep(Duration::from_millis(5)).await;
        let status = if is_accepted { "200 OK" } else { "429 Too Many Requests" };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

// === impl Calls ===

impl Calls {
    fn take(&mut self, tenant: &str, rate: u32, now: Instant) -> bool {
        let most = SLACK + 1.0;
        let level = self.level.map_or(most, |(at, level)| {
            (level + (now - at).as_secs_f64() * f64::from(rate)).min(most)
        });
        let is_accepted = level >= 1.0;
        self.level = Some((now, if is_accepted { level - 1.0 } else { level }));
        match is_accepted {
            true => self.accepted.push((now, tenant.to_owned())),
            false => self.refused += 1,
        }
        is_accepted
    }
}
