//! The trace of one request: it notes the steps of the request's way, and becomes spans when the request has ended.

use super::{Tracer, parent};
use crate::throttle::Timestamp;
use http::{HeaderMap, Method, StatusCode};
use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use std::{
    borrow::Cow,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};
use tokio::time::Instant;

/// The most steps of one request that are kept; a request that asks its limiters again and again has no bound of its own.
const MAX_STEPS: usize = 64;

/// The trace of a request, from its head to the end of its answer.
#[derive(Debug)]
pub struct RequestTrace {
    tracer: Arc<Tracer>,
    trace: TraceId,
    span: SpanId,
    method: Method,
    /// The span of the caller.
    parent: Option<SpanId>,
    began: (Timestamp, Instant),
    steps: Vec<StepSpan>,
    /// The hash of the key at the limiter that bound.
    key: Option<String>,
    /// Since when the limiters are asked.
    asked: Option<Instant>,
    /// The attempt at the upstream that has no answer yet: its span, its beginning and the address.
    sent: Option<(SpanId, Instant, Option<SocketAddr>)>,
    end: Option<(Instant, RequestEnd)>,
}

/// The result of a request, as its span shows it.
#[derive(Debug)]
pub struct RequestEnd {
    /// The name of the route.
    pub route: Option<String>,
    /// The limiter that bound.
    pub limiter: Option<String>,
    /// The outcome, as metrics and access lines name it.
    pub outcome: &'static str,
    /// The status of the answer; `None` if the client left before it.
    pub status: Option<StatusCode>,
    /// The `X-Request-Id`.
    pub id: String,
}

/// A step of the request's way, or the whole way.
#[derive(Debug)]
struct StepSpan {
    name: Cow<'static, str>,
    id: SpanId,
    kind: SpanKind,
    from: Instant,
    to: Instant,
    attributes: Vec<KeyValue>,
    status: Status,
}

fn new_id() -> SpanId {
    RandomIdGenerator::default().new_span_id()
}

/// An error with the number of a status from 500 on.
fn status_of(status: StatusCode) -> Status {
    if status.is_server_error() { Status::error(status.as_str().to_owned()) } else { Status::Unset }
}

// === impl RequestTrace ===

impl RequestTrace {
    pub(super) fn new(
        tracer: Arc<Tracer>,
        trace: TraceId,
        parent: Option<SpanId>,
        method: Method,
    ) -> Self {
        let began = (Timestamp::now(), Instant::now());
        let (steps, key, asked, sent, end) = (Vec::new(), None, None, None, None);
        Self { tracer, trace, span: new_id(), method, parent, began, steps, key, asked, sent, end }
    }

    /// The trace that the request is part of.
    pub fn id(&self) -> TraceId {
        self.trace
    }

    /// Notes the hash of the key at the limiter that bound.
    pub fn bind(&mut self, key: Option<String>) {
        self.key = key;
    }

    /// The number of spans that it becomes.
    pub(super) fn spans(&self) -> u64 {
        self.steps.len() as u64 + 1
    }

    fn step(&mut self, step: StepSpan) {
        if self.steps.len() < MAX_STEPS {
            self.steps.push(step);
        }
    }

    /// Notes that the limiters are asked from now on.
    pub fn asks(&mut self) {
        self.asked = Some(Instant::now());
    }

    /// Notes a decision of the limiters, the limiter that it is about and the place that decided.
    pub fn decided(
        &mut self,
        decision: &'static str,
        limiter: Option<&str>,
        source: Option<&'static str>,
    ) {
        let Some(from) = self.asked.take() else { return };
        let mut attributes = vec![KeyValue::new("paceway.decision", decision)];
        attributes.extend(limiter.map(|name| KeyValue::new("paceway.limiter", name.to_owned())));
        attributes.extend(source.map(|source| KeyValue::new("paceway.source", source)));
        self.step(StepSpan { attributes, ..StepSpan::new("decide", SpanKind::Internal, from) });
    }

    /// Notes a wait from `from` to `to`, and the limiter that caused it.
    pub fn waited(&mut self, from: Instant, to: Instant, limiter: Option<&str>) {
        let limiter = limiter.map(|name| KeyValue::new("paceway.limiter", name.to_owned()));
        let key = self.key.clone().map(|key| KeyValue::new("paceway.key", key));
        let attributes = limiter.into_iter().chain(key).collect();
        self.step(StepSpan { to, attributes, ..StepSpan::new("wait", SpanKind::Internal, from) });
    }

    /// Notes a connection to the upstream that was made from `from` to `to`, or that failed.
    pub fn connected(&mut self, from: Instant, to: Instant, is_made: bool) {
        let status = if is_made { Status::Unset } else { Status::error("no connection") };
        self.step(StepSpan { to, status, ..StepSpan::new("connect", SpanKind::Client, from) });
    }

