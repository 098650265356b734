//! Upstreams with several addresses: which address is chosen, when one is ejected and returns, and which addresses a name
//! resolves to.

mod dns;

use crate::support::{Call, Conn, Gateway, Reply, Upstream, eventually, free_port, reply};
use rstest::rstest;
use socket2::{Domain, Socket, Type};
use std::{
    net::{Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};

async fn before(urls: &[String], more: &str) -> Gateway {
    let urls: Vec<_> = urls.iter().map(|url| format!("\"{url}\"")).collect();
    Gateway::start(&format!(
        "workers: 2
upstreams: {{ vendor: {{ urls: [{}], connect_timeout: 500ms{more} }} }}
limiters: {{ day: 1000/day }}
routes: [{{ name: all, suffix: \"*\", limiters: [day] }}]
",
        urls.join(", ")
    ))
    .await
}

/// Reads from the metrics how many addresses of the upstream are in a state: `up` or `ejected`.
async fn addresses(gateway: &Gateway, state: &str) -> f64 {
    gateway.metric("paceway_upstream_addresses", &[("state", state)]).await
}

async fn ejections(gateway: &Gateway) -> f64 {
    gateway.metric("paceway_upstream_ejections_total", &[("upstream", "vendor")]).await
}

fn said(gateway: &Gateway, message: &str) -> usize {
    gateway.events().iter().filter(|event| event["message"] == message).count()
}

/// One that listens and never accepts: when its queue is full, the system answers no further client.
async fn black_hole() -> (SocketAddr, (Socket, Vec<Conn>)) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    socket.listen(1).expect("listening");
    let address = socket.local_addr().expect("its address").as_socket().expect("of TCP");
    let mut queue = Vec::new();
    while let Ok(Ok(conn)) = timeout(Duration::from_millis(300), Conn::to(address)).await {
        queue.push(conn);
        assert!(queue.len() < 1000, "the queue never gets full");
    }
    (address, (socket, queue))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_addresses_share_the_requests_under_their_own_hosts() {
    let first = Upstream::ok().await;
    let second = Upstream::at((Ipv6Addr::LOCALHOST, 0), |_| Reply::ok()).await;
    let gateway = before(&[first.url() + "/v2", second.url() + "/v2"], "").await;
    for _ in 0..20 {
        assert_eq!(gateway.get("/x").await.status, 200);
    }
    for upstream in [&first, &second] {
        let calls = upstream.calls();
        assert!((5..=15).contains(&calls.len()), "{} of 20", calls.len());
        for call in calls {
            assert_eq!(call.target, "/v2/x");
            assert_eq!(call.head.get("host"), Some(&*upstream.address().to_string()));
        }
    }
    assert_eq!(addresses(&gateway, "up").await, 2.0);
    assert_eq!(addresses(&gateway, "ejected").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_with_the_fewest_calls_in_flight_is_chosen() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let slow = Upstream::start(move |_| Reply::ok().behind(&held)).await;
    let quick = Upstream::ok().await;
    let gateway = before(&[slow.url(), quick.url()], "").await;
    // At least one call is sent to the slow address, and stays there.
    let mut waiting = Vec::new();
    while slow.calls().is_empty() {
        waiting.push(gateway.ask("/", &[]).await);
        eventually("the call has arrived", async || {
            (slow.calls().len() + quick.calls().len() == waiting.len()).then_some(())
        })
        .await;
    }
    for _ in 0..20 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert_eq!(slow.calls().len(), 1, "no other call was sent there");
    gate.add_permits(100);
    for mut conn in waiting {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_is_a_call_in_flight_until_its_end() {
    let handle = |call: &Call| match call.head.get("upgrade") {
        Some(_) => Reply::raw(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: any\r\n\r\n",
        ),
        None => Reply::ok(),
    };
    let (one, other) = (Upstream::start(handle).await, Upstream::start(handle).await);
    let gateway = before(&[one.url(), other.url()], "").await;
    let mut tunnel = gateway.ask("/", &[("Connection", "upgrade"), ("Upgrade", "any")]).await;
    let head = tunnel.head().await.expect("an answer").expect("a head");
    assert!(head.start.contains("101"), "{}", head.start);
    let (busy, free) = if one.calls().is_empty() { (other, one) } else { (one, other) };
    for _ in 0..10 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert_eq!(
        (busy.calls().len(), free.calls().len()),
        (1, 10),
        "no request is sent to the address with the tunnel"
    );
    drop(tunnel);
    eventually("the place of the tunnel is free", async || {
        gateway.get("/").await;
        (busy.calls().len() > 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_address_fails_no_request_and_is_used_again_later() {
    let port = free_port();
    let alive = Upstream::ok().await;
    let gateway = before(&[format!("http://127.0.0.1:{port}"), alive.url()], "").await;
    for _ in 0..20 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert_eq!(alive.calls().len(), 20);
    assert_eq!(gateway.limiter("day").await["level"], 980, "one permit each");
    assert_eq!(addresses(&gateway, "ejected").await, 1.0);
    assert_eq!(addresses(&gateway, "up").await, 1.0);
    eventually("it is said", async || (said(&gateway, "ejected") == 1).then_some(())).await;
    let before = ejections(&gateway).await;
    assert!(before >= 1.0);

    let back = Upstream::on(port, |_| Reply::ok()).await;
    eventually("it is used again", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        (!back.calls().is_empty()).then_some(())
    })
    .await;
    eventually("it is said to be", async || (addresses(&gateway, "up").await == 2.0).then_some(()))
        .await;
    assert_eq!(said(&gateway, "ejected"), 1, "said once");
    let again = "answers again, and is used again";
    eventually("it is said", async || (said(&gateway, again) == 1).then_some(())).await;
    assert!(gateway.count("all", "upstream_failed").await < 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_accepts_no_connection_is_passed_over() {
    let (dead, _queue) = black_hole().await;
    let alive = Upstream::ok().await;
    let gateway = before(&[format!("http://{dead}"), alive.url()], "").await;
    for _ in 0..10 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert_eq!(alive.calls().len(), 10);
    assert!(ejections(&gateway).await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_addresses_unreachable_each_is_tried_and_no_permit_is_spent() {
    let dead = || format!("http://127.0.0.1:{}", free_port());
    let gateway = before(&[dead(), dead(), dead()], "").await;
    for _ in 0..5 {
        let answer = gateway.get("/").await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-unreachable"));
    }
    assert_eq!(gateway.limiter("day").await["level"], 1000);
    assert_eq!(addresses(&gateway, "up").await, 1.0, "the last one stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_returning_address_is_found_at_once_while_the_last_one_is_dead() {
    let (port, other) = (free_port(), free_port());
    let urls = [port, other].map(|port| format!("http://127.0.0.1:{port}"));
    let gateway = before(&urls, "").await;
    assert_eq!(gateway.get("/").await.status, 502);
    // Which of them is out is not known here: both orders must do.
    for port in [port, other] {
        let alive = Upstream::on(port, |_| reply("200 OK", &[("Connection", "close")], "ok")).await;
        assert_eq!(gateway.get("/").await.status, 200);
        drop(alive);
        let connect = || TcpStream::connect(("127.0.0.1", port));
        eventually("its port is closed", async || connect().await.is_err().then_some(())).await;
    }
}

#[rstest]
#[case::no_answer_in_time(false)]
#[case::broken_off(true)]
#[tokio::test(flavor = "multi_thread")]
async fn three_calls_without_an_answer_eject_an_address(#[case] breaks_off: bool) {
    let never = Arc::new(Semaphore::new(0));
    let bad = Upstream::start(move |_| match breaks_off {
        true => Reply::raw(""),
        false => Reply::ok().behind(&never),
    })
    .await;
    let good = Upstream::ok().await;
    let gateway = before(&[bad.url(), good.url()], ", response_timeout: 100ms").await;
    let mut failed = 0;
    eventually("it is ejected", async || {
        let status = gateway.get("/").await.status;
        assert!([200, 502, 504].contains(&status), "{status}");
        failed += usize::from(status != 200);
        (ejections(&gateway).await >= 1.0).then_some(())
    })
    .await;
    assert_eq!(failed, 3);
    assert_eq!(addresses(&gateway, "ejected").await, 1.0);
}

/// An address whose checks fail gets no requests, comes back when they pass, and no check takes a permit.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_gets_requests_while_its_checks_pass() {
    let works = Arc::new(AtomicUsize::new(1));
    let state = works.clone();
    let sick = Upstream::start(move |call| match (call.target.as_str(), state.load(Relaxed)) {
        ("/up?deep", 0) => reply("503 Service Unavailable", &[], ""),
        _ => Reply::ok(),
    })
    .await;
    let well = Upstream::ok().await;
    let health = ", health: { path: \"/up?deep\", every: 100ms, healthy: 2, unhealthy: 2 }";
    let gateway = before(&[sick.url(), well.url()], health).await;
    let served =
        |upstream: &Upstream| upstream.calls().iter().filter(|call| call.target == "/it").count();
    let ask = async |count: usize| {
        for _ in 0..count {
            assert_eq!(gateway.get("/it").await.status, 200);
        }
    };
    ask(4).await;
    assert_eq!((served(&sick), served(&well)), (2, 2));
    works.store(0, Relaxed);
    eventually("it is down", async || (addresses(&gateway, "up").await == 1.0).then_some(())).await;
    ask(4).await;
    assert_eq!((served(&sick), served(&well)), (2, 6));
    works.store(1, Relaxed);
    eventually("it is up", async || (addresses(&gateway, "up").await == 2.0).then_some(())).await;
    ask(4).await;
    assert_eq!(served(&sick) + served(&well), 12);
    assert!(served(&sick) > 2, "it is used again");
    let checks = async |result| {
        gateway.metric("paceway_upstream_health_checks_total", &[("result", result)]).await
    };
    assert!(checks("failed").await >= 2.0 && checks("passed").await >= 4.0);
    let level = gateway.limiter("day").await["level"].as_i64().expect("a number");
    assert!((988..=990).contains(&level), "no check takes a permit: {level}");
    let [down, up] =
        ["fails its health checks, and gets no requests", "passes its health checks again"];
    assert_eq!((said(&gateway, down), said(&gateway, up)), (1, 1));
}

/// Where the checks of all addresses fail, requests are sent nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn checks_that_all_fail_stop_no_request() {
    let all_but_checks = || {
        Upstream::start(|call| match call.target.as_str() {
            "/up" => reply("404 Not Found", &[], ""),
            _ => Reply::ok(),
        })
    };
    let upstreams = [all_but_checks().await, all_but_checks().await];
    let health = ", health: { path: /up, every: 100ms, unhealthy: 1 }";
    let gateway = before(&upstreams.each_ref().map(Upstream::url), health).await;
    eventually("both are down", async || (addresses(&gateway, "up").await == 0.0).then_some(()))
        .await;
    for _ in 0..4 {
        assert_eq!(gateway.get("/it").await.status, 200);
    }
}
