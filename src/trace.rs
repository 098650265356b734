//! Traces of requests for an OpenTelemetry collector: one span for a request, with a child for each step of its way. A full
//! queue or a collector that is away drops spans, and never holds a request.

mod exporter;
mod parent;
mod request;

pub use exporter::{TraceExporter, start};
#[doc(no_inline)]
pub use opentelemetry::trace::TraceId;
pub use parent::TraceParent;
pub use request::{RequestEnd, RequestTrace};

use crate::{config::SampleRatio, metrics};
use ::metrics::Counter;
use http::{HeaderMap, Method};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use std::sync::Arc;
use tokio::sync::mpsc::Sender;

/// Begins the traces of requests, and takes those that have ended. All workers share one.
#[derive(Debug)]
pub struct Tracer {
    queue: Sender<RequestTrace>,
    /// Spans that found the queue full.
    dropped: Counter,
}

// === impl Tracer ===

impl Tracer {
    /// The tracer that hands traces to the other end of `queue`.
    fn new(queue: Sender<RequestTrace>) -> Self {
        // A series that begins with the first loss cannot show an increase at it.
        for result in ["exported", "failed"] {
            drop(metrics::SPANS.count(&[result]));
        }
        Self { queue, dropped: metrics::SPANS.count(&["dropped"]) }
    }

    /// Begins the trace of a request with these headers; `None` if it is not traced. A request that is a part of a trace is
    /// traced if its `traceparent` says so, any other one by `sample`.
    #[cold]
    pub fn begin(
        self: &Arc<Self>,
        sample: SampleRatio,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Box<RequestTrace>> {
        let parent = TraceParent::of(headers);
        let trace = match &parent {
            Some(parent) if !parent.is_sampled => return None,
            Some(parent) => parent.trace,
            None => {
                let trace = RandomIdGenerator::default().new_trace_id();
                let [.., a, b, c, d, e, f, g, h] = trace.to_bytes();
                // The last 8 bytes are random also in ids of other origin (W3C Trace Context, "Considerations for
                // trace-id field generation").
                if !sample.takes(u64::from_be_bytes([a, b, c, d, e, f, g, h])) {
                    return None;
                }
                trace
            }
        };
        let parent = parent.map(|parent| parent.span);
        Some(Box::new(RequestTrace::new(self.clone(), trace, parent, method.clone())))
    }

    /// Takes the trace of a request that has ended.
    fn take(&self, trace: RequestTrace) {
        if let Err(error) = self.queue.try_send(trace) {
            self.dropped.increment(error.into_inner().spans());
        }
    }
}