    /// Notes that the request is sent to this address, and names the span of this attempt in its headers.
    pub fn sends(&mut self, headers: &mut HeaderMap, address: Option<SocketAddr>) {
        self.fail_attempt();
        let id = new_id();
        headers.insert(parent::TRACEPARENT, parent::field(self.trace, id));
        if self.parent.is_none() {
            // It belongs to the trace of a `traceparent` that was not valid (section 3.3).
            headers.remove("tracestate");
        }
        self.sent = Some((id, Instant::now(), address));
    }

    /// Notes the head of the upstream's answer.
    pub fn answered(&mut self, status: StatusCode) {
        let code = KeyValue::new("http.response.status_code", i64::from(status.as_u16()));
        self.upstream(Some(code), status_of(status));
    }

    /// Ends an attempt that got no answer.
    fn fail_attempt(&mut self) {
        self.upstream(None, Status::error("no answer"));
    }

    fn upstream(&mut self, code: Option<KeyValue>, status: Status) {
        let Some((id, from, address)) = self.sent.take() else { return };
        let mut attributes = Vec::from_iter(code);
        if let Some(address) = address {
            attributes.push(KeyValue::new("server.address", address.ip().to_string()));
            attributes.push(KeyValue::new("server.port", i64::from(address.port())));
        }
        let step = StepSpan::new("upstream", SpanKind::Client, from);
        self.step(StepSpan { id, attributes, status, ..step });
    }

    /// Notes the result of the request.
    pub fn result(&mut self, end: RequestEnd) {
        self.fail_attempt();
        self.end = Some((Instant::now(), end));
    }

    /// Hands the trace to the exporter: the answer has ended.
    pub fn end(mut self: Box<Self>) {
        if let Some((at, _)) = &mut self.end {
            *at = Instant::now();
        }
        let tracer = self.tracer.clone();
        tracer.take(*self);
    }

    /// Makes the spans.
    pub(super) fn into_spans(mut self, scope: &InstrumentationScope) -> Vec<SpanData> {
        let (began, started) = self.began;
        let at = |instant: Instant| {
            let micros = u64::try_from(began.as_microsecond()).unwrap_or_default();
            let began = UNIX_EPOCH + Duration::from_micros(micros);
            began + instant.saturating_duration_since(started)
        };
        let (trace, root, parent) = (self.trace, self.span, self.parent);
        let (to, end) = self.end.take().unzip();
        let whole = StepSpan::new("request", SpanKind::Server, started);
        let whole = StepSpan { id: root, to: to.unwrap_or(started), ..whole };
        self.steps.push(match end {
            Some(end) => end.describe(&self.method, whole),
            None => whole,
        });
        let spans = self.steps.into_iter().map(|step| SpanData {
            span_context: SpanContext::new(
                trace,
                step.id,
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id: if step.id == root { parent.unwrap_or(SpanId::INVALID) } else { root },
            parent_span_is_remote: step.id == root && parent.is_some(),
            span_kind: step.kind,
            name: step.name,
            start_time: at(step.from),
            end_time: at(step.to),
            attributes: step.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: step.status,
            instrumentation_scope: scope.clone(),
        });
        spans.collect()
    }
}

// === impl StepSpan ===

impl StepSpan {
    /// A step that ends now.
    fn new(name: &'static str, kind: SpanKind, from: Instant) -> Self {
        Self {
            name: name.into(),
            id: new_id(),
            kind,
            from,
            to: Instant::now(),
            attributes: Vec::new(),
            status: Status::Unset,
        }
    }
}

// === impl RequestEnd ===

impl RequestEnd {
    /// Gives the span of the request its name, attributes and status.
    fn describe(self, method: &Method, span: StepSpan) -> StepSpan {
        let Self { route, limiter, outcome, status, id } = self;
        // A client may write anything as a method; a route can name up to 32 characters of it.
        let method = method.as_str();
        let method = method[..method.len().min(32)].to_owned();
        let name = match &route {
            Some(route) => format!("{method} {route}"),
            None => method.clone(),
        };
        let mut attributes = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("paceway.outcome", outcome),
            KeyValue::new("paceway.request_id", id),
        ];
        attributes.extend(route.map(|route| KeyValue::new("http.route", route)));
        attributes.extend(limiter.map(|limiter| KeyValue::new("paceway.limiter", limiter)));
        let code = status.map(|status| i64::from(status.as_u16()));
        attributes.extend(code.map(|code| KeyValue::new("http.response.status_code", code)));
        let status = status.map_or(Status::Unset, status_of);
        StepSpan { name: name.into(), attributes, status, ..span }
    }
}
