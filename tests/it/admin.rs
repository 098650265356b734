//! The admin side as people use it: what it lists, what can be pasted into it, and what it never repeats.

use crate::support::{Cluster, Conn, Gateway, Redis, Upstream, eventually, request};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;

const SECRET: &str = "Bearer hunter2hunter2hunter2hunter2";

/// Makes one call to the admin side, and returns its status and its JSON.
async fn call(
    gateway: &Gateway,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> (u16, String) {
    call_with(gateway, method, path, fields, "").await
}

async fn call_with(
    gateway: &Gateway,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let length = body.len().to_string();
    let mut all = fields.to_vec();
    if !body.is_empty() {
        all.push(("Content-Length", &length));
    }
    let mut conn = Conn::to(gateway.admin).await.expect("connect");
    conn.send(request(method, path, &all) + body).await.expect("send");
    let answer = conn.answer_to(method).await.expect("a whole answer");
    (answer.status, answer.text())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_side_lists_its_pages() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ it: {{ url: {}, accounts: [{{ name: a }}] }} }}\n\
         limiters: {{ it: 1/hour, keyed: {{ rate: 1/hour, key: \"{{header.x-shop}}\" }} }}\n\
         routes: [{{ suffix: \"*\", limiters: [it, keyed] }}]\n",
        upstream.url()
    ))
    .await;
    let (status, text) = call(&gateway, "GET", "/", &[("Accept", "*/*")]).await;
    assert_eq!(status, 200, "{text}");
    let (status, list) = call(&gateway, "GET", "/", &[("Accept", "application/json")]).await;
    assert_eq!(status, 200, "{list}");
    let list = json(&list);
    let pages = list["pages"].as_array().expect("pages");
    for page in pages {
        let path = page["path"].as_str().expect("a path");
        assert!(text.contains(path), "{text}");
        if path == "/events" {
            // Its answer has no end.
            continue;
        }
        let name = if path.contains("keys") { "keyed" } else { "it" };
        let real = path.replace("NAME", name).replace("KEY", "a").replace("ACCOUNT", "a");
        for method in page["methods"].as_array().expect("methods") {
            let method = method.as_str().expect("a method");
            let (status, said) = call(&gateway, method, &real, &[]).await;
            // Without a body `renew` and `release` are wrong calls; there is such a page.
            assert!(![404, 405].contains(&status), "{method} {real}: {status} {said}");
        }
    }
    assert_eq!(pages.len(), 24, "{list}");
    assert_eq!(call(&gateway, "GET", "/none", &[]).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hashed_key_can_be_pasted_and_no_credential_is_repeated() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&format!(
        "store: {{ url: \"{}\", timeout: 2s }}\nupstream: {}\n\
         limiters: {{ it: {{ rate: 1/hour, burst: 3, key: \"{{header.authorization}}\" }} }}\n\
         routes: [{{ suffix: \"*\", limiters: [it] }}]\n",
        redis.url(),
        upstream.url()
    ))
    .await;
    let ask = async || {
        let mut conn = gateway.ask("/", &[("Authorization", SECRET)]).await;
        conn.answer().await.expect("an answer").status
    };
    assert_eq!(ask().await, 200);
    // As typed, with the escapes of a URL.
    let typed = format!("/limiters/it/keys/{}", SECRET.replace(' ', "%20"));
    let (status, said) = call(&gateway, "GET", &typed, &[]).await;
    assert_eq!((status, &json(&said)["level"]), (200, &json!(2)), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    let shown = json(&said)["key"].as_str().expect("a key").to_owned();
    // As the page shows it, and as Redis and the log name the state.
    let states = redis.keys();
    let state = states.iter().find(|key| key.contains(":T:it:")).expect("a state").clone();
    let escaped = state.replace('#', "%23").replace('{', "%7B").replace('}', "%7D");
    for pasted in [&shown, &escaped] {
        let (status, said) =
            call(&gateway, "GET", &format!("/limiters/it/keys/{pasted}"), &[]).await;
        assert_eq!((status, &json(&said)["level"]), (200, &json!(2)), "{pasted}: {said}");
        assert_eq!(json(&said)["key"], *shown);
    }
    let fields = [("Content-Type", "application/json")];
    for (pasted, left) in [(&shown, 1), (&state, 0)] {
        let body = json!({ "key": pasted }).to_string();
        let (_, said) = call_with(&gateway, "POST", "/limiters/it/acquire", &fields, &body).await;
        assert_eq!(json(&said)["remaining"], left, "{pasted}: {said}");
    }
    assert_eq!(ask().await, 429);
    let (_, said) = call(&gateway, "DELETE", &format!("/limiters/it/keys/{shown}"), &[]).await;
    assert_eq!(json(&said), json!({ "reset": true }));
    assert_eq!(ask().await, 200);
    // No client sends what comes after a `#`.
    let (status, said) = call(&gateway, "GET", "/limiters/it/keys/", &[]).await;
    assert!(status == 400 && said.contains("%23"), "{status} {said}");
    // Mistakes with a credential in them.
    for body in [
        json!(SECRET),
        json!({ "key": [SECRET] }),
        json!({ "cost": SECRET }),
        json!({ "key": SECRET, "cost": 99 }),
    ] {
        let body = body.to_string();
        let (status, said) =
            call_with(&gateway, "POST", "/limiters/it/acquire", &fields, &body).await;
        assert!((400..500).contains(&status), "{body}: {status} {said}");
        assert!(!said.contains("hunter2"), "{body}: {said}");
    }
    for page in ["/limiters", "/limiters/it", "/metrics", "/readyz"] {
        let (_, said) = call(&gateway, "GET", page, &[]).await;
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_needs_no_body_but_a_web_page_does() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { it: { rate: 1/hour, burst: 3 } }\nroutes: [{ suffix: \"*\" }]\n",
    )
    .await;
    for (fields, left) in [
        (&[][..], 2),
        (&[("Content-Length", "0")], 1),
        (&[("Content-Type", "application/json"), ("Content-Length", "0")], 0),
    ] {
        let (status, said) = call(&gateway, "POST", "/limiters/it/acquire", fields).await;
        assert_eq!(status, 200, "{fields:?}: {said}");
        assert_eq!(json(&said)["remaining"], left, "{fields:?}: {said}");
    }
    assert_eq!(call(&gateway, "DELETE", "/limiters/it", &[]).await.0, 200);
    let page = [("Origin", "https://elsewhere.example"), ("Content-Length", "0")];
    let (status, said) = call(&gateway, "POST", "/limiters/it/acquire", &page).await;
    assert_eq!(status, 403, "{said}");
    assert_eq!(gateway.limiter("it").await["level"], 3, "it took nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_opens_the_admin_side_and_is_repeated_nowhere() {
    let upstream = Upstream::ok().await;
    let limiter = format!(
        "upstream: {}\nlimiters: {{ it: {{ rate: 1/hour, burst: 3 }} }}\nroutes: [{{ suffix: \"*\" }}]\n",
        upstream.url()
    );
    let admin = "{ listen: \"127.0.0.1:0\", token: hunter2hunter2, read: token }";
    let gateway = Gateway::start(&format!("admin: {admin}\n{limiter}")).await;
    let (right, wrong) = ("Bearer hunter2hunter2", "Bearer hunter2hunter3");
    for (method, path) in [("GET", "/limiters"), ("DELETE", "/limiters/it"), ("GET", "/")] {
        let (status, said) = call(&gateway, method, path, &[("Authorization", wrong)]).await;
        assert_eq!(status, 401, "{method} {path}: {said}");
        let (status, said) = call(&gateway, method, path, &[("Authorization", right)]).await;
        assert_eq!(status, 200, "{method} {path}: {said}");
    }
    for path in ["/metrics", "/healthz", "/readyz"] {
        let (status, said) = call(&gateway, "GET", path, &[]).await;
        assert_eq!(status, 200, "{path}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let mut conn = Conn::to(gateway.admin).await.expect("connect");
    conn.send(request("DELETE", "/limiters/it", &[])).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!(answer.head.all("www-authenticate"), ["Bearer realm=\"paceway\""]);
    let (out, log) = gateway.output();
    assert!(!out.iter().chain(&log).any(|line| line.contains("hunter2")), "{out:?} {log:?}");
    assert!(log.iter().any(|line| line.contains("an admin request is refused")), "{log:?}");

    // Without a token, the names of hosts tell a browser's page from an operator.
    let gateway = Gateway::start(&limiter).await;
    for (host, expected) in [("127.0.0.1:9", 200), ("localhost", 200), ("page.example", 403)] {
        let pages = [("GET", "/limiters", expected), ("GET", "/metrics", 200)];
        for (method, path, expected) in
            pages.into_iter().chain([("DELETE", "/limiters/it", expected)])
        {
            let mut conn = Conn::to(gateway.admin).await.expect("connect");
            let bytes = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            conn.send(bytes).await.expect("send");
            let answer = conn.answer().await.expect("an answer");
            assert_eq!(answer.status, expected, "{method} {host}: {}", answer.text());
        }
    }
}

/// Keys of two limiters in one store, one of which is secret.
#[rstest]
#[case::memory("memory")]
#[case::redis("redis")]
#[case::cluster("cluster")]
#[tokio::test(flavor = "multi_thread")]
async fn the_keys_in_use_are_listed_and_reset(#[case] store: &str) {
    let redis = (store == "redis").then(Redis::start);
    let cluster = match store {
        "cluster" => Some(Cluster::start(3, 0).await),
        _ => None,
    };
    let url = redis.as_ref().map(Redis::url).or(cluster.as_ref().map(Cluster::url));
    let line = url.map_or("memory".into(), |url| format!("{{ url: \"{url}\", timeout: 2s }}"));
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "store: {line}\nupstream: {}\nlimiters:\n  shop: {{ rate: 3/hour, key: \"{{header.x-shop}}\" }}\n  \
         secret: {{ rate: [3/hour, 9/day], key: \"{{header.authorization}}\" }}\n  one: 1000/s\nroutes:\n\
         - {{ suffix: /shop, limiters: [shop, one], max_wait: 1h }}\n\
         - {{ suffix: /secret, limiters: [secret] }}\n",
        upstream.url()
    ))
    .await;
    let list = async |path: &str| {
        let (status, said) = call(&gateway, "GET", path, &[]).await;
        assert_eq!(status, 200, "{path}: {said}");
        json(&said)
    };
    let keys = |list: &Value| -> Vec<(String, i64, u64)> {
        let all = list["keys"].as_array().expect("keys").iter();
        let numbers = |key: &Value| (key["level"].as_i64(), key["waiting"].as_u64());
        all.map(|key| match numbers(key) {
            (Some(level), Some(waiting)) => {
                (key["key"].as_str().expect("a key").into(), level, waiting)
            }
            _ => panic!("{key}"),
        })
        .collect()
    };
    assert_eq!(list("/limiters/shop/keys").await["keys"], json!([]));
    for (shop, count) in [("acme", 1), ("bolt", 2), ("cord", 3)] {
        for _ in 0..count {
            let mut conn = gateway.ask("/shop", &[("X-Shop", shop)]).await;
            assert_eq!(conn.answer().await.expect("an answer").status, 200);
        }
    }
    let key = |shop: &str, level, waiting| (shop.to_owned(), level, waiting);
    let used = list("/limiters/shop/keys?sort=used").await;
    let [acme, bolt, cord] = [key("acme", 2, 0), key("bolt", 1, 0), key("cord", 0, 0)];
    assert_eq!(keys(&used), [cord.clone(), bolt.clone(), acme.clone()], "{used}");
    assert_eq!((&used["examined"], &used["complete"]), (&json!(3), &json!(true)));
    let first = list("/limiters/shop/keys?sort=used&limit=1").await;
    assert_eq!(keys(&first), [cord]);
    // Two requests wait for a key that others have used less.
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(gateway.ask("/shop", &[("X-Shop", "bolt")]).await);
    }
    gateway.until_waiting("/shop", 3).await;
    let first = list("/limiters/shop/keys?limit=1").await;
    assert_eq!(keys(&first)[0].2, 3, "{first}");
    assert_eq!(keys(&first)[0].0, "bolt");
    assert!(first["keys"][0]["next_slot_ms"].as_f64() > Some(0.0), "{first}");
    drop(waiting);
    gateway.until_waiting("/shop", 0).await;

    for token in ["hunter2-a", "hunter2-b"] {
        let mut conn = gateway.ask("/secret", &[("Authorization", token)]).await;
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    let secrets = list("/limiters/secret/keys").await;
    let shown = keys(&secrets);
    assert_eq!(shown.len(), 2, "{secrets}");
    assert!(shown.iter().all(|(key, level, _)| key.starts_with("%23") && *level == 2), "{secrets}");

    let (status, said) = call(&gateway, "DELETE", "/limiters/shop/keys", &[]).await;
    assert_eq!((status, json(&said)), (200, json!({ "reset": 3, "complete": true })));
    assert_eq!(list("/limiters/shop/keys").await["keys"], json!([]));
    assert_eq!(keys(&list("/limiters/secret/keys").await).len(), 2, "another limiter's");
    let mut conn = gateway.ask("/shop", &[("X-Shop", "cord")]).await;
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(call(&gateway, "GET", "/limiters/one/keys", &[]).await.0, 400);
    assert_eq!(call(&gateway, "GET", "/limiters/none/keys", &[]).await.0, 404);
    assert_eq!(call(&gateway, "GET", "/limiters/shop/keys?limit=x", &[]).await.0, 400);
    // A thread of its own writes the log.
    let line = eventually("a line of the log", async || {
        let mut lines = gateway.events().into_iter();
        lines.find(|line| line["message"] == "an operator resets all keys")
    })
    .await;
    assert_eq!((&line["limiter"], &line["by"]), (&json!("shop"), &json!("127.0.0.1")));
}

#[rstest]
#[case::no_page("GET", "/nothing", "", 404)]
#[case::another_method("PUT", "/healthz", "", 405)]
#[case::a_wrong_path("GET", "/limiters/%ff", "", 400)]
#[case::a_wrong_query("GET", "/limiters/it/keys?limit=x", "", 400)]
#[case::no_json("POST", "/limiters/it/acquire", "{", 400)]
#[case::wrong_json("POST", "/limiters/it/acquire", "{\"cost\": \"x\"}", 422)]
#[case::another_type("POST", "/limiters/it/release", "lease=1", 415)]
#[case::too_large("POST", "/limiters/it/release", "LARGE", 413)]
#[tokio::test(flavor = "multi_thread")]
async fn every_error_of_the_admin_side_is_a_problem(
    #[case] method: &str,
    #[case] path: &str,
    #[case] body: &str,
    #[case] status: u16,
) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { it: { rate: 1/hour, key: \"{client_ip}\" } }\n\
         routes: [{ suffix: \"*\", limiters: [it] }]\n",
    )
    .await;
    let body = if body == "LARGE" { format!("\"{}\"", "x".repeat(3 << 20)) } else { body.into() };
    let length = body.len().to_string();
    let mut fields = vec![("Content-Length", &*length)];
    fields.extend((status != 415).then_some(("Content-Type", "application/json")));
    let answer = gateway.admin_request(request(method, path, &fields) + &body).await;
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    assert_eq!(answer.json()["status"], status);
    assert!(answer.json()["detail"].as_str().is_some_and(|detail| detail.len() > 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_uploads_to_the_admin_side_do_not_hide_its_health() {
    let upstream = Upstream::ok().await;
    let gateway =
        Gateway::before(&upstream, "limiters: { it: 1/hour }\nroutes: [{ suffix: \"*\" }]\n").await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut conn = Conn::to(gateway.admin).await.expect("connect");
        let fields = [("Content-Type", "application/json"), ("Content-Length", "99")];
        let head = request("POST", "/limiters/it/acquire", &fields);
        conn.send(head + "{").await.expect("send");
        slow.push(conn);
    }
    // Each has a byte more now and then, so that no pause between two bytes is long.
    let drip = tokio::spawn(async move {
        loop {
            for conn in &mut slow {
                let _ = conn.send(" ").await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    // A page may take 30 s, and so may the body that it reads.
    for _ in 0..3 {
        let asked = tokio::time::timeout(Duration::from_secs(15), gateway.page("/healthz"));
        assert_eq!(asked.await.expect("an answer in time").status, 200);
    }
    drip.abort();
}
