//! Reads the true cost of a request from its answer, beside the stream and without delaying a byte, and settles the permits
//! that were reserved. An answer that does not say its cost or fails leaves them as they are. One that loses its client is
//! read on, within bounds, so that no caller leaves a call unpaid.

mod events;
#[cfg(fuzzing)]
pub mod fuzzing;

use super::Body;
use crate::{
    key::{SaidCost, is_json},
    limit::{Reservation, Settled, Settlement},
    metrics::SettledPermits,
    plan::{LearnedCall, Plan, RoutePolicy, SettledCheck},
    upstream::{KeptBuffer, KeptBytes},
};
use events::EventReader;
use http::{
    HeaderMap, Response,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body::Body as _;
use smallvec::SmallVec;
use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};
use tokio::{runtime::Handle, time::timeout};

/// The most bytes of a JSON answer that are kept until its end, 1 MiB. A longer one is not read.
const MOST: usize = 1 << 20;
/// The longest time for which an answer is read on after its client has left, and the most bytes of it that are read then.
const READ_ON_FOR: Duration = Duration::from_secs(30);
const MOST_AFTER: usize = 4 << 20;
/// The bytes that such an answer counts while it is read on, 64 KiB. So a bound of 64 MiB allows 1,024 of them.
const COUNTS_AS: usize = 64 << 10;

/// The permits of one request that its answer settles.
#[derive(Debug)]
pub(super) struct Settling {
    open: SmallVec<[OpenCost; 1]>,
    source: CostSource,
    /// The events that have passed: each of them cost at least one permit.
    passed: i64,
    /// Bounds the answers that are kept or read on.
    bound: Arc<KeptBytes>,
}

/// The permits of one limiter that are not settled yet.
#[derive(Debug)]
struct OpenCost {
    settlement: Settlement,
    metrics: SettledPermits,
    said: SaidCost,
    /// The call, if its cost is learned.
    learns: Option<LearnedCall>,
}

#[derive(Debug)]
enum CostSource {
    /// A JSON document, kept until its end.
    Document(KeptBuffer),
    /// A stream of events.
    Events(EventReader),
}

// === impl Settling ===

impl Settling {
    /// Settles what the head of an answer says, and returns what its body may say.
    #[cold]
    pub(super) fn begin<B>(
        plan: &Plan,
        policy: &RoutePolicy,
        reservation: &mut Reservation,
        response: &Response<B>,
        body_length: Option<u64>,
    ) -> Option<Box<Self>> {
        if plan.config.upstreams[policy.upstream].throttle.rules.free.contains(&response.status()) {
            refund_all(plan, policy, reservation);
            return None;
        }
        let mut open = SmallVec::new();
        for SettledCheck { check, limiter, cost, teaches } in policy.settled() {
            // A reservation has a part for each check that was asked.
            let Some(settlement) = reservation.settlement(check) else { continue };
            let limiter = &plan.limiters[limiter];
            let metrics = limiter.metrics.settled.clone();
            let said = SaidCost::of_head(cost, response.headers());
            let state = &reservation.checks()[check].key;
            let learns = if teaches { limiter.learned_call(state, body_length) } else { None };
            let cost = OpenCost { settlement, metrics, said, learns };
            if cost.said.reads_body() {
                open.push(cost);
            } else if let Some(true_cost) = cost.said.total() {
                cost.settle_whole(true_cost);
            }
        }
        if open.is_empty() {
            return None;
        }
        let bound = plan.settled.clone();
        let source = CostSource::of(response.headers(), &bound)?;
        Some(Box::new(Self { open, source, passed: 0, bound }))
    }

    /// Reads a piece of the body, which the client has at the same time. False when nothing further can be learned.
    pub(super) fn read(&mut self, piece: &[u8]) -> bool {
        let Self { open, source, passed, .. } = self;
        match source {
            CostSource::Document(kept) => kept.extend(piece, MOST),
            CostSource::Events(reader) => reader.read(piece, &mut |event| {
                *passed += 1;
                open.iter_mut().for_each(|cost| cost.said.hear(event));
            }),
        }
    }

