//! The data of the dashboard: its figures are those of the requests that were sent and of the other pages, its stream follows
//! the gateway, and its viewers are bounded.

use crate::support::{Conn, Gateway, Redis, Upstream, eventually, request};
use serde_json::{Value, json};

/// As many viewers as a gateway has places for.
const MOST: usize = 16;

/// A browser's question for the page.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

/// Follows the gateway; `Err` has the status of a refusal.
async fn follow(gateway: &Gateway) -> Result<Conn, String> {
    let mut conn = Conn::to(gateway.admin).await.expect("connect");
    conn.send(request("GET", "/events", &[])).await.expect("send");
    let head = conn.head().await.expect("a head").expect("an answer");
    if !head.start.contains(" 200 ") {
        return Err(head.start);
    }
    assert_eq!(head.get("content-type"), Some("text/event-stream"));
    Ok(conn)
}

/// The next picture of a stream.
async fn next(viewer: &mut Conn) -> Value {
    let text = viewer.until("\n\n").await.expect("an event");
    let (name, data) = text.trim_end().split_once("\ndata: ").expect("data");
    assert!(name.ends_with("event: status"), "{name}");
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
}

fn named<'v>(list: &'v Value, name: &str) -> &'v Value {
    let all = list.as_array().expect("a list");
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_match_the_requests() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters:\n\
         \x20 few: { rate: 2/hour }\n\
         \x20 shop: { rate: 1/min, burst: 1, key: \"{header.x-shop}\" }\n\
         \x20 secret: { rate: 1/hour, key: \"{header.authorization}\" }\n\
         routes:\n\
         - { name: few, suffix: /few, limiters: [few] }\n\
         - { name: shop, suffix: /shop, limiters: [shop], max_wait: 10min }\n\
         - { name: secret, suffix: /secret, limiters: [secret] }\n",
    )
    .await;
    for expected in [200, 200, 429, 429, 429] {
        assert_eq!(gateway.get("/few").await.status, expected);
    }
    let mut conns = Vec::new();
    for shop in ["acme", "acme", "acme", "bolt", "bolt"] {
        conns.push(gateway.ask("/shop", &[("X-Shop", shop)]).await);
    }
    for _ in 0..2 {
        let mut conn = gateway.ask("/secret", &[("Authorization", "Bearer hunter2")]).await;
        conn.answer().await.expect("an answer");
    }
    let status = eventually("three requests wait, and a tick has counted the others", async || {
        let status = gateway.page("/status").await.json();
        let refused = &named(&status["routes"], "few")["last_15_min"]["refused"];
        (status["waiting"] == 3 && *refused == 3).then_some(status)
    })
    .await;
    // The panels, one by one.
    let limiters = gateway.page("/limiters").await.json();
    for limiter in limiters["limiters"].as_array().expect("limiters") {
        let shown = named(&status["limiters"], limiter["name"].as_str().expect("a name"));
        for field in ["algorithm", "limit", "rate", "mode", "waiting", "level", "key"] {
            assert_eq!(shown[field], limiter[field], "{field}");
        }
    }
    let shop = named(&status["limiters"], "shop");
    assert_eq!((&shop["promised"], &shop["waiting"]), (&json!(3), &json!(3)));
    let last = shop["last_slot_ms"].as_f64().expect("a slot");
    assert!((60_000.0..120_001.0).contains(&last), "{last}");
    let keys: Vec<_> = status["keys"].as_array().expect("keys").iter().collect();
    let said: Vec<_> = keys.iter().map(|key| (&key["key"], &key["waiting"])).collect();
    assert_eq!(said, [(&json!("acme"), &json!(2)), (&json!("bolt"), &json!(1))]);
    let few = named(&status["routes"], "few");
    let counted = json!({ "requests": 5, "waited": 0, "refused": 3, "failed": 0 });
    assert_eq!((&few["last_15_min"], &few["waiting"]), (&counted, &json!(0)));
    assert_eq!(named(&status["routes"], "shop")["waiting"], 3);
    let upstreams = &status["upstreams"][0];
    assert_eq!(upstreams["last_15_min"]["answers"], upstream.calls().len());
    assert_eq!(upstreams["addresses"][0]["state"], "up", "{upstreams}");
    // The newest request comes first, and a credential is a hash. Those of /shop and /secret come at the same time.
    let requests = status["requests"].as_array().expect("requests");
    assert_eq!(requests.len(), 3 + 3 + 1, "{requests:?}");
    let [later @ .., _, _, first] = &requests[..] else { panic!("{requests:?}") };
    let (held, others): (Vec<_>, Vec<_>) =
        later.iter().partition(|request| request["decision"] == "held");
    let [secret] = others[..] else { panic!("{requests:?}") };
    assert_eq!((&secret["decision"], &secret["limiter"]), (&json!("refused"), &json!("secret")));
    assert!(secret["key"].as_str().is_some_and(|key| key.starts_with("%23")), "{secret}");
    assert!(!status.to_string().contains("hunter2"));
    let mut keys: Vec<_> = held.iter().filter_map(|request| request["key"].as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["acme", "acme", "bolt"]);
    for request in held {
        assert!(request["wait_ms"].as_f64().is_some_and(|wait| wait > 59_000.0), "{request}");
    }
    let retry = first["retry_after_ms"].as_f64().expect("a time");
    assert!((1_700_000.0..=1_800_000.0).contains(&retry), "{first}");
    assert_eq!((&first["route"], &first["decision"]), (&json!("few"), &json!("refused")));
    // The points of a chart add up to the sums beside them.
    let page = gateway.page("/routes").await.json();
    let few = named(&page["routes"], "few");
    for kind in ["requests", "refused"] {
        let points = few["points"][kind].as_array().expect("points");
        assert_eq!(points.len() as u64, page["tick"].as_u64().expect("a tick"));
        let sum: u64 = points.iter().filter_map(Value::as_u64).sum();
        assert_eq!(few["last_15_min"][kind], sum);
    }
    assert_eq!(gateway.page("/requests").await.json()["requests"], status["requests"]);
    let page = gateway.page("/upstreams").await.json();
    assert_eq!(page["upstreams"][0]["addresses"], upstreams["addresses"]);
    assert_eq!(gateway.page("/access").await.json()["may_change"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_see_the_same_pictures_and_are_bounded() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 2s }}\nupstream: {}\nlimiters: {{ it: 5/hour }}\n\
         routes: [{{ suffix: \"*\", limiters: [it] }}]\n",
        redis.url(),
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let other = Gateway::start(&yaml).await;
    let mut viewers = Vec::new();
    for _ in 0..MOST {
        viewers.push(follow(&gateway).await.expect("a stream"));
    }
    let refused = follow(&gateway).await.err().expect("a refusal");
    assert!(refused.contains(" 503 "), "{refused}");
    // The first event of a viewer may be the one before its time; from then on all see the same ones.
    let mut seen = Vec::new();
    for viewer in &mut viewers {
        let mut own = Vec::new();
        for _ in 0..3 {
            own.push(next(viewer).await["at"].as_str().expect("an instant").to_owned());
        }
        seen.push(own);
    }
    let common = &seen[0].last().expect("events").clone();
    for (viewer, own) in viewers.iter_mut().zip(&mut seen) {
        while own.last().is_some_and(|last| last < common) {
            own.push(next(viewer).await["at"].as_str().expect("an instant").to_owned());
        }
        assert!(own.contains(common), "{own:?} without {common}");
    }
    // A request is in a later picture, with the reload.
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(gateway.reload().await.status, 200);
    let viewer = &mut viewers[0];
    let picture = eventually("a picture shows both", async || {
        let picture = next(viewer).await;
        let level = &named(&picture["limiters"], "it")["level"];
        (*level == 4 && !picture["config"]["reloads"][0].is_null()).then_some(picture)
    })
    .await;
    assert_eq!(
        (&picture["store"]["kind"], &picture["store"]["breaker"]),
        (&json!("redis"), &json!("closed"))
    );
    assert_eq!(picture["store"]["up"], true);
    let reload = &picture["config"]["reloads"][0];
    assert_eq!((&reload["ok"], &reload["hash"]), (&json!(true), &picture["config"]["hash"]));
    // Each gateway knows the other one.
    for gateway in [&gateway, &other] {
        let all = eventually("both describe themselves", async || {
            let mut status = gateway.page("/status").await.json();
            let all = status["gateways"].take();
            (all.as_array().is_some_and(|all| all.len() == 2)).then_some(all)
        })
        .await;
        let all = all.as_array().expect("gateways");
        assert_eq!(all.iter().filter(|one| one["is_this"] == true).count(), 1, "{all:?}");
        assert!(all.iter().all(|one| one["host"] == all[0]["host"] && one["waiting"] == 0));
    }
    // The place of a viewer that has left is free.
    drop(viewers.pop());
    let mut next_one = eventually("a place is free", async || follow(&gateway).await.ok()).await;
    next(&mut next_one).await;
    // Others are served although half of the connections never end.
    assert_eq!(gateway.page("/readyz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_loads_no_foreign_resources() {
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.url());
    let gateway = Gateway::start(&yaml).await;
    let ask = async |path: &str| {
        gateway.admin_request(request("GET", path, &[("Accept", BROWSER)])).await
    };
    let page = ask("/").await;
    assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.field("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    // Every file that the page and its modules name is served with its type.
    let mut wanted = vec!["/assets/main.js".to_owned()];
    let mut known = Vec::new();
    let text = page.text();
    wanted.extend(text.split('"').filter(|part| part.starts_with("/assets/")).map(str::to_owned));
    while let Some(path) = wanted.pop() {
        if known.contains(&path) {
            continue;
        }
        let file = ask(&path).await;
        assert_eq!(
            (file.status, file.field("x-content-type-options")),
            (200, Some("nosniff")),
            "{path}"
        );
        let text = file.text();
        assert!(!text.contains("https://") && !text.contains("innerHTML"), "{path}");
        let names = text.split('"').filter_map(|part| part.strip_prefix("./"));
        wanted.extend(names.map(|name| format!("/assets/{name}")));
        known.push(path);
    }
    assert!(known.len() > 10, "{known:?}");
    assert_eq!(ask("/assets/none.js").await.status, 404);
    // curl gets the list of pages.
    let list = gateway.page("/").await;
    assert!(list.text().contains("/limiters/NAME/override"), "{}", list.text());
}
