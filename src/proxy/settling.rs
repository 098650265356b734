//! Reads the true cost of a request from its answer, beside the stream and without delaying a byte, and settles the permits
//! that were reserved. An answer that does not say its cost, fails or loses its client leaves them as they are.

mod events;

use super::{Proxy, Routed};
use crate::{
    key::{TrueCost, is_json},
    limit::{Reservation, Settled, Settlement},
    metrics::SettledPermits,
    upstream::{KeptBytes, KeptShare},
};
use bytes::BytesMut;
use events::EventReader;
use http::{
    HeaderMap, Response,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use smallvec::SmallVec;
use std::sync::Arc;

/// The most bytes of a JSON answer that are kept until its end, 1 MiB. A longer one is not read.
const MOST: usize = 1 << 20;

/// The permits of one request that its answer settles.
#[derive(Debug)]
pub(super) struct Settling {
    open: SmallVec<[OpenCost; 1]>,
    source: CostSource,
}

/// The permits of one limiter that are not settled yet.
#[derive(Debug)]
struct OpenCost {
    settlement: Settlement,
    part: TrueCost,
    metrics: SettledPermits,
    /// The cost that the last event said which had one.
    said: Option<i64>,
}

#[derive(Debug)]
enum CostSource {
    /// A JSON document, kept until its end.
    Document { bytes: BytesMut, share: KeptShare },
    /// A stream of events.
    Events(EventReader),
}

// === impl Proxy ===

impl Proxy {
    /// Settles what the head of an answer says, and returns what its body may say.
    #[cold]
    pub(super) fn settling<B>(
        &self,
        routed: &Routed<'_>,
        reservation: &mut Reservation,
        response: &Response<B>,
    ) -> Option<Box<Settling>> {
        let mut open = SmallVec::new();
        for (check, limiter, part) in routed.policy.settled() {
            // A reservation has a part for each check that was asked.
            let Some(settlement) = reservation.settlement(check) else { continue };
            let metrics = self.0.plan.limiters[limiter].metrics.settled.clone();
            let cost = OpenCost { settlement, part: part.clone(), metrics, said: None };
            match part {
                TrueCost::Header(_) => {
                    if let Some(true_cost) = part.of_head(response.headers()) {
                        cost.settle(true_cost);
                    }
                }
                TrueCost::Body(_) => open.push(cost),
            }
        }
        if open.is_empty() {
            return None;
        }
        let source = CostSource::of(response.headers(), &self.0.plan.settled)?;
        Some(Box::new(Settling { open, source }))
    }
}

// === impl Settling ===

impl Settling {
    /// Reads a piece of the body, which the client has at the same time. False when nothing further can be learned.
    pub(super) fn read(&mut self, piece: &[u8]) -> bool {
        let open = &mut self.open;
        match &mut self.source {
            CostSource::Document { bytes, share } => {
                let fits = piece.len() <= MOST - bytes.len() && share.grow(piece.len());
                if fits {
                    bytes.extend_from_slice(piece);
                }
                fits
            }
            CostSource::Events(reader) => reader.read(piece, &mut |event| {
                for cost in open.iter_mut() {
                    cost.said = cost.part.of_document(event).or(cost.said);
                }
            }),
        }
    }

    /// Settles, now that the body has ended.
    pub(super) fn end(mut self) {
        if let CostSource::Events(reader) = &mut self.source {
            let open = &mut self.open;
            reader.end(&mut |event| {
                for cost in open.iter_mut() {
                    cost.said = cost.part.of_document(event).or(cost.said);
                }
            });
        }
        for cost in self.open {
            let said = match &self.source {
                CostSource::Document { bytes, .. } => cost.part.of_document(bytes),
                CostSource::Events(_) => cost.said,
            };
            if let Some(true_cost) = said {
                cost.settle(true_cost);
            }
        }
    }
}

// === impl OpenCost ===

impl OpenCost {
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
            return Some(Self::Document { bytes: BytesMut::new(), share: bound.share() });
        }
        let is_stream =
            of.get(..17).is_some_and(|of| of.eq_ignore_ascii_case(b"text/event-stream"));
        is_stream.then(|| Self::Events(EventReader::default()))
    }
}
