//! The addresses that a name resolves to, when it is resolved again, and what a lookup that fails changes.

use super::{addresses, said};
use crate::support::{Dns, Gateway, Reply, Says, Upstream, eventually, free_port};
use rstest::rstest;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Before `http://api.test:PORT`, with a server that says what it stands for.
async fn named(dns: &Dns, port: u16, more: &str) -> Gateway {
    Gateway::start(&format!(
        "workers: 2
resolver: [\"{}\"]
upstreams: {{ vendor: {{ url: \"http://api.test:{port}\"{more} }} }}
routes: [{{ name: all, suffix: \"*\" }}]
",
        dns.address()
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn localhost_needs_no_dns_and_uses_either_address() {
    let silent = Dns::start(Says::Nothing).await;
    for ip in [A, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let upstream = Upstream::at((ip, 0), |_| Reply::ok()).await;
        let gateway = Gateway::start(&format!(
            "resolver: [\"{}\"]
upstream: http://localhost:{}
routes: [{{ suffix: \"*\" }}]
",
            silent.address(),
            upstream.address().port()
        ))
        .await;
        assert_eq!(gateway.get("/").await.status, 200);
        assert_eq!(addresses(&gateway, "up").await, 1.0);
    }
}

// -------------------------------------------------------------------------------------------- names

#[tokio::test(flavor = "multi_thread")]
async fn all_addresses_of_a_name_are_used() {
    let a = Upstream::at((A, 0), |_| Reply::ok()).await;
    let port = a.address().port();
    let b = Upstream::at((B, port), |_| Reply::ok()).await;
    let dns = Dns::start(Says::Addresses(vec![A, B], 60)).await;
    let gateway = named(&dns, port, "").await;
    for _ in 0..20 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    for upstream in [&a, &b] {
        assert!((5..=15).contains(&upstream.calls().len()), "{}", upstream.calls().len());
        assert_eq!(upstream.calls()[0].head.get("host"), Some(&*format!("api.test:{port}")));
    }
    assert_eq!(dns.asked(), 2, "one lookup for all workers, and not again before its time");
}

/// Docker Compose names services so.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_an_underscore_is_looked_up() {
    let upstream = Upstream::at((A, 0), |_| Reply::ok()).await;
    let (port, dns) = (upstream.address().port(), Dns::start(Says::Addresses(vec![A], 60)).await);
    let rest = "routes: [{ suffix: \"*\" }]";
    let yaml =
        format!("upstream: http://stack_api:{port}\nresolver: [\"{}\"]\n{rest}\n", dns.address());
    let gateway = Gateway::start(&yaml).await;
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(upstream.calls()[0].head.get("host"), Some(&*format!("stack_api:{port}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_looked_up_again_after_its_ttl() {
    let a = Upstream::at((A, 0), |_| Reply::ok()).await;
    let port = a.address().port();
    let b = Upstream::at((B, port), |_| Reply::ok()).await;
    // It says 0, which is taken for a second.
    let dns = Dns::start(Says::Addresses(vec![A], 0)).await;
    let gateway = named(&dns, port, "").await;
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!((a.calls().len(), b.calls().len()), (1, 0));
    dns.say(Says::Addresses(vec![B], 60));
    let mut calls = 1;
    eventually("the new address is used", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        calls += 1;
        (b.calls().len() == 1).then_some(())
    })
    .await;
    // The idle connections to the old one are good, and yet not used.
    for _ in 0..20 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert_eq!((a.calls().len(), b.calls().len()), (calls - 1, 21));
}

/// A pool that kept connections to every address that a name ever had would grow with each change of DNS.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_an_address_that_dns_no_longer_names_are_closed() {
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    let a = Upstream::raw(move |mut conn| {
        let counted = counted.clone();
        async move {
            counted.fetch_add(1, Relaxed);
            while let Ok(Some(_)) = conn.request().await {
                if conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() {
                    break;
                }
            }
            counted.fetch_sub(1, Relaxed);
        }
    })
    .await;
    let b = Upstream::at((B, a.address().port()), |_| Reply::ok()).await;
    let dns = Dns::start(Says::Addresses(vec![A], 0)).await;
    let gateway = named(&dns, a.address().port(), ", idle_timeout: 1h").await;
    for _ in 0..10 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert!(open.load(Relaxed) > 0, "connections are kept");
    dns.say(Says::Addresses(vec![B], 60));
    eventually("all of them are closed", async || (open.load(Relaxed) == 0).then_some(())).await;
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(b.calls().len(), 1);
}

#[rstest]
#[case::no_such_name(Says::NoSuchName)]
#[case::failure(Says::Failure)]
#[case::no_address(Says::Addresses(Vec::new(), 60))]
#[case::no_answer(Says::Nothing)]
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_lookup_keeps_the_known_addresses(#[case] then: Says) {
    let upstream = Upstream::ok().await;
    let port = upstream.address().port();
    let dns = Dns::start(Says::Addresses(vec![A], 0)).await;
    let gateway = named(&dns, port, "").await;
    assert_eq!(gateway.get("/").await.status, 200);
    dns.say(then);
    eventually("it is said that the name is not found", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        (said(&gateway, "cannot be resolved") == 1).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/").await.status, 200);
    dns.say(Says::Addresses(vec![A], 0));
    eventually("it is found again", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        (said(&gateway, "resolved again") == 1).then_some(())
    })
    .await;
    assert_eq!(said(&gateway, "cannot be resolved"), 1, "said once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_exist_is_a_502_until_it_does() {
    let upstream = Upstream::ok().await;
    let dns = Dns::start(Says::NoSuchName).await;
    let gateway = named(&dns, upstream.address().port(), "").await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-unreachable"));
    assert_eq!(addresses(&gateway, "up").await, 0.0);
    dns.say(Says::Addresses(vec![A], 60));
    gateway.until_answered("/", 200).await;
    assert_eq!(addresses(&gateway, "up").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dns_server_that_is_silent_costs_no_more_than_a_connect() {
    let upstream = Upstream::ok().await;
    let dns = Dns::start(Says::Nothing).await;
    let gateway = named(&dns, upstream.address().port(), ", connect_timeout: 100ms").await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-unreachable"));
    dns.say(Says::Addresses(vec![A], 60));
    gateway.until_answered("/", 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_address_families_are_looked_up() {
    let upstream = Upstream::at((Ipv6Addr::LOCALHOST, 0), |_| Reply::ok()).await;
    let dns = Dns::start(Says::Addresses(vec![Ipv6Addr::LOCALHOST.into()], 60)).await;
    let gateway = named(&dns, upstream.address().port(), "").await;
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(upstream.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_64_addresses_of_a_name_are_used() {
    let upstream = Upstream::ok().await;
    // As many addresses as a message without extensions holds, for each of three ports.
    let many = (1..=25).map(|n| Ipv4Addr::new(127, 0, 0, n).into()).collect();
    let dns = Dns::start(Says::Addresses(many, 60)).await;
    let ports = [upstream.address().port(), free_port(), free_port()];
    let urls = ports.map(|port| format!("\"http://api.test:{port}\""));
    let gateway = Gateway::start(&format!(
        "resolver: [\"{}\"]
upstreams: {{ vendor: {{ urls: [{}] }} }}
routes: [{{ name: all, suffix: \"*\" }}]
",
        dns.address(),
        urls.join(", ")
    ))
    .await;
    gateway.until_answered("/", 200).await;
    eventually("all are known", async || {
        let all = addresses(&gateway, "up").await + addresses(&gateway, "ejected").await;
        assert!(all <= 64.0, "{all}");
        (all == 64.0).then_some(())
    })
    .await;
}
