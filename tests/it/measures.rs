//! The metrics of waits and of upstreams that throttle.

use crate::support::{Gateway, Reply, Upstream, reply};

/// The longest wait of any route decides, so that a wait above the last bound is longer than any route allows.
#[tokio::test(flavor = "multi_thread")]
async fn the_bounds_of_waits_reach_as_far_as_routes_allow() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { it: 1/s }\nroutes:\n\
         - { name: a, suffix: /a, limiters: [it], max_wait: 40s }\n\
         - { name: b, suffix: /b, limiters: [it], max_wait: 1s, max_wait_cap: 10min }\n",
    )
    .await;
    let text = gateway.page("/metrics").await.text();
    let bounds = |start: &str| -> Vec<&str> {
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines
            .map(|line| {
                line.split("le=\"").nth(1).and_then(|le| le.split('"').next()).expect("a bound")
            })
            .collect()
    };
    for route in ["a", "b", "-"] {
        let all = bounds(&format!("paceway_wait_seconds_bucket{{route=\"{route}\""));
        assert!(all.ends_with(&["30", "60", "120", "300", "600", "+Inf"]), "{route}: {all:?}");
    }
    assert!(bounds("paceway_overhead_seconds_bucket").ends_with(&["30", "+Inf"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_the_configuration_takes_for_refusals_count_as_throttled() {
    let upstream = Upstream::start(|call| -> Reply {
        let status = match call.target.split('?').next().unwrap_or_default() {
            "/403" => "403 Forbidden",
            "/429" => "429 Too Many Requests",
            "/500" => "500 Internal Server Error",
            _ => "503 Service Unavailable",
        };
        let fields: &[(&str, &str)] =
            if call.target.contains("retry") { &[("Retry-After", "1")] } else { &[] };
        reply(status, fields, "no")
    })
    .await;
    let both = format!(
        "upstreams:
  vendor: {{ url: \"{0}\" }}
  other: {{ url: \"{0}\", throttle: {{ when: [\"403 with retry-after\"] }} }}
routes: [{{ suffix: \"*\", upstream: vendor }}, {{ suffix: \"*\", name: other, host: other, upstream: other }}]
",
        upstream.url()
    );
    let gateway = Gateway::start(&both).await;
    let mut counts = Vec::new();
    for target in ["/403", "/503", "/500?retry", "/429", "/403?retry", "/503?retry", "/429?retry"] {
        for host in ["gateway", "other"] {
            let mut conn = gateway.connect().await;
            let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            conn.send(head).await.expect("send");
            conn.answer().await.expect("an answer");
        }
        let count = async |upstream| {
            gateway.metric("paceway_upstream_throttled_total", &[("upstream", upstream)]).await
        };
        counts.push((count("vendor").await, count("other").await));
    }
    let expected = [(0, 0), (0, 0), (0, 0), (1, 0), (1, 1), (2, 1), (3, 1)];
    assert_eq!(counts, expected.map(|(vendor, other)| (vendor.into(), other.into())));
}