    /// Reads the rest of `body`, whose client has left, in a task of its own. The upstream charges for an answer that no
    /// client reads, too, and a caller could leave before each event that says the cost.
    pub(super) fn read_on(self: Box<Self>, mut body: Body) {
        let mut share = self.bound.share();
        match Handle::try_current() {
            _ if body.is_end_stream() => self.end(),
            Ok(runtime) if share.grow(COUNTS_AS) => {
                body.forget_client();
                runtime.spawn(async move {
                    self.read_rest(body).await;
                    drop(share);
                });
            }
            _ => self.end_early(),
        }
    }

    async fn read_rest(mut self: Box<Self>, mut body: Body) {
        let mut left = MOST_AFTER;
        let rest = async {
            while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                let Ok(frame) = frame else { return false };
                let Some(data) = frame.data_ref() else { continue };
                if !self.read(data) {
                    break;
                }
                match left.checked_sub(data.len()) {
                    Some(less) => left = less,
                    None => return false,
                }
            }
            true
        };
        match timeout(READ_ON_FOR, rest).await {
            Ok(true) => self.end(),
            Ok(false) | Err(_) => self.end_early(),
        }
    }

    /// Settles what has passed of an answer that is read no further, or that broke off: the greatest of the reserve, the events,
    /// and the cost that was said last.
    pub(super) fn end_early(mut self) {
        self.hear_end();
        for cost in self.open {
            let passed = cost.said.total().unwrap_or(0).max(self.passed);
            if passed > cost.settlement.reserved() {
                cost.settle(passed);
            }
        }
    }

    /// Settles, now that the body has ended.
    pub(super) fn end(mut self) {
        self.hear_end();
        for cost in self.open {
            if let Some(true_cost) = cost.said.total() {
                cost.settle_whole(true_cost);
            }
        }
    }

    /// Reads what the end of the body makes complete.
    fn hear_end(&mut self) {
        let open = &mut self.open;
        let mut hear = |document: &[u8]| open.iter_mut().for_each(|cost| cost.said.hear(document));
        match &mut self.source {
            CostSource::Document(kept) => hear(&kept.bytes),
            CostSource::Events(reader) => reader.end(&mut hear),
        }
    }
}

/// Returns all permits of a call that the upstream does not count.
#[cold]
fn refund_all(plan: &Plan, policy: &RoutePolicy, reservation: &mut Reservation) {
    for (check, limiter) in policy.limiters().enumerate() {
        let Some(settlement) = reservation.settlement(check) else { continue };
        if let Settled::Refunded(permits) = settlement.settle(0) {
            plan.limiters[limiter].metrics.settled.refunded.increment(permits.unsigned_abs());
        }
    }
}

// === impl OpenCost ===

impl OpenCost {
    /// Settles the cost of a call that came to its end.
    fn settle_whole(self, true_cost: i64) {
        if let Some(call) = &self.learns {
            call.end(true_cost);
        }
        self.settle(true_cost);
    }

    fn settle(self, true_cost: i64) {
        match self.settlement.settle(true_cost) {
            Settled::Exact => {}
            Settled::Refunded(permits) => self.metrics.refunded.increment(permits.unsigned_abs()),
            Settled::Owed(permits) => self.metrics.owed.increment(permits.unsigned_abs()),
        }
    }
}

// === impl CostSource ===

impl CostSource {
    /// The source of an answer with these headers; `None` if its body cannot be read.
    fn of(headers: &HeaderMap, bound: &Arc<KeptBytes>) -> Option<Self> {
        let encoding = headers.get(CONTENT_ENCODING);
        if encoding.is_some_and(|of| !of.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return None;
        }
        let of = headers.get(CONTENT_TYPE)?.as_bytes();
        if is_json(of) {
            return Some(Self::Document(KeptBuffer::new(bound.share())));
        }
        let is_stream =
            of.get(..17).is_some_and(|of| of.eq_ignore_ascii_case(b"text/event-stream"));
        is_stream.then(|| Self::Events(EventReader::default()))
    }
}
