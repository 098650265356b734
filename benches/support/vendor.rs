//! A vendor that counts the calls of any second, and the load at random that benches offer it through gateways.

use super::stage::{Stage, head};
use std::{
    collections::BTreeMap, collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How the vendor counts: at most `quota` calls in any second.
#[derive(Clone, Copy)]
pub(crate) struct Quota {
    pub(crate) quota: usize,
    /// Refused calls count, too.
    pub(crate) counts_refused: bool,
    /// Every answer has `RateLimit` fields (draft-10) with what remains.
    pub(crate) tells: bool,
}

/// The calls of one quota.
#[derive(Default)]
pub(crate) struct Calls {
    /// The calls of the last second that count, of ours and of another program.
    window: VecDeque<Instant>,
    pub(crate) accepted: Vec<Instant>,
    pub(crate) refused: Vec<Instant>,
}

/// The answers to the callers, when all of them have come.
pub(crate) struct Answered {
    pub(crate) served: usize,
    /// 429 of the gateway.
    pub(crate) own: usize,
    /// Other answers of the vendor, by status.
    pub(crate) of_vendor: BTreeMap<u16, usize>,
    /// Other answers of the gateway.
    pub(crate) others: usize,
    /// When the last call was offered.
    pub(crate) end: Instant,
}

/// Starts a vendor that answers each call as `answer` says, which has its head, 5 ms later.
pub(crate) async fn open(
    answer: impl Fn(&str) -> String + Send + Sync + 'static,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, answer) = (listener.local_addr()?, Arc::new(answer));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            // An error of a connection matters to its client alone.
            tokio::spawn(async move { drop(serve(stream, &*answer).await) });
        }
    });
    Ok(address)
}

async fn serve(mut stream: TcpStream, answer: &impl Fn(&str) -> String) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(head) = head(&mut stream).await? {
        let answer = answer(&head);
        sleep(Duration::from_millis(5)).await;
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// Lets another program make `rate` calls a second from `start` on, unless that is 0.
pub(crate) fn share(rate: f64, start: Instant, call: impl Fn() + Send + 'static) {
    if rate <= 0.0 {
        return;
    }
    tokio::spawn(async move {
        for i in 0_u32.. {
            sleep_until(start + SECOND.div_f64(rate) * i).await;
            call();
        }
    });
}

/// Offers `rate` calls a second for `seconds` from `start` on, at random instants (Poisson). Each run offers the same load.
pub(crate) async fn offer(
    stage: &Stage,
    rate: f64,
    start: Instant,
    seconds: f64,
) -> io::Result<Answered> {
    let (mut random, mut requests) = (fastrand::Rng::with_seed(1), JoinSet::new());
    let (mut at, mut offered) = (0.0, 0);
    while at < seconds {
        sleep_until(start + Duration::from_secs_f64(at)).await;
        requests.spawn(stage.request(offered, "/x"));
        offered += 1;
        at -= (1.0 - random.f64()).ln() / rate;
    }
    let (end, of_vendor) = (Instant::now(), BTreeMap::new());
    let mut all = Answered { served: 0, own: 0, of_vendor, others: 0, end };
    while let Some(answer) = requests.join_next().await {
        let answer = answer.map_err(io::Error::other)??;
        match (answer.status, answer.is_own) {
            (200, _) => all.served += 1,
            (429, true) => all.own += 1,
            (_, true) => all.others += 1,
            (status, false) => *all.of_vendor.entry(status).or_insert(0) += 1,
        }
    }
    Ok(all)
}

// === impl Calls ===

impl Calls {
    /// Counts a call of another program, which stays within its part.
    pub(crate) fn share(&mut self, now: Instant) {
        self.window.push_back(now);
    }

    /// Counts a call that arrives `now`, and returns the answer. One within the time that is `closed` is refused.
    pub(crate) fn answer(&mut self, quota: Quota, closed: Option<Instant>, now: Instant) -> String {
        while self.window.front().is_some_and(|at| now - *at >= SECOND) {
            self.window.pop_front();
        }
        let accepted = closed.is_none() && self.window.len() < quota.quota;
        if accepted || (quota.counts_refused && closed.is_none()) {
            self.window.push_back(now);
        }
        if accepted {
            self.accepted.push(now);
        } else {
            self.refused.push(now);
        }
        // The time until the next call would be accepted.
        let over = (self.window.len() + 1).saturating_sub(quota.quota);
        let free = over.checked_sub(1).and_then(|i| self.window.get(i));
        let free = closed.or(free.map(|at| *at + SECOND));
        let after = free.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let remaining = quota.quota.saturating_sub(self.window.len());
        let told = if quota.tells {
            format!("RateLimit: \"second\";r={remaining};t=1\r\n")
        } else {
            String::new()
        };
        if accepted {
            format!("HTTP/1.1 200 OK\r\n{told}Content-Length: 0\r\n\r\n")
        } else {
            format!(
                "HTTP/1.1 429 Too Many Requests\r\n{told}Retry-After-Ms: {}\r\nContent-Length: 0\r\n\r\n",
                after.as_millis() + 1
            )
        }
    }
}
