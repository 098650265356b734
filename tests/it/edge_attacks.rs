//! Attacks of clients and mistakes of operators on the process around the requests: on its log, its file descriptors, and
//! its admin side.

mod drain;
mod log;

use crate::support::{
    Conn, Frames, Gateway, PATIENCE, Reply, Upstream, eventually, frame, free_port, get, headers,
    reply, request,
};
use bytes::Bytes;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStderr, Command, Stdio},
    sync::Arc,
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time::timeout};

const HEADERS: u8 = 1;

const DROPPED: &str = "paceway_log_lines_dropped_total";

/// `count` PING ACKs without a PING before them (RFC 9113, 6.7): h2 logs a line for each.
fn acks(count: usize) -> Vec<u8> {
    frame(6, 1, 0, &[0; 8]).repeat(count)
}

/// A gateway whose output is no longer read once it listens, so that its pipe fills up.
struct Unread {
    child: Child,
    listen: SocketAddr,
    admin: SocketAddr,
    stderr: Option<BufReader<ChildStderr>>,
    /// The lines of its log until it listened, as JSON.
    events: Vec<Value>,
    _dir: tempfile::TempDir,
}

impl Unread {
    /// `script` is what a shell does before it becomes the gateway.
    fn start(yaml: &str, script: &str, level: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let yaml = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{yaml}");
        fs::write(dir.path().join("paceway.yaml"), yaml).expect("the configuration");
        let run = format!("{script} exec {} run", env!("CARGO_BIN_EXE_paceway"));
        let mut command = Command::new("bash");
        command.args(["-c", &run]).current_dir(dir.path()).env("PACEWAY_LOG", level);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start");
        let stderr = child.stderr.take().map(BufReader::new);
        let [listen, admin] = [SocketAddr::from(([0; 4], 0)); 2];
        let mut gateway = Self { child, listen, admin, stderr, events: Vec::new(), _dir: dir };
        gateway.read_until_it_listens();
        gateway
    }

    fn read_until_it_listens(&mut self) {
        let stderr = self.stderr.as_mut().expect("a pipe");
        loop {
            let mut line = String::new();
            let length = stderr.read_line(&mut line).expect("a line");
            assert_ne!(length, 0, "it ended: {:?}", self.events);
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            let address = |name: &str| event[name].as_str()?.parse().ok();
            if let (Some(listen), Some(admin)) = (address("listen"), address("admin")) {
                (self.listen, self.admin) = (listen, admin);
                return;
            }
            self.events.push(event);
        }
    }

    async fn metric(&self, series: &str) -> f64 {
        let text = get(self.admin, "/metrics").await.text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().expect("a number")
    }

    async fn dropped(&self) -> f64 {
        self.metric(&format!("{DROPPED}{{stream=\"stderr\"}}")).await
    }

    /// Unrequested PING ACKs on several connections, and a request on each to see that all of them were read.
    async fn attack(&self) {
        let mut attackers = JoinSet::new();
        let listen = self.listen;
        for _ in 0..6 {
            attackers.spawn(async move {
                let mut frames = Frames::to(listen, b"").await;
                frames.send(acks(5000)).await.expect("send");
                frames.send(headers(1, "GET", "/", true)).await.expect("send");
                assert!(frames.until(HEADERS, 1).await.has_status(200));
            });
        }
        while let Some(done) = attackers.join_next().await {
            done.expect("served");
        }
    }

