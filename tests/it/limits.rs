//! The calls that a limiter lets through, seen from both ends: the answers that callers get, and the arrivals at the
//! upstream.

mod several;
mod waiting;

use crate::support::{
    Answer, Conn, Gateway, PATIENCE, Redis, Said, Upstream, assert_lawful, faketime, request,
};
use rstest::rstest;
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A store and one upstream; routes and limiters follow.
fn config(redis: Option<&Redis>, upstream: &Upstream, rest: &str) -> String {
    let store = redis.map_or("memory".into(), |redis| stored_at(&redis.url()));
    format!("store: {store}\nupstream: {}\n{rest}", upstream.url())
}

/// A machine that stalls for a moment is not what these tests are about.
fn stored_at(url: &str) -> String {
    format!("{{ url: \"{url}\", timeout: 2s }}")
}

/// Answers to these requests, all sent before the first is awaited.
async fn all_at_once(gateways: &[Gateway], count: usize) -> Vec<Answer> {
    let mut conns = Vec::new();
    for gateway in gateways.iter().cycle().take(count) {
        conns.push(gateway.connect().await);
    }
    for conn in &mut conns {
        conn.send(request("GET", "/search", &[])).await.expect("send");
    }
    answers(conns).await
}

async fn answers(conns: Vec<Conn>) -> Vec<Answer> {
    let ask = |mut conn: Conn| tokio::spawn(async move { conn.answer().await });
    let tasks: Vec<_> = conns.into_iter().map(ask).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("task").expect("a whole answer"));
    }
    answers
}

fn with_status(answers: &[Answer], status: u16) -> Vec<&Answer> {
    answers.iter().filter(|answer| answer.status == status).collect()
}

const TWENTY: &str = "limiters: { search: { rate: 20/s, burst: 5 } }
routes: [{ suffix: /search, limiters: [search], max_wait: 500ms }]
";

