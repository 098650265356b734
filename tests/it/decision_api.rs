//! The service that decides calls of programs: what it gives, what comes back, and what it refuses.

mod document;

use crate::support::{Answer, Conn, Gateway, Redis, eventually, request, service_address};
use rstest::rstest;
use serde_json::{Value, json};
use std::net::SocketAddr;

const CONFIG: &str = "upstream: http://127.0.0.1:9\nroutes: [{ suffix: '*' }]\nlimiters:\n\
    \x20 search: 5/s\n  slow: { rate: 1/min, burst: 1 }\n  shop: { rate: 10/h, burst: 10, key: \"{header.x-shop}\" }\n\
    \x20 tokens: { rate: 100/h, burst: 100 }\n  off: { rate: 1/h, mode: \"off\" }\n\
    \x20 few: { algorithm: concurrency, max: 1, lease: 1h }\n";

/// A gateway with the service of these settings, and the address of the service.
async fn service(settings: &str) -> (Gateway, SocketAddr) {
    let services = format!("services: {{ decisions: {{ listen: 127.0.0.1:0{settings} }} }}\n");
    let gateway = Gateway::start(&(services + CONFIG)).await;
    let address = service_address(&gateway, "decisions");
    (gateway, address)
}

async fn send(address: SocketAddr, path: &str, body: &str, fields: &[(&str, &str)]) -> Conn {
    let mut conn = Conn::to(address).await.expect("connect");
    let length = body.len().to_string();
    let own = [("Content-Type", "application/json"), ("Content-Length", &*length)];
    let fields: Vec<_> = own.iter().chain(fields).copied().collect();
    conn.send(request("POST", path, &fields) + body).await.expect("send");
    conn
}

async fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    let mut conn = send(address, path, &body.to_string(), &[]).await;
    conn.answer().await.expect("a whole answer")
}

