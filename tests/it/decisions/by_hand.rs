//! Decisions of the admin side, for programs that want nothing else.

use super::{call, config, post, two_gateways};
use crate::support::{Gateway, Redis, Upstream};
use rstest::rstest;
use serde_json::{Value, json};

async fn delete(gateway: &Gateway, path: &str) -> Value {
    let (status, said) = call(gateway, "DELETE", path, "").await;
    assert_eq!(status, 200, "{said}");
    said
}

const FOUR_KINDS: &str = "limiters:
  all: { rate: 4/hour, burst: 3 }
  shop: { rate: 1/hour, burst: 2, key: \"{header.x-shop}\" }
  places: { algorithm: concurrency, max: 1, lease: 1h }
  idle: { rate: 1/hour, mode: off }
routes: [{ suffix: /search, limiters: [all, idle] }, { suffix: \"*\", limiters: [shop, places] }]
";

async fn four_kinds() -> (Redis, Upstream, Gateway) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&config(&redis, &upstream, FOUR_KINDS)).await;
    (redis, upstream, gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_granted_now_or_later_or_refused_until_an_instant() {
    const QUARTER: f64 = 900_000.0;
    let (_redis, _upstream, gateway) = four_kinds().await;
    let acquire = async |body: Value| post(&gateway, "/limiters/all/acquire", body).await;
    let ms = |said: &Value, key: &str| said[key].as_f64().expect("ms");

    let now = acquire(json!({})).await;
    for (key, value) in [
        ("limiter", json!("all")),
        ("limited", json!(false)),
        ("wait_ms", json!(0.0)),
        ("retry_after_ms", json!(0.0)),
        ("limit", json!(3)),
        ("remaining", json!(2)),
    ] {
        assert_eq!(now[key], value, "{key}");
    }
    assert_eq!(acquire(json!({ "cost": 2 })).await["remaining"], 0);

    let refused = acquire(json!({ "max_wait_ms": 600_000 })).await;
    assert_eq!(refused["limited"], true, "{refused}");
    assert_eq!(refused["wait_ms"], 0.0);
    let retry_after = ms(&refused, "retry_after_ms");
    assert!(retry_after > 0.0 && retry_after <= QUARTER - 600_000.0, "{refused}");

    let later = acquire(json!({ "cost": 2, "max_wait_ms": 3_600_000 })).await;
    assert_eq!(later["limited"], false, "{later}");
    let wait = ms(&later, "wait_ms");
    assert!(wait > QUARTER && wait <= 2.0 * QUARTER, "{later}");
    assert_eq!(gateway.get("/search").await.status, 429, "callers count with programs");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_is_acquired_and_reset_alone() {
    let (_redis, _upstream, gateway) = four_kinds().await;
    let limited = async |key: &str| {
        let body = json!({ "key": key, "cost": 2 });
        post(&gateway, "/limiters/shop/acquire", body).await["limited"] == true
    };
    for key in ["a", "b"] {
        assert!(!limited(key).await, "{key}");
        assert!(limited(key).await, "{key}");
    }
    assert_eq!(delete(&gateway, "/limiters/shop/keys/a").await, json!({ "reset": true }));
    assert_eq!(delete(&gateway, "/limiters/shop/keys/a").await, json!({ "reset": false }));
    assert_eq!(delete(&gateway, "/limiters/shop/keys/c").await, json!({ "reset": false }));
    assert!(limited("b").await, "its neighbour was reset");
    assert!(!limited("a").await, "it is full again");

    assert_eq!(gateway.statuses("/search", 4).await, [200, 200, 200, 429]);
    assert_eq!(delete(&gateway, "/limiters/all").await, json!({ "reset": true }));
    assert_eq!(gateway.statuses("/search", 4).await, [200, 200, 200, 429]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_decision_is_a_problem_and_takes_no_permit() {
    let (redis, _upstream, gateway) = four_kinds().await;
    for (method, path, body, status, hint) in [
        ("POST", "all/acquire", "{", 400, ""),
        ("POST", "all/acquire", "{\"costs\":1}", 422, "costs"),
        ("POST", "all/acquire", "{\"cost\":\"1\"}", 422, "cost"),
        ("POST", "all/acquire", "{\"max_wait_ms\":-1}", 422, "max_wait_ms"),
        ("POST", "none/acquire", "{}", 404, "all, shop, places, idle"),
        ("DELETE", "none", "", 404, "all, shop, places, idle"),
        ("POST", "all/acquire", "{\"cost\":0}", 400, "between 1 and 3"),
        ("POST", "all/acquire", "{\"cost\":-1}", 400, "between 1 and 3"),
        ("POST", "all/acquire", "{\"cost\":4}", 400, "between 1 and 3"),
        ("POST", "places/acquire", "{\"cost\":2}", 400, "between 1 and 1"),
        ("POST", "shop/acquire", "{}", 400, "{header.x-shop}"),
        ("DELETE", "shop", "", 400, "{header.x-shop}"),
        ("POST", "all/acquire", "{\"key\":\"a\"}", 400, "give no key"),
        ("DELETE", "all/keys/a", "", 400, "give no key"),
        ("POST", "all/renew", "{\"lease\":\"1-1\"}", 400, "concurrency"),
        ("POST", "places/renew", "{}", 422, "lease"),
        ("POST", "places/release", "{\"lease\":\"mine\"}", 400, "`acquire` gave"),
    ] {
        let (said, problem) = call(&gateway, method, &format!("/limiters/{path}"), body).await;
        let asked = format!("{method} {path} {body}: {problem}");
        assert_eq!((said, &problem["status"]), (status, &json!(status)), "{asked}");
        assert!(problem["detail"].as_str().expect("a detail").contains(hint), "{asked}");
    }
    assert_eq!(redis.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_taken_renewed_and_released() {
    let (redis, _upstream, gateway) = four_kinds().await;
    let acquire = async || post(&gateway, "/limiters/places/acquire", json!({})).await;
    let with = async |what: &str, lease: &Value| {
        post(&gateway, &format!("/limiters/places/{what}"), json!({ "lease": lease })).await
    };
    let first = acquire().await;
    assert_eq!(first["limited"], false, "{first}");
    assert_eq!(first["lease_ms"], 3_600_000);
    let lease = &first["lease"];
    assert_eq!(with("renew", lease).await, json!({ "renewed": true }));

    let refused = acquire().await;
    assert_eq!((&refused["limited"], &refused["lease"]), (&json!(true), &Value::Null), "{refused}");
    assert_eq!(refused["retry_after_ms"], 1000.0);

    with("release", lease).await;
    assert_eq!(with("renew", lease).await, json!({ "renewed": false }));
    let second = acquire().await;
    assert_eq!(second["limited"], false, "{second}");
    with("release", lease).await;
    assert_eq!(with("renew", &second["lease"]).await, json!({ "renewed": true }));
    with("release", &second["lease"]).await;
    assert_eq!(redis.keys(), [""; 0]);
}

// ------------------------------------------------------------------------------- who shares, who counts, who waits

#[rstest]
#[case::cluster("", [200, 200, 200, 429, 429, 429, 429, 429])]
#[case::instance(", scope: instance", [200, 200, 200, 429, 200, 200, 200, 429])]
#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_a_limiter_unless_its_scope_is_the_instance(
    #[case] scope: &str,
    #[case] expected: [u16; 8],
) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = format!(
        "limiters: {{ search: {{ rate: 1/hour, burst: 3{scope} }} }}
routes: [{{ suffix: /search, limiters: [search] }}]
"
    );
    let [one, other] = two_gateways(&config(&redis, &upstream, &rest)).await;
    let all = [one.statuses("/search", 4).await, other.statuses("/search", 4).await].concat();
    assert_eq!(all, expected);
}
