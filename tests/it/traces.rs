//! Traces, as a collector receives them over gRPC and over HTTP: one span for a request with a child for each step, sampling,
//! and collectors that are away, slow or started again.

use crate::support::{Conn, Gateway, Upstream, eventually, free_port, reply, request};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind},
};
use parking_lot::Mutex;
use prost::Message;
use rstest::rstest;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Server};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// The spans that a collector has received, with the name of their service.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<(String, Span)>>>);

/// A collector that speaks gRPC.
struct GrpcCollector {
    received: Received,
    stopping: CancellationToken,
    task: JoinHandle<()>,
}

// === impl Received ===

impl Received {
    fn take(&self, request: ExportTraceServiceRequest) {
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = text(&attributes, "service.name").unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().extend(spans.map(|span| (service.clone(), span)));
        }
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().iter().map(|(_, span)| span.clone()).collect()
    }

    /// The span of a request with this `X-Request-Id`, and its children in the order of their beginnings.
    async fn request(&self, id: &str) -> (Span, Vec<Span>) {
        eventually("the spans of a request", async || {
            let spans = self.spans();
            let is_it =
                |span: &&Span| text(&span.attributes, "paceway.request_id").as_deref() == Some(id);
            let root = spans.iter().find(is_it)?.clone();
            let mut children: Vec<_> =
                spans.into_iter().filter(|span| span.parent_span_id == root.span_id).collect();
            children.sort_by_key(|span| span.start_time_unix_nano);
            Some((root, children))
        })
        .await
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

// === impl GrpcCollector ===

impl GrpcCollector {
    async fn at(port: u16) -> Self {
        let received = Received::default();
        let service = TraceServiceServer::new(received.clone());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stopping = CancellationToken::new();
        let end = stopping.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            let server = Server::builder().add_service(service);
            server.serve_with_shutdown(address, end).await.expect("a collector");
        });
        eventually("the collector", async || Conn::to(address).await.ok()).await;
        Self { received, stopping, task }
    }

    /// Stops, and tells the clients so: a server that is only dropped keeps its connections.
    async fn stop(mut self) {
        self.stopping.cancel();
        (&mut self.task).await.expect("its end");
    }
}

