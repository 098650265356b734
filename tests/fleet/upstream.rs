//! The requests as the upstream and the callers see them: when each arrived, was sent, and ended. It judges nothing.

use crate::{
    gateway::Request,
    history::{History, MS, Micros},
};
use paceway::{
    limit::Reservation,
    store::{Source, StoreError},
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The least time between two values of what remains that a gateway tells the store.
const APART: Micros = 50 * MS;

/// All requests of a history.
#[derive(Debug, Default)]
pub(crate) struct Upstream {
    pub(crate) seen: Mutex<Vec<Seen>>,
    pub(crate) refusals: Mutex<Vec<SeenRefusal>>,
    pub(crate) reports: Mutex<Vec<SeenReport>>,
    /// The permits that were used of its own quota, by the numbers of its windows.
    used: Mutex<BTreeMap<i64, i64>>,
    /// By gateway and key, the newest answer that says what is left.
    newest: Mutex<BTreeMap<(usize, i64), Heard>>,
}

/// The rest of a quota as a gateway knows it.
#[derive(Debug, Clone, Copy)]
struct Heard {
    sent: Micros,
    left: Left,
    /// When it tells the store, or has done so.
    tells: Micros,
}

/// The headers of an answer that concern quotas.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Said {
    /// The answer refuses the call; the end of the pause that it asks for.
    pub(crate) refused_until: Option<Micros>,
    pub(crate) left: Option<Left>,
}

/// The rest of the upstream's quota, until an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) permits: i64,
    pub(crate) until: Micros,
}

/// The rest of the upstream's quota, as a gateway tells it to the store, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenReport {
    pub(crate) gateway: usize,
    pub(crate) at: Micros,
    pub(crate) left: Left,
}

/// An answer of the upstream that refuses a call, when its gateway receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenRefusal {
    pub(crate) gateway: usize,
    pub(crate) route: usize,
    pub(crate) key: i64,
    pub(crate) at: Micros,
    /// The end of the refusals, as the answer names it.
    pub(crate) until: Micros,
}

/// One request, from its arrival to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) number: usize,
    pub(crate) gateway: usize,
    pub(crate) route: usize,
    pub(crate) key: i64,
    pub(crate) came: Micros,
    /// The instant of its arrival at the upstream, and the side that decided.
    pub(crate) sent: Option<(Micros, Source)>,
    /// The granted instant on the store's clock, the earliest and the latest that it can be: answers that arrive
    /// together cannot be distinguished.
    pub(crate) granted: (Micros, Micros),
    /// The instant and the kind of its end; `None` if its gateway ended first.
    pub(crate) ended: Option<(Micros, End)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The upstream has answered.
    Done,
    /// 429, with the time after which to come back.
    Refused(Micros),
    /// 503, because the store gave no decision.
    Failed(StoreError),
    /// The caller left.
    Left,
    /// The request was promised a slot after the end of its budget.
    InVain,
    /// The gateway ended.
    Cut,
}

/// Records the end of one request; if it is dropped before, the request counts as cut.
pub(crate) struct Teller {
    upstream: Arc<Upstream>,
    index: usize,
    is_over: bool,
    begun: (tokio::time::Instant, Micros),
}

// === impl Upstream ===

impl Upstream {
    pub(crate) fn arrives(self: &Arc<Self>, request: &Request, now: Micros) -> Teller {
        let Request { number, gateway, route, key, .. } = *request;
        let mut seen = self.seen.lock();
        seen.push(Seen {
            number,
            gateway,
            route,
            key,
            came: now,
            sent: None,
            granted: (0, 0),
            ended: None,
        });
        let begun = (tokio::time::Instant::now(), now);
        Teller { upstream: self.clone(), index: seen.len() - 1, is_over: false, begun }
    }
}

// === impl Upstream ===

impl Upstream {
    /// Answers the call of a request that arrives at `at`.
    pub(crate) fn answer(&self, history: &History, request: &Request, at: Micros) -> Said {
        let Some(quota) = &history.quota else {
            let refused_until = history.refused_until(request.route, at);
            return Said { refused_until, left: None };
        };
        let mut used = self.used.lock();
        let used = used.entry(quota.window(at)).or_default();
        let uses = history.routes[request.route].used(request.number);
        if *used + uses > quota.count {
            return Said { refused_until: Some(quota.refuses_until(at)), left: None };
        }
        *used += uses;
        let left = Left { permits: quota.count - *used, until: quota.end(at) };
        Said { refused_until: None, left: Some(left).filter(|_| quota.reports) }
    }

    /// Notes what an answer says is left. Returns after how many µs the gateway tells the store: it tells one value in 50 ms, the
    /// newest. `None` for an answer that another one has overtaken, or before which another one waits.
    pub(crate) fn hear(
        &self,
        request: &Request,
        sent: Micros,
        now: Micros,
        left: Left,
    ) -> Option<Micros> {
        let mut newest = self.newest.lock();
        let first = Heard { sent, left, tells: Micros::MIN };
        let heard = newest.entry((request.gateway, request.key)).or_insert(first);
        let is_overtaken = sent == heard.sent && left.permits > heard.left.permits;
        if sent < heard.sent || is_overtaken {
            return None;
        }
        (heard.sent, heard.left) = (sent, left);
        if now < heard.tells {
            return None;
        }
        let at = now.max(heard.tells.saturating_add(APART));
        heard.tells = at;
        Some(at - now)
    }

    /// The rest of the quota as a gateway tells it: less the calls that it has sent since the one whose answer says so.
    pub(crate) fn report(
        &self,
        history: &History,
        teller: (usize, i64),
        now: Micros,
    ) -> Option<Left> {
        let heard = *self.newest.lock().get(&teller)?;
        let left = Some(heard.left).filter(|left| left.until > now)?;
        let seen = self.seen.lock();
        let is_later =
            |it: &&Seen| it.gateway == teller.0 && it.sent.is_some_and(|(at, _)| at > heard.sent);
        let later = seen.iter().filter(is_later).map(|it| history.routes[it.route].cost);
        let left = Left { permits: (left.permits - later.sum::<i64>()).max(0), ..left };
        drop(seen);
        self.reports.lock().push(SeenReport { gateway: teller.0, at: now, left });
        Some(left)
    }
}

// === impl Teller ===

impl Teller {
    pub(crate) fn sent(&self, now: Micros, granted: (Micros, Micros), slot: &Reservation) {
        let seen = &mut self.upstream.seen.lock()[self.index];
        (seen.sent, seen.granted) = (Some((now, slot.source)), granted);
        seen.key = slot.way.map_or(seen.key, i64::from);
    }

    pub(crate) fn end(&mut self, now: Micros, end: End) {
        self.is_over = true;
        self.upstream.seen.lock()[self.index].ended = Some((now, end));
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if !self.is_over {
            let (begun, at) = self.begun;
            let now = at + i64::try_from(begun.elapsed().as_micros()).expect("short");
            self.end(now, End::Cut);
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |at: Micros| at as f64 / MS as f64;
        let Self { number, gateway, route, key, came, .. } = self;
        write!(
            f,
            "{:>9.1} ms request {number} of route {route}, key {key}, at gateway {gateway}",
            ms(*came)
        )?;
        if let Some((at, source)) = self.sent {
            write!(f, "; sent at {:.1} for {:.1} by {source:?}", ms(at), ms(self.granted.0))?;
        }
        match &self.ended {
            Some((at, end)) => write!(f, "; {end:?} at {:.1}", ms(*at)),
            None => write!(f, "; never ended"),
        }
    }
}
