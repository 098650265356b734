//! A gateway's life as its operator sees it: pages, metrics, lines, and the way down.

mod lines;
mod stop;

use crate::support::{Answer, Conn, Gateway, Redis, Reply, Upstream, paceway_in, request};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    process::{Command, Stdio},
};

/// A connection to the admin side, which takes no new ones during a drain.
async fn operator(gateway: &Gateway) -> Conn {
    let mut conn = Conn::to(gateway.admin).await.expect("connect");
    assert_eq!(page(&mut conn, "/readyz").await.status, 200);
    conn
}

async fn page(operator: &mut Conn, path: &str) -> Answer {
    operator.send(request("GET", path, &[])).await.expect("send");
    operator.answer().await.expect("a page")
}

// ---------------------------------------------------------------------------------------- the way down

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_do_not_share_a_port() {
    let upstream = Upstream::ok().await;
    let rest = format!("upstream: {}\nroutes: [{{ suffix: \"*\" }}]\nworkers: 2\n", upstream.url());
    let first = Gateway::start(&rest).await;
    let dir = tempfile::tempdir().expect("a directory");
    let yaml = format!("listen: {}\nadmin: 127.0.0.1:0\n{rest}", first.listen);
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    let second = paceway_in(dir.path(), &["run"], &[]);
    let err = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{err}");
    let last = err.lines().last().expect("a message");
    assert!(last.contains("`listen`") && last.contains(&first.listen.to_string()), "{last}");
    for _ in 0..10 {
        assert_eq!(first.get("/").await.status, 200);
    }
}

// ------------------------------------------------------------------------------------------- the pages

