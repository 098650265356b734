//! How a process takes its leave and the next one takes its place: the delay before the drain, sockets that a supervisor keeps
//! open, and the messages for it.

use crate::support::{Conn, Gateway, Reply, Upstream, eventually, get, request};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixDatagram,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

const REST: &str = "routes: [{ name: all, suffix: \"*\" }]\n";

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_accepted_and_probes_fail_during_the_shutdown_delay() {
    let upstream = Upstream::ok().await;
    let yaml =
        format!("upstream: {}\nshutdown_delay: 3s\ndrain_timeout: 10s\n{REST}", upstream.url());
    let mut gateway = Gateway::start(&yaml).await;
    assert_eq!(gateway.page("/readyz").await.status, 200);
    gateway.signal("TERM");
    let said = eventually("the probe on a new connection says no", async || {
        let page = gateway.page("/readyz").await;
        (page.status == 503).then(|| page.json())
    })
    .await;
    assert_eq!(said["reasons"], serde_json::json!(["draining"]));
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.field("connection")), (200, None), "as before");
    assert_eq!(gateway.page("/healthz").await.status, 200);
    assert_eq!(gateway.end().await.code(), Some(0));
    let events = gateway.events();
    let at = |text: &str| {
        events.iter().position(|event| event["message"].as_str().is_some_and(|said| said == text))
    };
    let [delay, drain] = ["stopping: clients are accepted during the delay", "the gateway drains"]
        .map(|text| at(text).expect("a line"));
    assert!(delay < drain);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_shutdown_delay() {
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\nshutdown_delay: 1h\n{REST}", upstream.url());
    let mut gateway = Gateway::start(&yaml).await;
    gateway.signal("TERM");
    eventually("it stops", async || (gateway.page("/readyz").await.status == 503).then_some(()))
        .await;
    gateway.signal("TERM");
    assert_eq!(gateway.end().await.code(), Some(1));
}

/// One request on each new connection, until `stop`. Counts the answers, and returns all that went wrong.
async fn knocks(
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    while !stop.load(Relaxed) {
        let answer: io::Result<_> = async {
            let mut conn = Conn::to(address).await?;
            conn.send(request("GET", "/", &[("Connection", "close")])).await?;
            conn.answer().await
        }
        .await;
        match answer {
            Ok(answer) if answer.status == 200 => drop(answered.fetch_add(1, Relaxed)),
            Ok(answer) => wrong.push(format!("{answer:?}")),
            Err(error) => wrong.push(error.to_string()),
        }
    }
    wrong
}

/// The old process drains while the new one starts, five times, under load on new connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_on_sockets_of_a_supervisor_refuses_no_client() {
    let upstream = Upstream::start(|_| Reply::ok().after(Duration::from_millis(3))).await;
    let yaml = format!("upstream: {}\nworkers: 2\n{REST}", upstream.url());
    let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("an address");
    let mut gateway = Gateway::start_on(&socket, &yaml).await;
    assert_eq!(gateway.listen, address, "the socket replaces `listen`");
    let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let load = (0..8).map(|_| tokio::spawn(knocks(address, stop.clone(), answered.clone())));
    let load: Vec<_> = load.collect();
    for _ in 0..5 {
        let before = answered.load(Relaxed);
        eventually("load", async || (answered.load(Relaxed) > before + 50).then_some(())).await;
        gateway.signal("TERM");
        let next = Gateway::start_on(&socket, &yaml).await;
        assert_eq!(gateway.end().await.code(), Some(0));
        gateway = next;
    }
    stop.store(true, Relaxed);
    let mut wrong = Vec::new();
    for task in load {
        wrong.extend(task.await.expect("a task"));
    }
    assert_eq!(wrong, [""; 0], "of {}", answered.load(Relaxed));
    assert_eq!(upstream.calls().len(), answered.load(Relaxed));
}

/// No process runs for a while: the clients wait in the socket.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_come_between_two_processes_are_served_by_the_second() {
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\n{REST}", upstream.url());
    let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let mut first = Gateway::start_on(&socket, &yaml).await;
    assert_eq!(get(first.listen, "/").await.status, 200);
    first.signal("TERM");
    assert_eq!(first.end().await.code(), Some(0));
    let address = first.listen;
    let waits = tokio::spawn(async move { get(address, "/").await.status });
    let _second = Gateway::start_on(&socket, &yaml).await;
    assert_eq!(waits.await.expect("a task"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_learns_of_the_start_of_reloads_and_of_the_stop() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let supervisor = UnixDatagram::bind(&path).expect("a socket");
    supervisor.set_read_timeout(Some(crate::support::PATIENCE)).expect("a limit");
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\n{REST}", upstream.url());
    let env = [("NOTIFY_SOCKET".to_owned(), path.to_str().expect("a path").to_owned())];
    let mut gateway = Gateway::start_with(&yaml, &env).await;
    let hear = || {
        let mut said = [0; 256];
        let length = supervisor.recv(&mut said).expect("a message");
        String::from_utf8_lossy(&said[..length]).into_owned()
    };
    assert_eq!(hear(), "READY=1\n");
    gateway.signal("HUP");
    assert!(hear().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(hear(), "READY=1\n");
    gateway.signal("TERM");
    assert_eq!(hear(), "STOPPING=1\n");
    assert_eq!(gateway.end().await.code(), Some(0));
}
