//! Attacks of clients and mistakes of operators on the process around the requests: on its log, its file descriptors, and
//! its admin side.

use crate::support::{
    Authority, Conn, Frames, Gateway, PATIENCE, Reply, Upstream, block, eventually, frame,
    free_port, get, headers, paceway_in, reply, request,
};
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStderr, Command, Stdio},
    sync::Arc,
    thread,
};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
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

// === the log

#[rstest]
#[case::as_usual("", false)]
#[case::with_the_lines_of_h2("info,h2=warn", true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_log_stops_neither_requests_nor_signals(
    #[case] level: &str,
    #[case] drops: bool,
) {
    let upstream = Upstream::ok().await;
    let mut gateway = Unread::start(&before(&upstream), "", level);
    gateway.attack().await;
    // Their access lines fill the pipe of stdout, too.
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    for _ in 0..400 {
        conn.send(request("GET", "/other", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(get(gateway.admin, "/healthz").await.status, 200);
    assert_eq!(gateway.dropped().await > 0.0, drops);
    assert_eq!(gateway.ends().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_read_again_tells_how_many_lines_are_missing() {
    let upstream = Upstream::ok().await;
    let mut gateway = Unread::start(&before(&upstream), "", "info,h2=warn");
    gateway.attack().await;
    assert!(gateway.dropped().await > 0.0);
    let stderr = gateway.stderr.take().expect("a pipe");
    let read = Arc::new(Mutex::new(String::new()));
    let reader = thread::spawn({
        let read = read.clone();
        move || {
            for line in stderr.lines() {
                *read.lock() += &(line.expect("a line") + "\n");
            }
        }
    });
    // Clients that close may cause another line while the pipe is full. None is dropped once the report has been read.
    let is_reported = || read.lock().contains("log lines were dropped");
    eventually("the report", async || is_reported().then_some(())).await;
    let dropped = gateway.dropped().await;
    assert_eq!(gateway.ends().await, Some(0));
    reader.join().expect("its lines");
    let text = read.lock().clone();
    let events: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect();
    let told = events.iter().filter(|event| {
        event["message"] == "log lines were dropped: their reader is too slow"
            && event["stream"] == "stderr"
    });
    let told: f64 = told.map(|event| event["lines"].as_f64().expect("a number")).sum();
    assert_eq!(told, dropped);
    let last = events.last().expect("a line");
    assert_eq!(last["message"], "stopped", "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_do_wrong_writes_few_lines() {
    let (upstream, authority) = (Upstream::ok().await, Authority::new());
    let (cert, key) = authority.files("gateway.test");
    let tls = format!("tls: {{ cert: \"{cert}\", key: \"{key}\" }}\n");
    let plain = Gateway::start(&before(&upstream)).await;
    let secure = Gateway::start(&(before(&upstream) + &tls)).await;
    let long = "a".repeat(40_000);
    for _ in 0..5 {
        let mut frames = Frames::to(plain.listen, b"").await;
        let _ = frames.send(acks(1000)).await;
        let resets = (0..500).map(|i| {
            let stream = 2 * i + 1;
            let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            [headers(stream, "GET", "/", true), reset].concat()
        });
        let _ = frames.send(resets.collect::<Vec<_>>().concat()).await;
        frames.goes_away().await;
        // Too large a head, on many streams.
        let mut frames = Frames::to(plain.listen, b"").await;
        let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), ("x", &long)];
        let head = block(&fields);
        for stream in 0..50 {
            let mut rest = head.chunks(16_000).peekable();
            let mut kind = 1;
            while let Some(piece) = rest.next() {
                let flags = u8::from(kind == 1) | if rest.peek().is_none() { 4 } else { 0 };
                let _ = frames.send(frame(kind, flags, 2 * stream + 1, piece)).await;
                kind = 9;
            }
        }
        // No HTTP/2, and no TLS.
        for (address, bytes) in [
            (plain.listen, &b"\x16\x03\x01\x02\x00\x01garbage"[..]),
            (plain.listen, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\xff\xff\xff\xff\xff\xff"),
            (secure.listen, b"GET / HTTP/1.1\r\n\r\n"),
            (secure.listen, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"),
            (secure.listen, b"\x15\x03\x03\x00\x02\x02\x28"),
        ] {
            for _ in 0..20 {
                let mut conn = Conn::to(address).await.expect("connect");
                conn.send(bytes).await.expect("send");
                let _ = conn.close_write().await;
                conn.rest().await;
            }
        }
    }
    for gateway in [&plain, &secure] {
        let events = gateway.events();
        assert!(events.len() < 20, "{} lines: {:?}", events.len(), &events[10..15]);
    }
    assert_eq!(plain.get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_upstream_does_wrong_writes_few_lines() {
    let chatty = Upstream::raw(|mut conn| async move {
        let settings = [frame(4, 0, 0, b""), acks(2000)].concat();
        // It may be left before it has said all.
        let _ = conn.send(settings).await;
        let _ = conn.head().await;
    })
    .await;
    let rude = Upstream::start(|_| Reply::raw("HTTP/9 what\r\n\r\n")).await;
    let gateway = Gateway::start(&format!(
        "upstreams:\n  chatty: {{ url: \"{}\", http2: true }}\n  rude: \"{}\"\n  gone: \"http://127.0.0.1:{}\"
routes:\n  - {{ suffix: /chatty, upstream: chatty }}\n  - {{ suffix: /rude, upstream: rude }}
  - {{ suffix: /gone, upstream: gone }}\n",
        chatty.url(),
        rude.url(),
        free_port()
    ))
    .await;
    for _ in 0..20 {
        for target in ["/chatty", "/rude", "/gone"] {
            assert_eq!(gateway.get(target).await.status, 502);
        }
    }
    let events = gateway.events();
    assert!(events.len() < 30, "{} lines: {:?}", events.len(), &events[10..15]);
}

#[rstest]
#[case::cut("inf", "did you mean `info`?")]
#[case::no_level("verbose", "levels are off, error, warn, info, debug and trace")]
#[tokio::test(flavor = "multi_thread")]
async fn a_level_that_is_none_is_told(#[case] level: &str, #[case] hint: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let yaml = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: http://127.0.0.1:9\nroutes: [{ suffix: \"*\" }]\n";
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    let run = paceway_in(dir.path(), &["run"], &[("PACEWAY_LOG", level)]);
    let err = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{err}");
    assert!(err.starts_with(&format!("error: PACEWAY_LOG: `{level}`")), "{err}");
    assert!(err.contains(hint), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn debug_shows_each_decision() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\nlimiters: {{ each: {{ rate: 1/min, key: \"{{header.x-shop}}\" }}, token: {{ rate: 9/s, key: \"{{header.authorization}}\" }} }}
routes: [{{ name: all, suffix: /x, limiters: [each] }}, {{ name: own, suffix: /own, limiters: [token] }}]\n",
        upstream.url()
    );
    let level = ("PACEWAY_LOG".to_owned(), "debug".to_owned());
    let gateway = Gateway::start_with(&yaml, &[level]).await;
    for (target, field, status) in [
        ("/x", ("X-Shop", "one"), 200),
        ("/x", ("X-Shop", "one"), 429),
        ("/own", ("Authorization", "hunter2"), 200),
    ] {
        let answer = gateway.ask(target, &[field]).await.answer().await;
        assert_eq!(answer.expect("an answer").status, status);
    }
    let decisions = eventually("three decisions", async || {
        let events = gateway.events().into_iter().filter(|event| event["message"] == "decision");
        let events: Vec<_> = events.collect();
        (events.len() == 3).then_some(events)
    })
    .await;
    for (event, (limiter, outcome)) in
        decisions.iter().zip([("each", "pass"), ("each", "refuse"), ("token", "pass")])
    {
        assert_eq!((&event["limiter"], &event["outcome"]), (&json!(limiter), &json!(outcome)));
        assert_eq!(event["source"], "shared", "{event}");
        let key = event["key"].as_str().expect("a key");
        assert!(!key.contains("hunter2") && key.contains(limiter), "{event}");
    }
    assert!(decisions[0]["key"].as_str().is_some_and(|key| key.ends_with("one")), "{decisions:?}");
    assert!(decisions[1]["retry_after_ms"].as_f64() > Some(1000.0), "{decisions:?}");
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
    let gateway = Unread::start(&(before(&upstream) + client), &script, "");
    let shares = gateway.events.iter().find(|event| event["message"] == "file descriptors");
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
async fn half_open_operators_are_left() {
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

// === the drain

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_beyond_the_end_of_the_drain_is_refused_at_once() {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/place" => Reply::ok().behind(&behind),
        _ => Reply::ok(),
    })
    .await;
    let mut gateway = Gateway::start(&format!(
        "drain_timeout: 10min\nupstream: {}
limiters: {{ late: {{ rate: 1/30min, burst: 1 }}, soon: 1/2s, place: {{ algorithm: concurrency, max: 1 }} }}
routes:
  - {{ name: late, suffix: /late, limiters: [late], max_wait: 1h }}
  - {{ name: soon, suffix: /soon, limiters: [soon], max_wait: 1h }}
  - {{ name: place, suffix: /place, limiters: [place], max_wait: 1h }}
",
        upstream.url()
    ))
    .await;
    for path in ["/late", "/soon"] {
        assert_eq!(gateway.get(path).await.status, 200);
    }
    let mut kept = Conn::to(gateway.listen).await.expect("connect");
    let holds = gateway.ask("/place", &[]).await;
    eventually("the permit is held", async || (upstream.calls().len() == 3).then_some(())).await;
    let (mut late, began) = (gateway.ask("/late", &[]).await, Instant::now());
    let mut in_time = vec![holds, gateway.ask("/place", &[]).await];
    for _ in 0..2 {
        in_time.push(gateway.ask("/soon", &[]).await);
    }
    gateway.until_waiting("late", 1).await;
    gateway.until_waiting("place", 1).await;
    gateway.signal("TERM");

    let answer = late.answer().await.expect("a whole answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "draining"));
    assert_eq!(answer.field("connection"), Some("close"));
    let retry: u64 = answer.field("retry-after").expect("a time").parse().expect("seconds");
    // The bucket had its last permit a moment before this request came.
    let half_an_hour = 30 * 60;
    let passed = began.elapsed().as_secs() + 2 * PATIENCE.as_secs();
    assert!((half_an_hour - passed..=half_an_hour).contains(&retry), "{retry}");
    let line = eventually("its line", async || {
        gateway.access().into_iter().find(|line| line["path"] == "/late" && line["status"] == 503)
    })
    .await;
    assert_eq!((&line["outcome"], &line["limiter"]), (&json!("draining"), &json!("late")));
    assert!(line["wait_ms"].as_f64() > Some(0.0), "{line}");
    // A request that comes now gets the same answer, unless its connection was closed as an idle one.
    let asked = kept.send(request("GET", "/late", &[])).await;
    if let (Ok(()), Ok(answer)) = (asked, kept.answer().await) {
        assert_eq!((answer.status, answer.problem().as_str()), (503, "draining"));
    }
    // Those whose turn comes in time are served.
    gate.add_permits(2);
    for conn in &mut in_time {
        assert_eq!(conn.answer().await.expect("a whole answer").status, 200);
    }
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_not_free_before_the_end_of_the_drain_is_refused_in_time() {
    let never = Arc::new(Semaphore::new(0));
    let upstream = Upstream::start(move |_| Reply::ok().behind(&never)).await;
    let mut gateway = Gateway::start(&format!(
        "drain_timeout: 3s\nupstream: {}
limiters: {{ place: {{ algorithm: concurrency, max: 1, lease: 30min }} }}
routes: [{{ name: place, suffix: \"*\", limiters: [place], max_wait: 1h }}]\n",
        upstream.url()
    ))
    .await;
    let _holds = gateway.ask("/holds", &[]).await;
    eventually("the permit is held", async || (!upstream.calls().is_empty()).then_some(())).await;
    let mut waits = gateway.ask("/waits", &[]).await;
    gateway.until_waiting("place", 1).await;
    gateway.signal("TERM");
    let answer = waits.answer().await.expect("a whole answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "draining"));
    // When a permit will be free is not known.
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(gateway.line("/waits").await["outcome"], "draining");
    assert_eq!(gateway.end().await.code(), Some(0));
}