/// The decision on a call.
async fn acquire(address: SocketAddr, body: Value) -> Value {
    let answer = post(address, "/v1/acquire", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The permits of one limiter, now or not at all.
async fn take(address: SocketAddr, limiter: &str, cost: u64) -> Value {
    acquire(address, json!({ "limiters": [{ "limiter": limiter, "cost": cost }] })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_takes_permits_of_all_limiters_or_none() {
    let (gateway, address) = service("").await;
    let both = |cost: u64| {
        json!({ "limiters": [
        { "limiter": "tokens", "cost": cost }, { "limiter": "shop", "key": "acme", "cost": 6 },
    ] })
    };
    let first = acquire(address, both(60)).await;
    assert_eq!((&first["limited"], &first["wait_ms"]), (&json!(false), &json!(0.0)), "{first}");
    let refused = acquire(address, both(30)).await;
    assert_eq!(
        (&refused["limited"], &refused["limiter"]),
        (&json!(true), &json!("shop")),
        "{refused}"
    );
    // The time until the 2 permits that are missing at 10/h are there.
    let after = refused["retry_after_ms"].as_f64().expect("a number");
    assert!((700_000.0..=720_000.0).contains(&after), "{refused}");
    assert!(refused.get("reservation").is_none(), "{refused}");
    // Nothing of `tokens` was taken for it.
    assert_eq!(take(address, "tokens", 40).await["limited"], false);
    let nothing = take(address, "off", 1).await;
    assert_eq!((&nothing["limited"], nothing.get("reservation")), (&json!(false), None));
    let of = |outcome| [("route", "decisions"), ("service", "decisions"), ("outcome", outcome)];
    assert_eq!(gateway.metric("paceway_requests_total", &of("passed")).await, 3.0);
    assert_eq!(gateway.metric("paceway_requests_total", &of("refused")).await, 1.0);
    let line = gateway.line("/v1/acquire").await;
    assert_eq!((&line["service"], &line["route"]), (&json!("decisions"), &json!("decisions")));
}

/// The store in memory locked the part of the first limiter for all of them, so that each of the others had a state in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_has_one_state_at_any_place_in_a_call() {
    let (gateway, address) = service(", max_wait: 1min").await;
    // Each shop is in a part of its own.
    let with = |shop: u32, limiter: &str, wait: u64| {
        let first = json!({ "limiter": "shop", "key": format!("shop{shop}") });
        let limiters = [first, json!({ "limiter": limiter })];
        json!({ "limiters": limiters, "wait": wait > 0, "max_wait_ms": wait })
    };
    let mut held = Vec::new();
    for (limiter, most) in [("few", 1), ("slow", 1)] {
        for shop in 0..30 {
            let said = acquire(address, with(shop, limiter, 0)).await;
            held.extend((said["limited"] == false).then_some(said));
        }
        let alone = take(address, limiter, 1).await;
        assert_eq!((held.len(), &alone["limited"]), (most, &json!(true)), "{limiter}: {alone}");
        if limiter == "few" {
            let permit = json!({ "limiter": "few", "lease": held[0]["lease"] });
            let wait = tokio::spawn(async move { acquire(address, with(40, "few", 50_000)).await });
            gateway.until_waiting("decisions", 1).await;
            assert_eq!(post(address, "/v1/release", &permit).await.json()["released"], true);
            // It waited for the end of the lease, an hour.
            assert_eq!(wait.await.expect("a task")["limited"], false);
        }
        held.clear();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_calls_at_once_wait_for_their_slots() {
    let (gateway, address) = service("").await;
    let body = json!({ "limiters": [{ "limiter": "search" }], "wait": true, "max_wait_ms": 2000 });
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let body = body.clone();
            tokio::spawn(async move {
                let answer = post(address, "/v1/acquire", &body).await;
                (answer.at, answer.json())
            })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("a task"));
    }
    let of = |limited: bool| answers.iter().filter(move |(_, answer)| answer["limited"] == limited);
    assert!((15..=16).contains(&of(false).count()), "{answers:?}");
    let last = of(false).map(|(at, _)| *at).max().expect("answers");
    assert!(of(true).all(|(at, _)| *at < last), "{answers:?}");
    assert!(of(false).all(|(_, answer)| answer["wait_ms"] == 0.0), "{answers:?}");
    let held = of(false).filter(|(_, answer)| answer["waited_ms"].as_f64() > Some(0.0)).count();
    assert!(held >= 10, "{answers:?}");
    let waited = [("route", "decisions"), ("service", "decisions"), ("outcome", "waited")];
    assert_eq!(gateway.metric("paceway_requests_total", &waited).await, held as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_wait_gets_its_slot_and_a_cancelled_one_returns_it() {
    let (gateway, address) = service(", max_wait: 10min").await;
    assert_eq!(take(address, "slow", 1).await["limited"], false);
    let slow = |wait: bool| {
        json!({
            "limiters": [{ "limiter": "slow" }], "wait": wait, "max_wait_ms": 3_600_000,
        })
    };
    let mut waiting = Vec::new();
    for count in 1..=3 {
        waiting.push(send(address, "/v1/acquire", &slow(true).to_string(), &[]).await);
        gateway.until_waiting("decisions", count).await;
    }
    let told = acquire(address, slow(false)).await;
    let wait = told["wait_ms"].as_f64().expect("a number");
    assert!((180_000.0..=240_000.0).contains(&wait), "{told}");
    let back = json!({ "reservation": told["reservation"] });
    assert_eq!(post(address, "/v1/refund", &back).await.json(), json!({ "refunded": true }));
    drop(waiting);
    gateway.until_waiting("decisions", 0).await;
    let next = eventually("the slots return", async || {
        let state = gateway.limiter("slow").await;
        state["next_slot_ms"].as_f64().filter(|next| *next <= 60_000.0)
    });
    assert!(next.await > 0.0);
    let left = [("route", "decisions"), ("service", "decisions"), ("outcome", "cancelled")];
    gateway.until_metric("paceway_requests_total", &left, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_refunded_once_and_never_above_the_limit() {
    let (gateway, address) = service("").await;
    let all = take(address, "tokens", 100).await;
    assert_eq!(take(address, "tokens", 1).await["limited"], true);
    let settle = |cost: i64| {
        json!({
            "reservation": all["reservation"], "limiters": [{ "limiter": "tokens", "cost": cost }],
        })
    };
    // A mistake changes nothing.
    let other = json!({
        "reservation": all["reservation"], "limiters": [{ "limiter": "search", "cost": 1 }],
    });
    assert_eq!(post(address, "/v1/settle", &other).await.status, 400);
    assert_eq!(post(address, "/v1/settle", &settle(-1)).await.status, 400);
    let reload = async |config: &str| {
        gateway.rewrite(&format!("services: {{ decisions: {{ listen: 127.0.0.1:0 }} }}\n{config}"));
        assert_eq!(gateway.reload().await.status, 200);
    };
    // A reload keeps it, as it was taken: without a key.
    reload(&CONFIG.replace("burst: 100 }", "burst: 100, key: '{header.x-shop}' }")).await;
    let mut of_a_key = settle(30);
    of_a_key["limiters"][0]["key"] = "acme".into();
    assert_eq!(post(address, "/v1/settle", &of_a_key).await.status, 400);
    let settled = post(address, "/v1/settle", &settle(30)).await.json();
    let exact = json!([{ "limiter": "tokens", "refunded": 70, "owed": 0 }]);
    assert_eq!(settled, json!({ "settled": true, "limiters": exact }));
    reload(CONFIG).await;
    // Whatever it says now, nothing more comes back.
    for _ in 0..2 {
        assert_eq!(post(address, "/v1/settle", &settle(0)).await.json()["settled"], false);
        let back = json!({ "reservation": all["reservation"] });
        assert_eq!(post(address, "/v1/refund", &back).await.json(), json!({ "refunded": false }));
    }
    for forged in ["", "0", "00000000000000000000000000000000", "é"] {
        let back = json!({ "reservation": forged });
        assert_eq!(post(address, "/v1/refund", &back).await.json(), json!({ "refunded": false }));
    }
    let rest = take(address, "tokens", 70).await;
    assert_eq!((&rest["limited"], &rest["remaining"]), (&json!(false), &json!(0)), "{rest}");
    let owed = json!({
        "reservation": rest["reservation"], "limiters": [{ "limiter": "tokens", "cost": 75 }],
    });
    assert_eq!(post(address, "/v1/settle", &owed).await.json()["limiters"][0]["owed"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrency_permit_is_renewed_and_released_and_a_call_waits_for_it() {
    let (gateway, address) = service("").await;
    let few = |wait: bool| {
        json!({
            "limiters": [{ "limiter": "few" }, { "limiter": "search" }], "wait": wait, "max_wait_ms": 20_000,
        })
    };
    let first = acquire(address, few(false)).await;
    assert_eq!(
        (&first["limited"], &first["lease_ms"]),
        (&json!(false), &json!(3_600_000)),
        "{first}"
    );
    assert_eq!(acquire(address, few(false)).await["limited"], true);
    let permit = json!({ "limiter": "few", "lease": first["lease"] });
    assert_eq!(post(address, "/v1/renew", &permit).await.json(), json!({ "renewed": true }));
    let waiting = tokio::spawn(async move { acquire(address, few(true)).await });
    gateway.until_waiting("decisions", 1).await;
    assert_eq!(post(address, "/v1/release", &permit).await.json(), json!({ "released": true }));
    let second = waiting.await.expect("a task");
    assert_eq!(second["limited"], false, "{second}");
    assert_eq!(post(address, "/v1/renew", &permit).await.json(), json!({ "renewed": false }));
    // A refund ends the permit, too.
    let back = json!({ "reservation": second["reservation"] });
    assert_eq!(post(address, "/v1/refund", &back).await.json(), json!({ "refunded": true }));
    eventually("the permit is free", async || {
        (acquire(address, few(false)).await["limited"] == false).then_some(())
    })
    .await;
}

/// Two gateways share one quota through Redis. A reservation is in the gateway that gave it, a concurrency permit in both.
#[tokio::test(flavor = "multi_thread")]
async fn permits_survive_two_gateways_and_a_restart() {
    let redis = Redis::start();
    let yaml = format!(
        "services: {{ decisions: 127.0.0.1:0 }}\nstore: {{ url: \"{}\", timeout: 2s }}\n{CONFIG}",
        redis.url()
    );
    let (mut first, second) = (Gateway::start(&yaml).await, Gateway::start(&yaml).await);
    let own = service_address(&first, "decisions");
    let other = service_address(&second, "decisions");
    let given = take(own, "tokens", 60).await;
    assert_eq!(take(other, "tokens", 60).await["limited"], true);
    let back = json!({ "reservation": given["reservation"] });
    assert_eq!(post(other, "/v1/refund", &back).await.json(), json!({ "refunded": false }));
    let held = take(own, "few", 1).await;
    assert_eq!(take(other, "few", 1).await["limited"], true);
    first.signal("KILL");
    first.end().await;
    let permit = json!({ "limiter": "few", "lease": held["lease"] });
    assert_eq!(post(other, "/v1/renew", &permit).await.json(), json!({ "renewed": true }));
    assert_eq!(post(other, "/v1/release", &permit).await.json(), json!({ "released": true }));
    eventually("the permit is free", async || {
        (take(other, "few", 1).await["limited"] == false).then_some(())
    })
    .await;
    // The permits of the reservation count as used.
    assert_eq!(take(other, "tokens", 50).await["limited"], true);
    assert_eq!(take(other, "tokens", 40).await["limited"], false);
}

#[rstest]
#[case::no_json("/v1/acquire", "{", 400)]
#[case::nothing("/v1/acquire", "", 400)]
#[case::no_limiters("/v1/acquire", r#"{"limiters": []}"#, 400)]
#[case::too_many(
    "/v1/acquire",
    r#"{"limiters": [{"limiter":"shop","key":"1"},{"limiter":"shop","key":"2"},{"limiter":"shop","key":"3"},
    {"limiter":"shop","key":"4"},{"limiter":"shop","key":"5"},{"limiter":"shop","key":"6"},{"limiter":"shop","key":"7"},
    {"limiter":"shop","key":"8"},{"limiter":"shop","key":"9"}]}"#,
    400
)]
#[case::twice("/v1/acquire", r#"{"limiters": [{"limiter":"search"},{"limiter":"search"}]}"#, 400)]
#[case::unknown("/v1/acquire", r#"{"limiters": [{"limiter":"serch"}]}"#, 400)]
#[case::no_key("/v1/acquire", r#"{"limiters": [{"limiter":"shop"}]}"#, 400)]
#[case::a_key_too_many("/v1/acquire", r#"{"limiters": [{"limiter":"search","key":"a"}]}"#, 400)]
#[case::too_expensive("/v1/acquire", r#"{"limiters": [{"limiter":"tokens","cost":101}]}"#, 400)]
#[case::free("/v1/acquire", r#"{"limiters": [{"limiter":"tokens","cost":0}]}"#, 400)]
#[case::a_cost_of_a_call("/v1/acquire", r#"{"limiters": [{"limiter":"few","cost":2}]}"#, 400)]
#[case::misspelt("/v1/acquire", r#"{"limiters": [{"limiter":"search"}], "max_wait": 5}"#, 400)]
#[case::no_lease("/v1/renew", r#"{"limiter":"few","lease":"x"}"#, 400)]
#[case::no_permit("/v1/release", r#"{"limiter":"search","lease":"1-1"}"#, 400)]
#[case::no_path("/v2/acquire", r#"{"limiters": [{"limiter":"search"}]}"#, 404)]
#[tokio::test(flavor = "multi_thread")]
async fn refuses_invalid_calls(#[case] path: &str, #[case] body: &str, #[case] status: u16) {
    let (_gateway, address) = service("").await;
    let answer = send(address, path, body, &[]).await.answer().await.expect("a whole answer");
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    if body.contains("serch") {
        assert!(answer.text().contains("did you mean `search`?"), "{}", answer.text());
    }
}

/// An error has the words of JSON and of the configuration, whatever the gateway is written in.
#[rstest]
#[case::names("/v1/acquire", r#"{"limiters": ["search"]}"#, "each entry is a map")]
#[case::one_name("/v1/acquire", r#"{"limiters": "search"}"#, "`limiters` is a list of maps")]
#[case::a_list("/v1/acquire", r#"[7]"#, "the body is a map")]
#[case::of_settle(
    "/v1/settle",
    r#"{"reservation": "r", "limiters": ["search"]}"#,
    "each entry is a map"
)]
#[case::a_text(
    "/v1/acquire",
    r#"{"limiters": [{"limiter":"search"}], "max_wait_ms": "hunter2"}"#,
    "`max_wait_ms`: invalid type: string \"***\", expected a whole number"
)]
#[case::a_fraction(
    "/v1/acquire",
    r#"{"limiters": [{"limiter":"search","cost":1.5}]}"#,
    "`limiters[0].cost`: invalid type: floating point `1.5`, expected a whole number"
)]
#[case::a_number("/v1/renew", r#"{"limiter":"shop","key":5}"#, "`key`: invalid type: integer `5`")]
#[case::no_switch(
    "/v1/acquire",
    r#"{"limiters": [{"limiter":"search"}], "wait": 1}"#,
    "expected `true` or `false`"
)]
#[case::unknown(
    "/v1/acquire",
    r#"{"limiters": [{"limiter":"nosuch"}]}"#,
    "the configuration has no limiter `nosuch`"
)]
#[case::unknown_to_renew(
    "/v1/renew",
    r#"{"limiter":"nosuch","lease":"1-1"}"#,
    "the configuration has no limiter `nosuch`"
)]
#[case::a_credential_for_a_name(
    "/v1/acquire",
    r#"{"limiters": [{"limiter":"Bearer hunter2"}]}"#,
    "`limiter` is no name of a limiter"
)]
#[case::no_key("/v1/acquire", r#"{"limiters": [{"limiter":"shop"}]}"#, "`shop`: this limiter has")]
#[case::no_key_to_renew(
    "/v1/renew",
    r#"{"limiter":"shop","lease":"1-1"}"#,
    "`shop`: this limiter has"
)]
#[case::no_lease(
    "/v1/release",
    r#"{"limiter":"search","lease":"1-1"}"#,
    "`search`: only a concurrency limiter has leases"
)]
#[case::too_expensive(
    "/v1/acquire",
    r#"{"limiters": [{"limiter":"tokens","cost":101}]}"#,
    "`tokens`: `cost` must be between 1 and 100"
)]
#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_the_limiter_and_what_to_write(
    #[case] path: &str,
    #[case] body: &str,
    #[case] words: &str,
) {
    let (_gateway, address) = service("").await;
    let answer = send(address, path, body, &[]).await.answer().await.expect("a whole answer");
    let detail = answer.json()["detail"].as_str().expect("a reason").to_owned();
    assert!(answer.status == 400 && detail.contains(words), "{detail}");
    for secret_or_type in ["hunter2", "struct", "i64", "u64", "sequence"] {
        assert!(!detail.contains(secret_or_type), "{detail}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_authorised_programs_take_permits() {
    let body = r#"{"limiters": [{"limiter": "search"}]}"#;
    let (_gateway, address) = service(", token: hunter2").await;
    for (token, status) in [("hunter2", 200), ("hunter", 401)] {
        let mut conn = send(address, "/v1/acquire", body, &[("Paceway-Token", token)]).await;
        assert_eq!(conn.answer().await.expect("a whole answer").status, status, "{token}");
    }
    // Without a token no web page may: neither by another name of this address, nor without asking first.
    let (_gateway, address) = service("").await;
    let length = body.len().to_string();
    for fields in [
        [("Host", "evil.example"), ("Content-Type", "application/json")],
        [("Host", "127.0.0.1"), ("Content-Type", "text/plain")],
    ] {
        let head: String =
            fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut conn = Conn::to(address).await.expect("connect");
        let call =
            format!("POST /v1/acquire HTTP/1.1\r\n{head}Content-Length: {length}\r\n\r\n{body}");
        conn.send(call).await.expect("send");
        assert_eq!(conn.answer().await.expect("a whole answer").status, 400, "{head}");
    }
    let large = format!("{{\"limiters\": [{{\"limiter\": \"{}\"}}]}}", "x".repeat(17 << 10));
    let mut conn = send(address, "/v1/acquire", &large, &[]).await;
    assert_eq!(conn.answer().await.expect("a whole answer").status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_waiting_calls_is_bounded() {
    let (gateway, address) = service(", max_waiting: 1").await;
    let slow = json!({ "limiters": [{ "limiter": "search", "cost": 5 }], "wait": true, "max_wait_ms": 9000 });
    assert_eq!(acquire(address, slow.clone()).await["limited"], false);
    let waiting = send(address, "/v1/acquire", &slow.to_string(), &[]).await;
    gateway.until_waiting("decisions", 1).await;
    let full = post(address, "/v1/acquire", &slow).await;
    assert_eq!((full.status, full.problem().as_str()), (503, "queue-full"));
    assert!(full.field("retry-after").is_some());
    drop(waiting);
}
