//! A proxy on the way to upstreams, with HTTP/2, health checks, reloads and several URLs.

use super::{Corporate, yaml};
use crate::{
    support::{Gateway, Upstream, eventually},
    upstream_h2::Origin,
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

const AWAY: &str = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_of_http_2_is_reached_through_one_tunnel() {
    let origin = Origin::start(None, |_, call| async move { call.answer("h2") }).await;
    let proxy = Corporate::start(origin.address, None).await;
    let via = format!("http://{}", proxy.address);
    let own = yaml("http://vendor.invalid", &via, ", http2: true");
    let gateway = Gateway::start(&format!("workers: 1\n{own}")).await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/x").await.text(), "h2");
    }
    assert_eq!((origin.connections(), proxy.heads.lock().len()), (1, 1));
}

/// Each URL has a tunnel of its own. One that the proxy does not reach gets no requests, until its checks pass again.
#[tokio::test(flavor = "multi_thread")]
async fn health_checks_of_several_urls_are_sent_through_the_proxy() {
    let (one, other) = (Upstream::ok().await, Upstream::ok().await);
    let addresses = [one.address(), other.address()];
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    let proxy = Corporate::leading(move |host| match host {
        "one.invalid:80" => Ok(addresses[0]),
        "other.invalid:81" if !away.load(Relaxed) => Ok(addresses[1]),
        _ => Err(AWAY),
    })
    .await;
    let urls = "urls: [http://one.invalid, 'http://other.invalid:81']";
    let health = "health: { path: /up, every: 100ms, healthy: 1, unhealthy: 1 }";
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ {urls}, via: 'http://{}', {health} }} }}\nroutes: [{{ suffix: '*' }}]\n",
        proxy.address
    ))
    .await;
    let ejected = [("state", "ejected")];
    gateway.until_metric("paceway_upstream_addresses", &ejected, 1).await;
    let served = |upstream: &Upstream, path: &str| {
        let calls = upstream.calls();
        let of_path: Vec<_> = calls.iter().filter(|call| call.target == path).collect();
        of_path
            .iter()
            .filter_map(|call| call.head.get("host").map(str::to_owned))
            .collect::<Vec<_>>()
    };
    for _ in 0..4 {
        assert_eq!(gateway.get("/x").await.status, 200);
    }
    assert_eq!(served(&one, "/x"), ["one.invalid"; 4]);
    assert_eq!(served(&one, "/up")[0], "one.invalid");
    is_away.store(false, Relaxed);
    gateway.until_metric("paceway_upstream_addresses", &ejected, 0).await;
    for _ in 0..4 {
        assert_eq!(gateway.get("/x").await.status, 200);
    }
    assert!(served(&other, "/x").contains(&"other.invalid:81".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_takes_another_proxy_and_then_none() {
    let upstream = Upstream::ok().await;
    let (first, second) = (
        Corporate::start(upstream.address(), None).await,
        Corporate::start(upstream.address(), None).await,
    );
    let text = |proxy: &Corporate| yaml(&upstream.url(), &format!("http://{}", proxy.address), "");
    let gateway = Gateway::start(&text(&first)).await;
    assert_eq!(gateway.get("/").await.status, 200);
    assert!(!first.heads.lock().is_empty());
    gateway.rewrite(&text(&second));
    assert_eq!(gateway.reload().await.status, 200);
    eventually("the other proxy is asked", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        (!second.heads.lock().is_empty()).then_some(())
    })
    .await;
    let before = upstream.connections();
    gateway.rewrite(&format!("upstream: {}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.url()));
    assert_eq!(gateway.reload().await.status, 200);
    eventually("the upstream is connected to", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        (upstream.connections() > before).then_some(())
    })
    .await;
}