/// Sends 60 requests where 5 pass at once and 10 within their budget, and sends them again where fewer passed: a machine that
/// stalls for more than 100 ms makes calls late, and these get later slots, beyond their budgets.
async fn sixty_at_once(gateways: &[Gateway], upstream: &Upstream) {
    for _ in 0..5 {
        if pass_of_sixty(gateways, upstream).await >= 15 {
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("fewer than 15 passed each time");
}

/// The first request is sent before the others: a budget counts from a request's arrival, and one that arrives while the first
/// is on its way to the store does not reach as far as the 15th slot.
async fn pass_of_sixty(gateways: &[Gateway], upstream: &Upstream) -> usize {
    let (started, before) = (Instant::now(), upstream.calls().len());
    let mut all = vec![gateways[0].get("/search").await];
    all.extend(all_at_once(gateways, 59).await);

    let (passed, refused) = (with_status(&all, 200), with_status(&all, 429));
    assert_eq!(passed.len() + refused.len(), 60, "{all:?}");
    assert_eq!(passed.len(), upstream.calls().len() - before);
    let decided = |answer: &Answer| answer.at - Duration::from_secs_f64(answer.held_ms() / 1000.0);
    let last_decision = all.iter().map(decided).max().expect("60");
    let span = (last_decision - started).as_secs_f64();
    let most = 5.0 + 20.0 * (span + 0.5);
    assert!(passed.len() as f64 <= most, "{} passed in {span} s", passed.len());
    assert_lawful(started, &upstream.arrivals(), 5.0, 20.0);

    for answer in &passed {
        assert_eq!(answer.text(), "ok");
    }
    for answer in &refused {
        assert_refused(answer);
    }
    // At once: the half of them that came first were there when the last slot had not come.
    let mut at: Vec<_> = refused.iter().map(|answer| answer.at).collect();
    at.sort();
    let last_passed = passed.iter().map(|answer| answer.at).max().expect("15");
    assert!(at[at.len() / 2] < last_passed, "refusals waited for the slots of others");
    passed.len()
}

/// The headers and the problem that every 429 of a limiter of 20 a second carries.
fn assert_refused(answer: &Answer) {
    assert_eq!(answer.problem(), "quota-exceeded");
    let problem = answer.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], json!(["search"]));
    let millis = problem["retry_after_ms"].as_u64().expect("whole ms");
    let seconds: u64 = answer.field("retry-after").expect("it").parse().expect("whole seconds");
    assert_eq!(seconds, millis.div_ceil(1000).max(1), "{problem}");
    assert_eq!(answer.field("ratelimit"), Some(&*format!("\"search\";r=0;t={seconds}")));
    assert_eq!(answer.field("ratelimit-policy"), Some("\"search\";q=20;w=1"));
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn fifteen_of_sixty_requests_pass_one_gateway(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, TWENTY)).await;
    sixty_at_once(&[gateway], &upstream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_of_sixty_requests_pass_three_gateways() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let config = config(Some(&redis), &upstream, TWENTY);
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(Gateway::start(&config).await);
    }
    sixty_at_once(&gateways, &upstream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_of_sixty_requests_pass_gateways_with_different_clocks() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let config = config(Some(&redis), &upstream, TWENTY);
    let mut gateways = Vec::new();
    for shift in ["-2s", "+0s", "+2s"] {
        gateways.push(Gateway::start_with(&config, &faketime(shift)).await);
    }
    // That the shift works is seen in the logs: the last gateway started last, and says so by 4 s too much.
    let at = |gateway: &Gateway| -> f64 {
        let events = gateway.events();
        let text = events[0]["timestamp"].as_str().expect("a timestamp").to_owned();
        let clock = text[11..].trim_end_matches('Z').split(':');
        clock.fold(0.0, |all, part| all * 60.0 + part.parse::<f64>().expect("a number"))
    };
    // Within one day.
    let apart = (at(&gateways[2]) - at(&gateways[0])).rem_euclid(86_400.0);
    assert!((4.0..34.0).contains(&apart), "the clocks are {apart} s apart");
    sixty_at_once(&gateways, &upstream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_of_sixty_requests_pass_while_functions_are_flushed() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let config = config(Some(&redis), &upstream, TWENTY);
    let gateways = [Gateway::start(&config).await, Gateway::start(&config).await];
    let loads = redis.calls_of("function|load");
    let redis = std::sync::Arc::new(redis);
    let flushed = redis.clone();
    let flush = tokio::spawn(async move {
        loop {
            flushed.command(&["FUNCTION", "FLUSH"]);
            sleep(Duration::from_millis(1)).await;
        }
    });
    sixty_at_once(&gateways, &upstream).await;
    flush.abort();
    assert!(redis.calls_of("function|load") > loads, "no flush came between");
    for gateway in &gateways {
        let errors = gateway.metric("paceway_store_errors_total", &[]).await;
        assert_eq!(errors, 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_leaves_the_key_byte_for_byte() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { search: { rate: 1/min, burst: 2 } }
routes: [{ suffix: /search, limiters: [search], max_wait: 1s }]
";
    let gateway = Gateway::start(&config(Some(&redis), &upstream, rest)).await;
    for _ in 0..2 {
        assert_eq!(gateway.get("/search").await.status, 200);
    }
    let key = "paceway:{search}:T:search";
    assert_eq!(redis.keys(), [key]);
    let state = || (redis.bytes(key), redis.command(&["PTTL", key]));
    let (before, ttl) = state();
    let writes = redis.calls_of("set");
    assert!(writes > 0);
    for _ in 0..20 {
        assert_eq!(gateway.get("/search").await.status, 429);
    }
    let (after, ttl_after) = state();
    assert_eq!(before, after);
    assert_eq!(redis.calls_of("set"), writes, "nor is it written again as it was");
    let millis = |said| match said {
        Said::Number(millis @ 1..) => millis,
        said => panic!("no time to live but {said:?}"),
    };
    assert!(millis(ttl_after) <= millis(ttl), "a refusal made the key live longer");
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_at_retry_after_passes(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: { rate: 20/15s, burst: 1 } }
routes:
  - { suffix: /now, limiters: [search] }
  - { suffix: /soon, limiters: [search], max_wait: 300ms }
";
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, rest)).await;
    for target in ["/now", "/soon", "/now"] {
        // Takes whatever is there, then is alone.
        let refused = gateway.until_answered(target, 429).await;
        let wait = refused.json()["retry_after_ms"].as_u64().expect("ms");
        assert!((1..=750).contains(&wait), "{wait} ms");
        let asked_again = gateway.get(target).await;
        if asked_again.status == 429 {
            let again = asked_again.json()["retry_after_ms"].as_u64().expect("ms");
            assert!(again <= wait, "who asks too early comes no later: {wait} ms, then {again} ms");
        }
        sleep(Duration::from_millis(wait)).await;
        assert_eq!(gateway.get(target).await.status, 200, "after {wait} ms on {target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_comes_at_once() {
    let upstream = Upstream::ok().await;
    // The second slot is an hour away: a refusal that waits in vain would take 20 minutes.
    let rest = "limiters: { search: { rate: 1/hour } }
routes: [{ suffix: /search, limiters: [search], max_wait: 20min }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let refused = gateway.get("/search").await;
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.field("retry-after").expect("it").parse().expect("seconds");
    assert!((2390..=2400).contains(&seconds), "an hour less 20 minutes, not {seconds} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_together_share_a_script_call() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "workers: 1
limiters: { search: { rate: 1/hour, burst: 300 } }
routes: [{ suffix: /search, limiters: [search] }]
";
    let gateway = [Gateway::start(&config(Some(&redis), &upstream, rest)).await];
    let calls = || redis.calls_of("fcall");
    let before = calls();
    let all = all_at_once(&gateway, 200).await;
    assert_eq!(with_status(&all, 200).len(), 200);
    let calls = calls() - before;
    assert!((1..=100).contains(&calls), "{calls} script calls for 200 requests");
    assert_eq!(gateway[0].limiter("search").await["level"], 100);
}

#[rstest]
#[case::list(&["RPUSH", KEY, "x"])]
#[case::text(&["SET", KEY, "garbage"])]
#[case::text_as_long_as_a_state(&["SET", KEY, "garbage garbage garbage garbage garbage garbage ga"])]
#[case::empty(&["SET", KEY, ""])]
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_harms_its_own_limiter_only(#[case] command: &[&str]) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { mine: 100/day, other: 100/day, free: 100/day }
routes:
  - { suffix: /mine, limiters: [mine, other] }
  - { suffix: /other, limiters: [other] }
  - { suffix: /free, limiters: [free] }
";
    let gateway = Gateway::start(&config(Some(&redis), &upstream, rest)).await;
    redis.command(command);
    for _ in 0..3 {
        let answer = gateway.get("/mine").await;
        assert_eq!((answer.status, answer.problem().as_str()), (503, "store-unavailable"));
        assert_eq!(gateway.get("/other").await.status, 200);
        assert_eq!(gateway.get("/free").await.status, 200);
    }
    let labels = [("kind", "foreign")];
    assert!(gateway.metric("paceway_store_errors_total", &labels).await >= 3.0);
    assert_eq!(gateway.limiter("other").await["level"], 97, "nothing was taken for nothing");
    redis.command(&["DEL", KEY]);
    assert_eq!(gateway.get("/mine").await.status, 200);
    assert_eq!(gateway.limiter("mine").await["level"], 99);
}

/// The key of the limiter `mine` in a group with `other`, which is named after its first limiter in the alphabet.
const KEY: &str = "paceway:{mine}:T:mine";

#[tokio::test(flavor = "multi_thread")]
async fn keys_expire_with_their_state_and_carry_the_prefix() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&format!(
        "store: {{ url: \"{}\", prefix: shop, timeout: 2s }}
upstream: {}
limiters: {{ a: {{ rate: 1/100s, burst: 3 }} }}
routes: [{{ suffix: /a, limiters: [a] }}]
",
        redis.url(),
        upstream.url()
    ))
    .await;
    for _ in 0..2 {
        assert_eq!(gateway.get("/a").await.status, 200);
    }
    assert_eq!(redis.keys(), ["shop:{a}:T:a"]);
    let Said::Number(millis) = redis.command(&["PTTL", "shop:{a}:T:a"]) else {
        panic!("no time to live")
    };
    let full_again = 200_000 - i64::try_from(PATIENCE.as_millis()).expect("small");
    assert!((full_again..=210_000).contains(&millis), "full in 200 s, forgotten in {millis} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_do_not_delay_other_requests() {
    let upstream = Upstream::ok().await;
    let rest = "workers: 1
limiters: { slow: 1/hour, fast: 1000/s }
routes:
  - { name: slow, suffix: /slow, limiters: [slow], max_wait: 1h }
  - { name: fast, suffix: /fast, limiters: [fast] }
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/slow").await.status, 200);
    let waiting = gateway.ask("/slow", &[]).await;
    gateway.until_waiting("slow", 1).await;
    let fast = timeout(PATIENCE, gateway.get("/fast")).await.expect("in time");
    assert_eq!(fast.status, 200);
    drop(waiting);
}

/// A header that `Connection` nominates is not forwarded, so it is no key either (RFC 9110, 7.6.1).
#[tokio::test(flavor = "multi_thread")]
async fn a_nominated_header_is_no_key() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { shop: { rate: 1/hour, key: \"{header.x-shop}\" } }\n\
         routes: [{ suffix: \"*\", limiters: [shop] }]\n",
    )
    .await;
    for (i, expected) in [200, 429, 429].into_iter().enumerate() {
        let shop = format!("s{i}");
        let fields = [("X-Shop", shop.as_str()), ("Connection", "x-shop")];
        let mut conn = gateway.ask("/", &fields).await;
        assert_eq!(conn.answer().await.expect("an answer").status, expected);
    }
    assert_eq!(upstream.calls().len(), 1);
}

/// The reading of an origin may not be the one that the gateway is led to.
#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_chooses_a_route_without_the_limiter() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { search: 1/hour }\nroutes:\n\
         - { suffix: /search, limiters: [search] }\n- { suffix: /public/health }\n",
    )
    .await;
    assert_eq!(gateway.get("/search").await.status, 200);
    for path in ["/public/health;/../../../search", "/a/search/public/health//..//.."] {
        let answer = gateway.get(path).await;
        assert!([400, 404, 429].contains(&answer.status), "{path}: {answer:?}");
    }
    // An escaped slash may be one, and then this is `/search`.
    assert_eq!(gateway.get("/public/health;%2f..%2f..%2fsearch").await.status, 429);
    assert_eq!(gateway.get("/v2%2fsearch").await.status, 404);
}