    async fn ends(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        eventually("it ends", async || self.child.try_wait().expect("its state")).await.code()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn before(upstream: &Upstream) -> String {
    format!("upstream: {}\nroutes: [{{ name: all, suffix: \"*\" }}]\nworkers: 2\n", upstream.url())
}

// === file descriptors

#[rstest]
#[case::by_default("", "", 256)]
#[case::more_than_can_be("client: { max_connections: 5000 }\n", "5000", 256)]
#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_take_no_descriptors_from_calls_and_operators(
    #[case] client: &str,
    #[case] told: &str,
    #[case] limit: usize,
) {
    // Each call needs a connection of its own.
    let upstream = Upstream::start(|_| Reply { close: true, ..Reply::ok() }).await;
    // The soft limit alone is not enough for anything.
    let script = format!("ulimit -Sn 40; ulimit -Hn {limit};");
    let gateway = Unread::start(&(before(&upstream) + client), &script, "debug");
    let shares = gateway
        .events
        .iter()
        .find(|event| event["message"] == "the connections that the limit of open files allows");
    assert_eq!(shares.expect("a line")["open_files"], limit, "{:?}", gateway.events);
    let warned = gateway.events.iter().any(|event| {
        let text = event["message"].as_str().unwrap_or_default();
        event["level"] == "WARN" && text.contains(told) && text.contains(&limit.to_string())
    });
    assert_eq!(warned, !told.is_empty(), "{:?}", gateway.events);

    let mut callers = Vec::new();
    for _ in 0..10 {
        let mut conn = Conn::to(gateway.listen).await.expect("connect");
        conn.send(request("GET", "/first", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
        callers.push(conn);
    }
    let mut idle = Vec::new();
    for _ in 0..2 * limit {
        idle.push(Conn::to(gateway.listen).await.expect("connect"));
    }
    eventually("some are turned away", async || {
        let refused = "paceway_connections_refused_total{reason=\"limit\"}";
        (gateway.metric(refused).await > 100.0).then_some(())
    })
    .await;
    for conn in &mut callers {
        conn.send(request("GET", "/second", &[])).await.expect("send");
    }
    for conn in &mut callers {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(get(gateway.admin, "/readyz").await.status, 200);
    assert_eq!(gateway.metric("process_max_fds").await as usize, limit);
    assert!(gateway.metric("process_open_fds").await as usize <= limit);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_take_no_descriptors_from_operators() {
    // Nothing is answered, so that each call holds a connection.
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    let upstream = Upstream::start(move |_| Reply::ok().behind(&behind)).await;
    let gateway = Unread::start(&before(&upstream), "ulimit -n 256;", "");
    // 128 calls on each of these connections.
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut frames = Frames::to(gateway.listen, b"").await;
        let calls = (0..100).map(|i| headers(2 * i + 1, "GET", "/", true));
        frames.send(calls.collect::<Vec<_>>().concat()).await.expect("send");
        clients.push(frames);
    }
    eventually("some calls have no connection", async || {
        let failed = "paceway_requests_total{route=\"all\",outcome=\"upstream_failed\"}";
        (gateway.metric(failed).await > 0.0).then_some(())
    })
    .await;
    for _ in 0..20 {
        assert_eq!(get(gateway.admin, "/readyz").await.status, 200);
    }
    gate.add_permits(1000);
    eventually("others are served again", async || {
        (get(gateway.listen, "/").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_to_one_upstream_leave_room_for_another() {
    const CALLS: usize = 60;
    let gate = Arc::new(Semaphore::new(0));
    let mut upstreams = Vec::new();
    for _ in 0..2 {
        let behind = gate.clone();
        upstreams.push(Upstream::start(move |_| Reply::ok().behind(&behind)).await);
    }
    let yaml = format!(
        "upstreams: {{ one: {}, other: {} }}
routes: [{{ suffix: /one, upstream: one }}, {{ suffix: /other, upstream: other }}]\nworkers: 2\n",
        upstreams[0].url(),
        upstreams[1].url()
    );
    // Room for 77 connections to upstreams.
    let gateway = Unread::start(&yaml, "ulimit -n 256;", "");
    let mut clients = Vec::new();
    for _ in 0..CALLS {
        clients.push(Conn::to(gateway.listen).await.expect("connect"));
    }
    for (target, upstream) in ["/one", "/other"].iter().zip(&upstreams) {
        for client in &mut clients {
            client.send(request("GET", target, &[])).await.expect("send");
        }
        eventually("all calls have a connection", async || {
            (upstream.connections() == CALLS).then_some(())
        })
        .await;
        gate.add_permits(CALLS);
        for client in &mut clients {
            assert_eq!(client.answer().await.expect("an answer").status, 200, "{target}");
        }
    }
}

/// An upstream of HTTP/2 that allows one call on each connection. Each permit of `gate` answers one.
async fn one_call_each(arrived: Arc<Semaphore>, gate: Arc<Semaphore>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut sessions = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (arrived, gate) = (arrived.clone(), gate.clone());
            sessions.spawn(async move {
                let mut builder = h2::server::Builder::new();
                let session = builder.max_concurrent_streams(1).handshake::<_, Bytes>(stream);
                let mut session = session.await.expect("a session");
                let mut calls = JoinSet::new();
                while let Some(Ok((_, mut respond))) = session.accept().await {
                    arrived.add_permits(1);
                    let gate = gate.clone();
                    calls.spawn(async move {
                        gate.acquire().await.expect("open").forget();
                        let _ = respond.send_response(http::Response::new(()), true);
                    });
                }
            });
        }
    });
    (address, tasks)
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_sessions_of_one_upstream_leave_room_for_another() {
    const CALLS: usize = 60;
    let [arrived, gate] = [(), ()].map(|()| Arc::new(Semaphore::new(0)));
    let (one, _tasks) = one_call_each(arrived.clone(), gate.clone()).await;
    let held = gate.clone();
    let other = Upstream::start(move |_| Reply::ok().behind(&held)).await;
    // The idle sessions outlast the test.
    let yaml = format!(
        "upstreams:\n  one: {{ url: \"http://{one}\", http2: true, idle_timeout: 10m }}\n  other: {}
routes: [{{ suffix: /one, upstream: one }}, {{ suffix: /other, upstream: other }}]\nworkers: 2\n",
        other.url()
    );
    // Room for 77 connections to upstreams.
    let gateway = Unread::start(&yaml, "ulimit -n 256;", "");
    let mut clients = Vec::new();
    for _ in 0..CALLS {
        let mut client = Conn::to(gateway.listen).await.expect("connect");
        client.send(request("GET", "/one", &[])).await.expect("send");
        let reached = timeout(PATIENCE, arrived.acquire()).await.expect("it reaches the upstream");
        reached.expect("open").forget();
        clients.push(client);
    }
    gate.add_permits(CALLS);
    for client in &mut clients {
        assert_eq!(client.answer().await.expect("an answer").status, 200);
        client.send(request("GET", "/other", &[])).await.expect("send");
    }
    eventually("all calls have a connection", async || {
        (other.connections() == CALLS).then_some(())
    })
    .await;
    gate.add_permits(CALLS);
    for client in &mut clients {
        assert_eq!(client.answer().await.expect("an answer").status, 200);
    }
}

// === the admin side

#[tokio::test(flavor = "multi_thread")]
async fn idle_operators_make_room_for_a_probe() {
    let upstream = Upstream::ok().await;
    // Longer than a test waits for an answer.
    let client = "client: { header_timeout: 1h, idle_timeout: 1h }\n";
    let gateway = Gateway::start(&(before(&upstream) + client)).await;
    let mut conns = Vec::new();
    for said in [&request("GET", "/healthz", &[])[..], "", "GET /readyz HTTP/1.1\r\n"] {
        for _ in 0..40 {
            let mut conn = Conn::to(gateway.admin).await.expect("connect");
            conn.send(said).await.expect("send");
            conns.push(conn);
        }
        assert_eq!(gateway.page("/readyz").await.status, 200, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_admin_connections_are_closed() {
    let upstream = Upstream::ok().await;
    let client = "client: { header_timeout: 1s, idle_timeout: 1s }\n";
    let gateway = Gateway::start(&(before(&upstream) + client)).await;
    let mut conns = Vec::new();
    for target in ["/healthz", "/limiters", "/metrics"] {
        let mut used = Conn::to(gateway.admin).await.expect("connect");
        used.send(request("GET", target, &[])).await.expect("send");
        assert_eq!(used.answer().await.expect("an answer").status, 200);
        conns.push(used);
    }
    // More than there is room for.
    for said in ["", "GET /readyz HTTP/1.1\r\nHost:", "POST /limiters/x/acquire HTTP/1.1\r\n"] {
        for _ in 0..20 {
            let mut conn = Conn::to(gateway.admin).await.expect("connect");
            conn.send(said).await.expect("send");
            conns.push(conn);
        }
    }
    assert_eq!(gateway.page("/readyz").await.status, 200, "its turn comes");
    for conn in &mut conns {
        conn.rest().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_starts_while_the_old_one_drains() {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/held" => Reply::ok().behind(&behind),
        _ => reply("200 OK", &[], "new"),
    })
    .await;
    let yaml = format!(
        "listen: 127.0.0.1:{}\nadmin: 127.0.0.1:{}\ndrain_timeout: 10min\n{}",
        free_port(),
        free_port(),
        before(&upstream)
    );
    let mut old = Gateway::start(&yaml).await;
    let mut held = old.ask("/held", &[]).await;
    eventually("it is held", async || (!upstream.calls().is_empty()).then_some(())).await;
    let mut operator = Conn::to(old.admin).await.expect("connect");
    let mut ready = async || {
        operator.send(request("GET", "/readyz", &[])).await.expect("send");
        operator.answer().await.expect("an answer")
    };
    assert_eq!(ready().await.status, 200);
    old.signal("TERM");
    for address in [old.listen, old.admin] {
        eventually("no new connection is accepted", async || Conn::to(address).await.err()).await;
    }
    let said = ready().await;
    assert_eq!((said.status, said.json()["reasons"].clone()), (503, json!(["draining"])));

    let new = Gateway::start(&yaml).await;
    assert_eq!((new.listen, new.admin), (old.listen, old.admin));
    assert_eq!(new.page("/readyz").await.status, 200);
    assert_eq!(new.get("/").await.text(), "new");
    assert!(old.is_running());
    gate.add_permits(1);
    assert_eq!(held.answer().await.expect("an answer").status, 200);
    assert_eq!(old.end().await.code(), Some(0));
    assert_eq!(new.page("/readyz").await.status, 200);
}