impl Drop for GrpcCollector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A collector that speaks HTTP, and the URL of its spans.
async fn http_collector() -> (Upstream, Received) {
    let received = Received::default();
    let own = received.clone();
    let upstream = Upstream::start(move |call| {
        assert_eq!((call.method.as_str(), call.target.as_str()), ("POST", "/v1/traces"));
        assert_eq!(call.head.all("content-type"), ["application/x-protobuf"]);
        own.take(ExportTraceServiceRequest::decode(&call.body[..]).expect("a message"));
        reply("200 OK", &[("Content-Type", "application/x-protobuf")], "")
    })
    .await;
    (upstream, received)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let own = attributes.iter().find(|own| own.key == key)?;
    match own.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn gateway(upstream: &Upstream, tracing: &str) -> Gateway {
    Gateway::start(&format!(
        "workers: 1
upstream: {}
tracing: {{ {tracing} }}
limiters: {{ shop: {{ rate: 1/2s, burst: 1, key: \"{{header.x-shop}}\" }} }}
routes:
- {{ name: free, suffix: /free }}
- {{ name: limited, suffix: /limited, limiters: [shop], max_wait: 30s }}
- {{ name: strict, suffix: /strict, limiters: [shop] }}
",
        upstream.url()
    ))
    .await
}

/// Asks for a path, and returns the status and the `X-Request-Id` of the answer.
async fn ask(gateway: &Gateway, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
    let answer = gateway.ask(path, fields).await.answer().await.expect("an answer");
    (answer.status, answer.field("x-request-id").expect("an id").to_owned())
}

#[rstest]
#[case::grpc(false)]
#[case::http(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_with_its_steps(#[case] is_http: bool) {
    let upstream = Upstream::ok().await;
    let (http, grpc, received, url);
    if is_http {
        (http, received) = http_collector().await;
        url = format!("{}, protocol: http", http.url());
    } else {
        let port = free_port();
        grpc = GrpcCollector::at(port).await;
        (received, url) = (grpc.received.clone(), format!("http://127.0.0.1:{port}"));
    }
    let gateway = gateway(&upstream, &format!("otlp: {url}, sample: 1")).await;
    let shop = [("X-Shop", "hunter2")];
    let (_, first) = ask(&gateway, "/limited", &shop).await;
    let (status, second) = ask(&gateway, "/limited", &shop).await;
    let (refused, third) = ask(&gateway, "/strict", &shop).await;
    assert_eq!((status, refused), (200, 429));

    let (root, steps) = received.request(&first).await;
    let names = |steps: &[Span]| steps.iter().map(|span| span.name.clone()).collect::<Vec<_>>();
    let mut seen = names(&steps);
    // The connection is begun while the store decides.
    seen.sort();
    assert_eq!(seen, ["connect", "decide", "upstream"]);
    assert_eq!((root.name.as_str(), root.kind()), ("GET limited", SpanKind::Server));
    assert!(root.parent_span_id.is_empty());

    let (root, steps) = received.request(&second).await;
    let seen: Vec<_> = names(&steps).into_iter().filter(|name| name != "connect").collect();
    assert_eq!(seen, ["decide", "wait", "upstream"]);
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.route", "limited"),
        ("http.response.status_code", "200"),
        ("paceway.outcome", "waited"),
        ("paceway.limiter", "shop"),
    ] {
        assert_eq!(text(&root.attributes, name).as_deref(), Some(value), "{name}");
    }
    let step = |name: &str| steps.iter().find(|span| span.name == name).expect(name);
    let [decide, wait, sent] = ["decide", "wait", "upstream"].map(step);
    assert_eq!(text(&decide.attributes, "paceway.decision").as_deref(), Some("wait"));
    assert_eq!(text(&wait.attributes, "paceway.limiter").as_deref(), Some("shop"));
    let key = text(&wait.attributes, "paceway.key").expect("a key");
    assert!(key.starts_with("%23") && key.len() == 35, "{key}");
    assert_eq!(text(&sent.attributes, "http.response.status_code").as_deref(), Some("200"));
    let address = upstream.address();
    assert_eq!(text(&sent.attributes, "server.address"), Some(address.ip().to_string()));
    assert_eq!(text(&sent.attributes, "server.port"), Some(address.port().to_string()));
    for span in &steps {
        assert_eq!(span.trace_id, root.trace_id);
        assert!(root.start_time_unix_nano <= span.start_time_unix_nano, "{span:?}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        assert!(span.end_time_unix_nano <= root.end_time_unix_nano, "{span:?}");
    }
    assert!(wait.end_time_unix_nano <= sent.start_time_unix_nano);
    // The upstream learns which span called it.
    let parents: Vec<_> =
        upstream.calls().iter().map(|call| call.head.all("traceparent").join("|")).collect();
    let own = format!("00-{}-{}-01", hex(&root.trace_id), hex(&sent.span_id));
    assert_eq!(parents[1], own);
    assert_ne!(parents[0], own);

    let (root, steps) = received.request(&third).await;
    assert_eq!(names(&steps), ["decide"]);
    assert_eq!(text(&root.attributes, "paceway.outcome").as_deref(), Some("refused"));
    assert!(received.0.lock().iter().all(|(service, _)| service == "paceway"));
    assert_eq!(gateway.line("/strict").await["trace_id"], hex(&root.trace_id));
    eventually("the count of spans", async || {
        let received = received.spans().len() as f64;
        (spans(&gateway, "exported").await == received).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_decides_whether_its_trace_continues() {
    let upstream = Upstream::ok().await;
    let port = free_port();
    let collector = GrpcCollector::at(port).await;
    let tracing = format!("otlp: \"http://127.0.0.1:{port}\", sample: 0");
    let mut gateway = gateway(&upstream, &tracing).await;
    let parents = ["01", "00"].map(|flags| format!("00-{TRACE}-{CALLER}-{flags}"));
    for parent in &parents {
        ask(&gateway, "/free", &[("traceparent", parent), ("tracestate", "a=1")]).await;
    }
    ask(&gateway, "/free", &[]).await;
    // The end of the process sends what is left, at once.
    gateway.signal("TERM");
    assert!(gateway.end().await.success());
    let spans = collector.received.spans();
    let root = spans.iter().find(|span| span.kind() == SpanKind::Server).expect("a root");
    assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.into(), CALLER.into()));
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id));
    let sent = spans.iter().find(|span| span.name == "upstream").expect("a call");
    let calls = upstream.calls();
    let told = |i: usize, name: &str| calls[i].head.all(name).join("|");
    assert_eq!(told(0, "traceparent"), format!("00-{TRACE}-{}-01", hex(&sent.span_id)));
    assert_eq!(told(0, "tracestate"), "a=1");
    assert_eq!(told(1, "traceparent"), parents[1]);
    assert_eq!((told(2, "traceparent"), told(2, "tracestate")), (String::new(), String::new()));
}

/// Sends requests over one connection, and returns how many were answered.
async fn send(gateway: &Gateway, requests: usize) -> usize {
    let mut conn = gateway.connect().await;
    let mut answered = 0;
    for _ in 0..requests {
        conn.send(request("GET", "/free", &[])).await.expect("send");
        answered += usize::from(conn.answer().await.expect("an answer").status == 200);
    }
    answered
}

async fn spans(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("paceway_trace_spans_total", &[("result", result)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_requests_is_traced() {
    let upstream = Upstream::ok().await;
    let port = free_port();
    let collector = GrpcCollector::at(port).await;
    let tracing = format!("otlp: \"http://127.0.0.1:{port}\", sample: 0.5");
    let mut gateway = gateway(&upstream, &tracing).await;
    assert_eq!(send(&gateway, 400).await, 400);
    gateway.signal("TERM");
    assert!(gateway.end().await.success());
    let is_root = |span: &Span| span.kind() == SpanKind::Server;
    let traced = collector.received.spans().into_iter().filter(is_root).count();
    // Ten standard deviations around the half.
    assert!((100..300).contains(&traced), "{traced} of 400");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_loses_spans_and_no_request() {
    let upstream = Upstream::ok().await;
    let port = free_port();
    let gateway =
        gateway(&upstream, &format!("otlp: \"http://127.0.0.1:{port}\", sample: 1")).await;
    assert_eq!(send(&gateway, 10).await, 10);
    eventually("failed spans", async || (spans(&gateway, "failed").await >= 10.0).then_some(()))
        .await;
    // The collector starts, and starts again.
    for _ in 0..2 {
        let collector = GrpcCollector::at(port).await;
        eventually("spans", async || {
            send(&gateway, 1).await;
            (!collector.received.spans().is_empty()).then_some(())
        })
        .await;
        collector.stop().await;
    }
    let lines = gateway.events();
    assert!(lines.iter().any(|line| line["message"] == "spans were not exported"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_costs_spans_alone() {
    let upstream = Upstream::ok().await;
    // Connections wait in its queue, and are never accepted.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let gateway = gateway(&upstream, &format!("otlp: \"{url}\", sample: 1")).await;
    let started = Instant::now();
    // The queue has 2048 places, and a batch takes 256 more.
    assert_eq!(send(&gateway, 2600).await, 2600);
    assert!(started.elapsed() < Duration::from_secs(60));
    assert!(spans(&gateway, "dropped").await > 0.0);
    let overhead = gateway.metric("paceway_overhead_seconds_count", &[]).await;
    assert_eq!(overhead, 2600.0);
    drop(silent);
}
