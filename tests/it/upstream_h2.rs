//! Upstreams of HTTP/2: what requests become, how connections are shared and left, and when a request is sent once
//! more.

mod again;
mod bodies;

use crate::support::{Gateway, PATIENCE, Upstream, eventually, request};
use bytes::Bytes;
use h2::{
    Reason, RecvStream,
    server::{Builder, Connection, SendResponse},
};
use http::{HeaderMap, Method, Response, Version, request::Parts};
use parking_lot::Mutex;
use rstest::rstest;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout},
};

type Wire = Connection<TcpStream, Bytes>;

/// An origin of HTTP/2, in clear text; it ends with the test.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// A request as the upstream of these tests has received it.
pub(crate) struct Call {
    head: Parts,
    incoming: RecvStream,
    respond: SendResponse<Bytes>,
}

impl Origin {
    /// Every connection is in the hands of `serve`, with its number.
    async fn raw<F: Future<Output = ()> + Send + 'static>(
        streams: Option<u32>,
        serve: impl Fn(usize, Wire) -> F + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let serve = Arc::new(serve);
            let mut all = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let number = counted.fetch_add(1, Relaxed);
                let serve = serve.clone();
                all.spawn(async move {
                    let mut builder = Builder::new();
                    if let Some(streams) = streams {
                        builder.max_concurrent_streams(streams);
                    }
                    let Ok(wire) = builder.handshake(stream).await else { return };
                    serve(number, wire).await;
                });
            }
        });
        Self { address, connections, _tasks: tasks }
    }

    /// Every call is in the hands of `serve`, with the number of its connection.
    pub(crate) async fn start<F: Future<Output = ()> + Send + 'static>(
        streams: Option<u32>,
        serve: impl Fn(usize, Call) -> F + Send + Sync + 'static,
    ) -> Self {
        let serve = Arc::new(serve);
        Self::raw(streams, move |number, mut wire| {
            let serve = serve.clone();
            async move {
                let mut calls = JoinSet::new();
                while let Some(Ok((request, respond))) = wire.accept().await {
                    let (head, incoming) = request.into_parts();
                    calls.spawn(serve(number, Call { head, incoming, respond }));
                }
            }
        })
        .await
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    async fn gateway(&self, more: &str) -> Gateway {
        Gateway::start(&format!(
            "workers: 1
upstreams: {{ vendor: {{ url: \"http://{}/v2\", http2: true{more} }} }}
limiters: {{ day: 1000/day }}
routes: [{{ name: all, suffix: \"*\", limiters: [day] }}]
",
            self.address
        ))
        .await
    }
}

impl Call {
    pub(crate) fn answer(mut self, body: impl Into<Bytes>) {
        let response = Response::builder().header("x-from", "h2").body(()).expect("a response");
        if let Ok(mut stream) = self.respond.send_response(response, false) {
            let _ = stream.send_data(body.into(), true);
        }
    }

    async fn body(&mut self) -> (Vec<u8>, Option<HeaderMap>) {
        let body = &mut self.incoming;
        let mut all = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
            all.extend(data);
        }
        (all, body.trailers().await.unwrap_or_default())
    }
}

fn closed() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

async fn reached(place: &Semaphore, what: &str) {
    let permit = timeout(PATIENCE, place.acquire()).await;
    permit.unwrap_or_else(|_| panic!("it never came to this: {what}")).expect("open").forget();
}

async fn spent(gateway: &Gateway) -> i64 {
    1000 - gateway.limiter("day").await["level"].as_i64().expect("a level")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_translated_to_http_2() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let origin = Origin::start(None, move |_, mut call| {
        let log = log.clone();
        async move {
            let (body, _) = call.body().await;
            log.lock().push((call.head.clone(), body));
            call.answer("ok");
        }
    })
    .await;
    let gateway = origin.gateway("").await;
    let mut conn = gateway.connect().await;
    let fields = [
        ("Connection", "keep-alive, X-Mine"),
        ("X-Mine", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("X-Many", "1"),
        ("X-Many", "2"),
        ("Content-Length", "4"),
    ];
    conn.send(request("POST", "/a//b/../%63?d=e", &fields)).await.expect("send");
    conn.send("data").await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    assert_eq!(answer.head.start, "HTTP/1.1 200 OK");
    assert_eq!(answer.field("x-from"), Some("h2"));

    let seen = seen.lock();
    let (parts, body) = &seen[0];
    assert_eq!(
        (&parts.method, parts.version, &body[..]),
        (&Method::POST, Version::HTTP_2, &b"data"[..])
    );
    assert_eq!(parts.uri.to_string(), format!("http://{}/v2/a//b/../%63?d=e", origin.address));
    for gone in ["host", "connection", "x-mine", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(parts.headers.get(gone), None, "{gone}");
    }
    assert_eq!(parts.headers["content-length"], "4");
    assert_eq!(parts.headers["x-forwarded-host"], "localhost");
    assert_eq!(parts.headers.get_all("x-many").iter().collect::<Vec<_>>(), ["1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_a_connection() {
    let gate = closed();
    let (held, arrived) = (gate.clone(), closed());
    let seen = arrived.clone();
    let origin = Origin::start(None, move |_, call| {
        let (held, seen) = (held.clone(), seen.clone());
        async move {
            seen.add_permits(1);
            held.acquire().await.expect("open").forget();
            let path = call.head.uri.path().to_owned();
            call.answer(path);
        }
    })
    .await;
    let gateway = origin.gateway("").await;
    let mut conns = Vec::new();
    for i in 0..50 {
        conns.push(gateway.ask(&format!("/{i}"), &[]).await);
    }
    for _ in 0..50 {
        reached(&arrived, "all are under way at once").await;
    }
    gate.add_permits(50);
    for (i, conn) in conns.iter_mut().enumerate() {
        assert_eq!(conn.answer().await.expect("an answer").text(), format!("/v2/{i}"));
    }
    assert_eq!(origin.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_above_the_stream_limit_use_another_connection() {
    let (gate, arrived) = (closed(), closed());
    let (held, seen) = (gate.clone(), arrived.clone());
    let origin = Origin::start(Some(2), move |_, call| {
        let (held, seen) = (held.clone(), seen.clone());
        async move {
            if call.head.uri.path() != "/v2/first" {
                seen.add_permits(1);
                held.acquire().await.expect("open").forget();
            }
            call.answer("ok");
        }
    })
    .await;
    let gateway = origin.gateway("").await;
    // From here on the gateway knows how many.
    assert_eq!(gateway.get("/first").await.status, 200);
    let mut conns = Vec::new();
    for _ in 0..6 {
        conns.push(gateway.ask("/", &[]).await);
        reached(&arrived, "it is under way").await;
    }
    assert_eq!(origin.connections(), 3);
    gate.add_permits(6);
    for conn in &mut conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_goaway_fails_no_request() {
    // Each connection takes three requests and announces its end with the third.
    let origin = Origin::raw(None, |_, mut wire| async move {
        let mut calls = JoinSet::new();
        let mut count = 0;
        while let Some(Ok((request, respond))) = wire.accept().await {
            count += 1;
            if count == 3 {
                wire.graceful_shutdown();
            }
            let (head, incoming) = request.into_parts();
            calls.spawn(async move { Call { head, incoming, respond }.answer("ok") });
        }
    })
    .await;
    let gateway = origin.gateway("").await;
    for _ in 0..30 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert!(origin.connections() >= 8, "{}", origin.connections());
    assert_eq!(spent(&gateway).await, 30);
}

#[rstest]
#[case::before_the_response(false, "")]
#[case::in_the_middle_of_it(true, "")]
#[case::in_the_middle_of_an_upload(false, "half")]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_stream_and_no_other(
    #[case] answers: bool,
    #[case] upload: &'static str,
) {
    let (asked, ended) = (closed(), closed());
    let (has_asked, has_ended) = (asked.clone(), ended.clone());
    let origin = Origin::start(None, move |_, mut call| {
        let (asked, ended) = (has_asked.clone(), has_ended.clone());
        async move {
            if call.head.uri.path() != "/v2/x" {
                return call.answer("ok");
            }
            let reason = match answers {
                true => {
                    let response = Response::new(());
                    let mut stream = call.respond.send_response(response, false).expect("sent");
                    stream.send_data("first".into(), false).expect("sent");
                    asked.add_permits(1);
                    std::future::poll_fn(|cx| stream.poll_reset(cx)).await
                }
                false => {
                    asked.add_permits(1);
                    std::future::poll_fn(|cx| call.respond.poll_reset(cx)).await
                }
            };
            let reason = reason.expect("a reset");
            // Half an upload is no upload.
            let of_an_upload = !upload.is_empty() && reason == Reason::INTERNAL_ERROR;
            assert!(reason == Reason::CANCEL || of_an_upload, "{reason}");
            ended.add_permits(1);
        }
    })
    .await;
    let gateway = origin.gateway("").await;
    assert_eq!(gateway.get("/first").await.status, 200);
    let fields = [("Content-Length", "8")];
    let fields = if upload.is_empty() { &[] } else { &fields[..] };
    let method = if upload.is_empty() { "GET" } else { "PUT" };
    // The best of some: a busy machine adds to the time, and takes nothing away.
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let mut conn = gateway.connect().await;
        conn.send(request(method, "/x", fields) + upload).await.expect("send");
        reached(&asked, "the upstream has the call").await;
        if answers {
            conn.until("first").await.expect("the first piece");
        }
        drop(conn);
        let left = Instant::now();
        reached(&ended, "the upstream sees its stream reset").await;
        best = best.min(left.elapsed());
    }
    assert!(best < Duration::from_millis(200), "{best:?}");
    assert_eq!(gateway.get("/last").await.status, 200);
    assert_eq!(origin.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_text_upstream_of_http_1_is_a_502() {
    let upstream = Upstream::raw(|mut conn| async move {
        let _ = conn.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        let _ = conn.rest().await;
    })
    .await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"{}\", http2: true }} }}
routes: [{{ suffix: \"*\" }}]
",
        upstream.url()
    ))
    .await;
    for _ in 0..3 {
        let answer = gateway.get("/").await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-broken"));
    }
    assert!(upstream.connections() <= 6, "{} for 3 requests", upstream.connections());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_upstream_connection_is_given_up() {
    // The first connection reads and never answers.
    let origin = Origin::start(None, |number, call| async move {
        if number == 0 && call.head.uri.path() == "/v2/x" {
            std::future::pending::<()>().await;
        }
        call.answer("ok");
    })
    .await;
    let gateway = origin.gateway(", response_timeout: 200ms").await;
    assert_eq!(gateway.get("/first").await.status, 200);
    let answer = gateway.get("/x").await;
    assert_eq!((answer.status, answer.problem().as_str()), (504, "upstream-timeout"));
    eventually("others go elsewhere", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        (origin.connections() == 2).then_some(())
    })
    .await;
}