/// A gateway with a Redis that has seen one request of each kind, and an observing limiter beside.
async fn after_traffic(redis: &Redis, upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(&format!(
        "store: {{ url: \"{}\", timeout: 2s }}
upstreams: {{ vendor: \"{}\" }}
limiters:
  account: {{ rate: 1/200ms, burst: 2 }}
  day: 5/day
  seen: {{ rate: 1/day, mode: observe }}
  idle: {{ rate: 1/s, mode: off }}
routes:
  - {{ name: search, suffix: /search, limiters: [account], max_wait: 20s }}
  - {{ name: strict, suffix: /strict, limiters: [day, seen] }}
  - {{ name: throttled, suffix: /throttled }}
  - {{ name: odd \"name\\\\, suffix: /odd }}
",
        redis.url(),
        upstream.url()
    ))
    .await;
    let conns = [gateway.ask("/search", &[]).await, gateway.ask("/search", &[]).await];
    let mut third =
        gateway.ask("/search?key=hunter2", &[("Authorization", "Bearer hunter3")]).await;
    for mut conn in conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(third.answer().await.expect("an answer").status, 200);
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(gateway.get("/strict").await.status, status);
    }
    assert_eq!(gateway.get("/throttled").await.status, 429);
    assert_eq!(gateway.get("/odd").await.status, 200);
    for i in 0..20 {
        let target = format!("/nowhere/{i}?key=hunter2");
        let mut conn = gateway.connect().await;
        let host =
            format!("M{i} {target} HTTP/1.1\r\nHost: host-{i}.example\r\nX-Key: k{i}\r\n\r\n");
        conn.send(host).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 404);
    }
    gateway
}

async fn vendor() -> Upstream {
    Upstream::start(|call| match call.target.as_str() {
        "/throttled" => crate::support::reply("429 Too Many Requests", &[], ""),
        _ => Reply::ok(),
    })
    .await
}

type Labels = [(&'static str, &'static str)];

/// The metrics of the contract that have a meaning now, with their types and labels.
pub(crate) const METRICS: [(&str, &str, &[&str]); 49] = [
    ("paceway_granted_permits_total", "counter", &["limiter"]),
    ("paceway_limiter_wait_seconds", "histogram", &["limiter"]),
    ("paceway_limiter_rate", "gauge", &["limiter"]),
    ("paceway_limiter_capacity", "gauge", &["limiter"]),
    ("paceway_limiter_period_seconds", "gauge", &["limiter"]),
    ("paceway_max_wait_seconds", "gauge", &["route"]),
    ("process_cpu_seconds_total", "counter", &[]),
    ("process_resident_memory_bytes", "gauge", &[]),
    ("process_virtual_memory_bytes", "gauge", &[]),
    ("process_threads", "gauge", &[]),
    ("process_start_time_seconds", "gauge", &[]),
    ("paceway_requests_total", "counter", &["outcome", "route"]),
    ("paceway_decisions_total", "counter", &["decision", "limiter", "source"]),
    ("paceway_late_wakeups_total", "counter", &["limiter"]),
    ("paceway_wait_seconds", "histogram", &["priority", "route"]),
    ("paceway_waiting", "gauge", &["route"]),
    ("paceway_limiter_available", "gauge", &["limiter"]),
    ("paceway_limiter_paused", "gauge", &["limiter"]),
    ("paceway_pauses_total", "counter", &["limiter"]),
    ("paceway_retries_total", "counter", &["result", "upstream"]),
    ("paceway_settled_permits_total", "counter", &["direction", "limiter"]),
    ("paceway_upstream_requests_total", "counter", &["status", "upstream"]),
    ("paceway_upstream_seconds", "histogram", &["upstream"]),
    ("paceway_upstream_throttled_total", "counter", &["upstream"]),
    ("paceway_upstream_addresses", "gauge", &["state", "upstream"]),
    ("paceway_upstream_ejections_total", "counter", &["upstream"]),
    ("paceway_upstream_health_checks_total", "counter", &["result", "upstream"]),
    ("paceway_overhead_seconds", "histogram", &[]),
    ("paceway_connections", "gauge", &["protocol"]),
    ("paceway_connections_refused_total", "counter", &["reason"]),
    ("paceway_store_seconds", "histogram", &[]),
    ("paceway_store_errors_total", "counter", &["kind"]),
    ("paceway_store_block_permits_total", "counter", &["fate"]),
    ("paceway_store_losses_total", "counter", &[]),
    ("paceway_store_clock_set_back_seconds", "gauge", &[]),
    ("paceway_store_up", "gauge", &[]),
    ("paceway_store_breaker_state", "gauge", &[]),
    ("paceway_store_gateways", "gauge", &[]),
    ("paceway_store_round_trip_seconds", "gauge", &[]),
    ("paceway_store_timeout_seconds", "gauge", &[]),
    ("paceway_tunnels", "gauge", &["route"]),
    ("paceway_tasks", "gauge", &[]),
    ("paceway_log_lines_dropped_total", "counter", &["stream"]),
    ("process_max_fds", "gauge", &[]),
    ("process_open_fds", "gauge", &[]),
    ("paceway_config_reloads_total", "counter", &["result"]),
    ("paceway_config_loaded_timestamp_seconds", "gauge", &[]),
    ("paceway_config_info", "gauge", &["hash"]),
    ("paceway_build_info", "gauge", &["version"]),
];

/// The metrics that appear only with the keys that they are for, such as `tracing`.
pub(crate) const OPTIONAL_METRICS: [&str; 18] = [
    "paceway_account_requests_total",
    "paceway_account_moves_total",
    "paceway_account_parked",
    "paceway_saved_permits_total",
    "paceway_limiter_used_up_seconds",
    "paceway_limiter_reset_seconds",
    "paceway_store_states",
    "paceway_trace_spans_total",
    "paceway_certificate_expiry_timestamp_seconds",
    "paceway_limits_from_up",
    "paceway_limits_from_errors_total",
    "paceway_limits_from_loaded_timestamp_seconds",
    "paceway_limits_from_rows",
    "paceway_limits_from_invalid_rows",
    "paceway_limits_from_missing_limiters",
    "paceway_rates_from_up",
    "paceway_rates_from_rows",
    "paceway_rates_from_invalid_rows",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_match_the_documented_list_and_pass_promtool() {
    let (redis, upstream) = (Redis::start(), vendor().await);
    let gateway = after_traffic(&redis, &upstream).await;
    let page = gateway.page("/metrics").await;
    assert_eq!(page.status, 200);
    let text = page.text();

    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let promtool = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut promtool = promtool.expect("promtool, which `make test` installs");
    let mut stdin = promtool.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("write");
    drop(stdin);
    let verdict = promtool.wait_with_output().expect("its verdict");
    let complaints = String::from_utf8_lossy(&verdict.stderr);
    assert!(verdict.status.success() && complaints.is_empty(), "{complaints}\n{text}");

    let mut found = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a type");
        found.insert(name, (kind, BTreeSet::new()));
    }
    let mut values = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, labels) = labels(line);
        let base = ["_bucket", "_sum", "_count"];
        let base = base.iter().find_map(|end| found.get_mut(name.strip_suffix(end)?).map(|_| end));
        let name = base.map_or(name, |end| name.strip_suffix(end).expect("seen above"));
        let (_, own) = found.get_mut(name).unwrap_or_else(|| panic!("no type of {line}"));
        for (label, value) in labels.into_iter().filter(|(label, _)| label != "le") {
            own.insert(label.clone());
            values.insert((label, value));
        }
    }
    let expected: BTreeMap<_, _> = METRICS
        .into_iter()
        .map(|(name, kind, labels)| {
            (name, (kind, labels.iter().map(|&label| label.to_owned()).collect::<BTreeSet<_>>()))
        })
        .collect();
    assert_eq!(found, expected);
    for (name, ..) in METRICS {
        assert!(text.contains(&format!("# HELP {name} ")), "no help on {name}");
    }

    let closed: [(&str, &[&str]); 17] = [
        ("route", &["search", "strict", "throttled", "odd \\\"name\\\\", "-"]),
        (
            "outcome",
            &[
                "passed",
                "waited",
                "observed",
                "refused",
                "throttled",
                "paused",
                "queue_full",
                "draining",
                "no_route",
                "bad_request",
                "store_unavailable",
                "limiter_missing",
                "upstream_failed",
                "cancelled",
            ],
        ),
        (
            "result",
            &[
                "ok",
                "error",
                "answered",
                "throttled",
                "failed",
                "no_slot",
                "exhausted",
                "not_repeatable",
                "cancelled",
                "passed",
            ],
        ),
        ("limiter", &["account", "day", "seen", "idle"]),
        ("decision", &["pass", "wait", "refuse", "would_pass", "would_wait", "would_refuse"]),
        ("source", &["shared", "local", "none"]),
        ("direction", &["refund", "debt"]),
        ("priority", &["normal"]),
        ("upstream", &["vendor"]),
        ("state", &["up", "ejected"]),
        ("status", &["200", "429"]),
        ("kind", &["timeout", "unreachable", "refused", "protocol", "foreign"]),
        ("protocol", &["http1", "http2", "tunnel"]),
        (
            "reason",
            &["limit", "address", "tls", "proxy_protocol", "header_timeout", "stalled", "http2"],
        ),
        ("stream", &["stdout", "stderr"]),
        ("fate", &["used", "lapsed"]),
        ("version", &[env!("CARGO_PKG_VERSION")]),
    ];
    let closed: BTreeMap<_, _> = closed.into_iter().collect();
    // A file has one hash at a time.
    assert_eq!(values.iter().filter(|(label, _)| label == "hash").count(), 1);
    for (label, value) in values.iter().filter(|(label, _)| label != "hash") {
        assert!(closed[label.as_str()].contains(&value.as_str()), "{label}=\"{value}\"");
    }
}

/// Splits a line of the metrics into the name and the labels of its series.
fn labels(line: &str) -> (&str, Vec<(String, String)>) {
    let (series, _) = line.rsplit_once(' ').expect("a value");
    let Some((name, rest)) = series.split_once('{') else { return (series, Vec::new()) };
    let labels = rest.strip_suffix("\"}").expect("the end of the labels").split("\",");
    let pair = |pair: &str| {
        let (label, value) = pair.split_once("=\"").expect("a label");
        (label.to_owned(), value.to_owned())
    };
    (name, labels.map(pair).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_count_what_happened() {
    let (redis, upstream) = (Redis::start(), vendor().await);
    let gateway = after_traffic(&redis, &upstream).await;
    let counted = [
        ("strict", "passed", 1.0),
        ("strict", "observed", 4.0),
        ("strict", "refused", 1.0),
        ("throttled", "passed", 1.0),
        ("-", "no_route", 20.0),
        ("search", "cancelled", 0.0),
    ];
    for (route, outcome, count) in counted {
        assert_eq!(gateway.count(route, outcome).await, count, "{route} {outcome}");
    }
    let searches =
        gateway.count("search", "passed").await + gateway.count("search", "waited").await;
    assert_eq!(searches, 3.0);
    let expected: [(&str, &Labels, f64); 11] = [
        ("paceway_decisions_total", &[("limiter", "day"), ("decision", "pass")], 5.0),
        ("paceway_decisions_total", &[("limiter", "day"), ("decision", "refuse")], 1.0),
        ("paceway_decisions_total", &[("limiter", "seen"), ("decision", "would_pass")], 1.0),
        ("paceway_decisions_total", &[("limiter", "seen"), ("decision", "would_refuse")], 4.0),
        ("paceway_limiter_available", &[("limiter", "day")], 0.0),
        ("paceway_upstream_requests_total", &[("upstream", "vendor"), ("status", "200")], 9.0),
        ("paceway_upstream_requests_total", &[("upstream", "vendor"), ("status", "429")], 1.0),
        ("paceway_upstream_throttled_total", &[("upstream", "vendor")], 1.0),
        ("paceway_upstream_seconds_count", &[("upstream", "vendor")], 10.0),
        ("paceway_wait_seconds_count", &[("route", "search")], 3.0),
        ("paceway_store_up", &[], 1.0),
    ];
    for (name, labels, value) in expected {
        assert_eq!(gateway.metric(name, labels).await, value, "{name} {labels:?}");
    }
    // One for each of the 30 answers, and a store call for no more than were asked.
    assert_eq!(gateway.metric("paceway_overhead_seconds_count", &[]).await, 31.0);
    assert!(gateway.metric("paceway_store_seconds_count", &[]).await >= 1.0);
}

/// The store keeps a state for each key that a limiter has seen. With Redis there is no such series, as the list of the
/// contract says.
#[tokio::test(flavor = "multi_thread")]
async fn the_states_of_the_memory_store_are_counted() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters:
  caller: { rate: 5/d, key: \"{header.x-key}\" }
routes: [{ suffix: \"*\", limiters: [caller] }]
",
    )
    .await;
    assert_eq!(gateway.metric("paceway_store_states", &[]).await, 0.0);
    for key in ["one", "two", "three", "two"] {
        let mut answer = gateway.ask("/", &[("X-Key", key)]).await;
        assert_eq!(answer.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(gateway.metric("paceway_store_states", &[]).await, 3.0);
    let text = gateway.page("/metrics").await.text();
    assert!(text.contains("# HELP paceway_store_states ") && text.contains("memory store"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_show_health_and_state() {
    let (redis, upstream) = (Redis::start(), vendor().await);
    let gateway = after_traffic(&redis, &upstream).await;
    assert_eq!(gateway.page("/healthz").await.status, 200);
    let ready = gateway.page("/readyz").await;
    let (status, mut ready) = (ready.status, ready.json());
    let round_trip = ready["store"]["round_trip_ms"].take();
    assert!(round_trip.as_f64().is_some_and(|ms| ms > 0.0), "{round_trip}");
    let store = json!({
        "breaker": "closed",
        "gateways": 1,
        "decided_by": "the store",
        "round_trip_ms": null,
        "timeout_ms": 2000.0,
        "functions": "library",
    });
    let config = ready["config"].take();
    let hash = config["hash"].as_str().expect("the hash of the file");
    assert!(hash.len() == 16 && config["loaded"].is_string(), "{config}");
    let expected = json!({ "ready": true, "reasons": [], "store": store, "config": null });
    assert_eq!((status, ready), (200, expected));
    assert_eq!(gateway.page("/nothing").await.status, 404);

    let all = gateway.page("/limiters").await.json();
    assert_eq!(all["limiting"], true);
    let names: Vec<_> =
        all["limiters"].as_array().expect("a list").iter().map(|l| &l["name"]).collect();
    assert_eq!(names, ["account", "day", "seen", "idle"]);
    let day = gateway.limiter("day").await;
    for (key, value) in [
        ("algorithm", json!("token_bucket")),
        ("rate", json!("5/d")),
        ("burst", json!(5)),
        ("mode", json!("enforce")),
        ("waiting", json!(0)),
        ("level", json!(0)),
    ] {
        assert_eq!(day[key], value, "{key}");
    }
    let fifth_of_a_day = 86_400_000.0 / 5.0;
    let next = day["next_slot_ms"].as_f64().expect("ms");
    assert!(next > 0.0 && next <= fifth_of_a_day, "{day}");
    let reset = day["reset_ms"].as_f64().expect("ms");
    assert!(reset > 4.0 * fifth_of_a_day && reset <= 5.0 * fifth_of_a_day, "{day}");
    assert_eq!(gateway.limiter("seen").await["mode"], "observe");
    assert_eq!(gateway.limiter("idle").await["mode"], "off");
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_the_pages_changes_nothing() {
    let (redis, upstream) = (Redis::start(), vendor().await);
    let gateway = after_traffic(&redis, &upstream).await;
    let key = "paceway:{day}:T:day";
    let before = redis.bytes(key);
    for _ in 0..10 {
        for page in ["/limiters", "/metrics", "/readyz"] {
            assert_eq!(gateway.page(page).await.status, 200);
        }
    }
    assert_eq!(redis.bytes(key), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_side_serves_no_callers_and_the_data_side_no_pages() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(&upstream, "routes: [{ suffix: /search }]\n").await;
    assert_eq!(gateway.page("/search").await.status, 404);
    assert_eq!(gateway.get("/metrics").await.status, 404);
    assert_eq!(upstream.calls().len(), 0);
}
