//! The calls that a limiter lets through, seen from both ends: the answers that callers get, and the arrivals at the
//! upstream.

use crate::support::{
    Answer, Chaos, Conn, Gateway, PATIENCE, Redis, Said, Upstream, assert_lawful, eventually,
    faketime, free_port, request,
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
        conns.push(Conn::to(gateway.listen).await.expect("connect"));
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

/// Sends 60 requests where 5 pass at once and 10 within their budget. The first is sent before the others: a budget counts
/// from a request's arrival, and one that arrives while the first is on its way to the store does not reach as far as the
/// 15th slot.
async fn sixty_at_once(gateways: &[Gateway], upstream: &Upstream) {
    let started = Instant::now();
    let mut all = vec![gateways[0].get("/search").await];
    all.extend(all_at_once(gateways, 59).await);

    let (passed, refused) = (with_status(&all, 200), with_status(&all, 429));
    assert_eq!(passed.len() + refused.len(), 60, "{all:?}");
    assert_eq!(passed.len(), upstream.calls().len());
    let decided = |answer: &Answer| answer.at - Duration::from_secs_f64(answer.held_ms() / 1000.0);
    let last_decision = all.iter().map(decided).max().expect("60");
    let span = (last_decision - started).as_secs_f64();
    let most = 5.0 + 20.0 * (span + 0.5);
    assert!(passed.len() >= 15, "only {} passed", passed.len());
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
    assert_eq!(answer.field("server-timing"), None);
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn of_sixty_at_once_fifteen_pass_one_gateway(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, TWENTY)).await;
    sixty_at_once(&[gateway], &upstream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixty_at_once_fifteen_pass_three_gateways() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let config = config(Some(&redis), &upstream, TWENTY);
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(Gateway::start(&config).await);
    }
    sixty_at_once(&gateways, &upstream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixty_at_once_fifteen_pass_gateways_whose_clocks_differ_by_seconds() {
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
async fn of_sixty_at_once_fifteen_pass_while_scripts_are_flushed() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let config = config(Some(&redis), &upstream, TWENTY);
    let gateways = [Gateway::start(&config).await, Gateway::start(&config).await];
    let redis = std::sync::Arc::new(redis);
    let flushed = redis.clone();
    let flush = tokio::spawn(async move {
        loop {
            flushed.command(&["SCRIPT", "FLUSH"]);
            sleep(Duration::from_millis(1)).await;
        }
    });
    sixty_at_once(&gateways, &upstream).await;
    flush.abort();
    // More often than the once that each connection loads it.
    assert!(redis.calls_of("eval") > 0, "no flush came between");
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
async fn retry_after_is_true(#[case] redis: Option<Redis>) {
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
async fn a_refusal_does_not_wait_for_its_budget() {
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
    let calls = || redis.calls_of("evalsha") + redis.calls_of("eval");
    let before = calls();
    let all = all_at_once(&gateway, 200).await;
    assert_eq!(with_status(&all, 200).len(), 200);
    let calls = calls() - before;
    assert!((1..=100).contains(&calls), "{calls} script calls for 200 requests");
    assert_eq!(gateway[0].limiter("search").await["level"], 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_callers_who_left_go_to_callers_who_came_later() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { search: { rate: 10/s, burst: 5 } }
routes: [{ suffix: /search, limiters: [search], max_wait: 4s }]
";
    let config = config(Some(&redis), &upstream, rest);
    let gateways = [Gateway::start(&config).await, Gateway::start(&config).await];
    let ask = async |count: usize, target: &str| {
        let mut conns = Vec::new();
        for gateway in gateways.iter().cycle().take(count) {
            conns.push(gateway.ask(target, &[]).await);
        }
        conns
    };
    let decisions = async |count: usize| {
        eventually("as many decisions as requests", async || {
            let mut all = 0.0;
            for gateway in &gateways {
                all += gateway.metric("paceway_decisions_total", &[]).await;
            }
            (all as usize == count).then_some(())
        })
        .await;
    };

    // 5 pass at once; the last of the others has its slot after 3.5 s.
    let started = Instant::now();
    let seconds = || started.elapsed().as_secs_f64();
    let mut stayers = ask(14, "/stay/search").await;
    let leavers = ask(12, "/leave/search").await;
    stayers.extend(ask(14, "/stay/search").await);
    decisions(40).await;
    let all_decided = seconds();

    let leave = seconds();
    drop(leavers);
    let left = eventually("they are seen to leave", async || {
        let lines = gateways.iter().flat_map(Gateway::access);
        let lines: Vec<_> = lines.filter(|line| line["path"] == "/leave/search").collect();
        // On a machine that stalled, some had been served before.
        let left = lines.iter().filter(|line| line["outcome"] == "cancelled").count();
        (lines.len() == 12).then_some(left)
    })
    .await;

    let later_sent = seconds();
    let later = ask(40, "/later/search").await;
    decisions(80).await;
    let later_decided = seconds();

    for answer in answers(stayers).await {
        assert_eq!(answer.status, 200, "who stays gets his slot");
    }
    let later = answers(later).await;
    let forwarded = upstream.calls().len();
    assert_lawful(started, &upstream.arrivals(), 5.0, 10.0);

    // All slots up to the end of the later callers' budgets, except those that came while no caller could take them; and
    // no more than there were callers.
    let reached = 5.0 + 10.0 * (later_sent + 4.0 - all_decided);
    let unused = 10.0 * (later_decided - leave) + 2.0;
    let least = (reached - unused).min((80 - left) as f64);
    let (passed, refused) = (with_status(&later, 200).len(), with_status(&later, 429).len());
    assert_eq!(passed + refused, 40);
    assert!(
        forwarded as f64 >= least,
        "{forwarded} forwarded, {least:.1} could be; {passed} of the later callers passed; \
         decided {all_decided:.2}, left {leave:.2}, came {later_sent:.2}, decided {later_decided:.2}"
    );
}

#[rstest]
#[case::a_long_body("Content-Length: 40000", 40_000)]
#[case::an_unfinished_body("Content-Length: 900000", 40_000)]
#[case::an_unfinished_chunk("Transfer-Encoding: chunked", 0)]
#[tokio::test(flavor = "multi_thread")]
async fn an_uploader_who_leaves_the_queue_gives_the_slot_back(
    #[case] framing: &str,
    #[case] sent: usize,
) {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: { rate: 4/hour, burst: 1 } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1h }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    let head = format!("POST /search HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
    conn.send(head).await.expect("send");
    // More than is read ahead, so that some of it hides the end; less than the socket holds, because an end after bytes
    // that do not fit cannot be seen.
    conn.send(vec![b'x'; sent]).await.expect("send");
    gateway.until_waiting("search", 1).await;
    drop(conn);
    gateway.until_waiting("search", 0).await;
    let next = gateway.limiter("search").await["next_slot_ms"].as_f64().expect("ms");
    assert!(next <= 15.0 * 60.0 * 1000.0, "{next}");
    assert_eq!(gateway.count("search", "cancelled").await, 1.0);
    assert_eq!(upstream.calls().len(), 1);
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_leaves_the_queue_gives_the_slot_back(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    // Slots an hour apart, so that none comes during the test.
    let rest = "limiters: { search: { rate: 4/hour, burst: 1 } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1h }]
";
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let mut waiting = Vec::new();
    for i in 1..=3 {
        waiting.push(gateway.ask("/search", &[]).await);
        gateway.until_waiting("search", i).await;
    }
    let next = async || gateway.limiter("search").await["next_slot_ms"].as_f64().expect("ms");
    let quarter = 15.0 * 60.0 * 1000.0;
    assert!(next().await > 3.0 * quarter, "the next slot is the fourth");
    // The one in the middle leaves; those after it keep their instants.
    drop(waiting.remove(1));
    eventually("the second slot is free", async || {
        let next = next().await;
        (next > quarter && next < 2.0 * quarter).then_some(())
    })
    .await;
    let short = gateway.ask("/search", &[("Prefer", "wait=1800")]).await;
    gateway.until_waiting("search", 3).await;
    assert!(next().await > 3.0 * quarter, "it is taken again, and once");
    drop((waiting, short));
    eventually("everything comes back", async || (next().await < quarter).then_some(())).await;
    eventually("each is counted", async || {
        (gateway.count("search", "cancelled").await == 4.0).then_some(())
    })
    .await;
    assert_eq!(upstream.calls().len(), 1, "who left was not forwarded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_leads_a_batch_and_leaves_blocks_nobody() {
    // A connection to the store that hangs for two seconds is given up, as it should be: where the machine
    // stalled so long, the attempt says nothing.
    for _ in 0..10 {
        if leader_leaves_in_mid_call().await {
            return;
        }
    }
    panic!("no attempt went through within 1.5 s");
}

/// False when it took too long to say anything.
async fn leader_leaves_in_mid_call() -> bool {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let proxy = Chaos::before(&redis).await;
    let gateway = Gateway::start(&format!(
        "store: {}
upstream: {}
workers: 1
limiters: {{ search: {{ rate: 1/hour, burst: 50 }} }}
routes: [{{ suffix: \"*\", limiters: [search] }}]
",
        stored_at(&proxy.url()),
        upstream.url()
    ))
    .await;
    assert_eq!(gateway.get("/first").await.status, 200);

    let asked = proxy.asked();
    proxy.hold();
    let held = Instant::now();
    let leader = gateway.ask("/leader", &[]).await;
    eventually("its call is in flight", async || (proxy.asked() > asked).then_some(())).await;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(gateway.ask("/other", &[]).await);
    }
    drop(leader);
    let line = gateway.line("/leader").await;
    proxy.release();
    if held.elapsed() > Duration::from_millis(1500) {
        return false;
    }
    assert_eq!(line["outcome"], "cancelled");
    let others = answers(others).await;
    assert_eq!(with_status(&others, 200).len(), 8, "{others:?}");
    // The permits that were decided for the leader are refunded.
    eventually("all but what nine requests used is there", async || {
        (gateway.limiter("search").await["level"] == 41).then_some(())
    })
    .await;
    assert!(upstream.calls().iter().all(|call| call.target != "/leader"));
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn prefer_wait_shortens_and_lengthens_up_to_the_cap() {
    let upstream = Upstream::ok().await;
    // Each limiter's second slot is 10 s away.
    let rest = "limiters: { a: 1/10s, b: 1/10s }
routes:
  - { suffix: /plain, limiters: [a], max_wait: 5s }
  - { suffix: /long, limiters: [a], max_wait: 20s }
  - { suffix: /capped, limiters: [b], max_wait: 5s, max_wait_cap: 15s }
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    for target in ["/plain", "/capped"] {
        assert_eq!(gateway.get(target).await.status, 200);
    }
    let asked = async |target: &str, wait: &str| {
        let mut conn = gateway.ask(target, &[("Prefer", wait)]).await;
        conn.answer().await.expect("an answer").status
    };
    assert_eq!(asked("/long", "wait=0").await, 429, "it may ask for less");
    assert_eq!(asked("/long", "wait=1, respond-async").await, 429, "among others");
    assert_eq!(asked("/plain", "wait=60").await, 429, "the cap is max_wait");
    assert_eq!(gateway.get("/capped").await.status, 429);
    let longer = gateway.ask("/capped", &[("Prefer", "respond-async, wait=12")]).await;
    gateway.until_waiting("/capped", 1).await;
    // After the one that waits, the next slot is 20 s away: over the cap, whatever budget a request asks for.
    assert_eq!(asked("/capped", "wait=60").await, 429);
    drop(longer);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_later_waits_longer() {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: 1/10min }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 15min, max_wait_cap: 1h }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let first = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 1).await;
    assert_eq!(gateway.get("/search").await.status, 429, "the slot in 10 minutes is the first's");
    let second = gateway.ask("/search", &[("Prefer", "wait=1500")]).await;
    gateway.until_waiting("search", 2).await;
    let mut third = gateway.ask("/search", &[("Prefer", "wait=1500")]).await;
    let third = third.answer().await.expect("an answer");
    assert_eq!(third.status, 429, "the one in 20 minutes is the second's");
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_a_503_and_a_place_in_it_can_be_had_again() {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: 1/10min }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1h, max_waiting: 2 }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let first = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 1).await;
    let second = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 2).await;
    for _ in 0..3 {
        let full = gateway.get("/search").await;
        assert_eq!((full.status, full.problem().as_str()), (503, "queue-full"));
        let seconds: u64 = full.field("retry-after").expect("it").parse().expect("seconds");
        assert!(seconds >= 1);
    }
    assert_eq!(gateway.count("search", "queue_full").await, 3.0);
    // A request that would not be served in time even from an empty queue gets that reason instead.
    let mut impatient = gateway.ask("/search", &[("Prefer", "wait=1")]).await;
    assert_eq!(impatient.answer().await.expect("an answer").status, 429);
    drop(first);
    gateway.until_waiting("search", 1).await;
    let third = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 2).await;
    drop((second, third));
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn observing_counts_and_never_holds_or_refuses(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: { rate: 1/hour, burst: 3, mode: observe } }
routes: [{ name: search, suffix: /search, limiters: [search] }]
";
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, rest)).await;
    for _ in 0..10 {
        let answer = gateway.get("/search").await;
        assert_eq!((answer.status, answer.field("server-timing")), (200, None));
    }
    assert_eq!(upstream.calls().len(), 10);
    let decisions = async |decision: &str| {
        let labels = [("limiter", "search"), ("decision", decision)];
        gateway.metric("paceway_decisions_total", &labels).await
    };
    assert_eq!(decisions("would_pass").await, 3.0);
    assert_eq!(decisions("would_refuse").await, 7.0);
    assert_eq!(decisions("refuse").await, 0.0);
    assert_eq!(gateway.count("search", "passed").await, 3.0);
    assert_eq!(gateway.count("search", "observed").await, 7.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observing_limiter_does_not_loosen_the_one_beside_it() {
    let upstream = Upstream::ok().await;
    let rest =
        "limiters: { seen: { rate: 1/hour, mode: observe }, kept: { rate: 1/hour, burst: 2 } }
routes: [{ suffix: /search, limiters: [seen, kept] }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(gateway.get("/search").await.status);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
}

#[rstest]
#[case::one_limiter("limiters: { search: { rate: 1/hour, mode: off } }")]
#[case::all("limiting: off\nlimiters: { search: 1/hour }")]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_off_limits_nothing_and_asks_no_store(#[case] limiters: &str) {
    let upstream = Upstream::ok().await;
    // Nothing listens on that port: a request that asked the store would fail.
    let gateway = Gateway::start(&format!(
        "store: {}
upstream: {}
{limiters}
routes: [{{ suffix: /search, limiters: [search] }}]
",
        stored_at(&format!("redis://127.0.0.1:{}", free_port())),
        upstream.url()
    ))
    .await;
    for _ in 0..5 {
        assert_eq!(gateway.get("/search").await.status, 200);
    }
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn two_limiters_pass_a_request_or_take_nothing_of_it(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { wide: { rate: 10/day }, narrow: { rate: 2/day } }
routes: [{ suffix: /narrow, limiters: [wide, narrow] }, { suffix: /wide, limiters: [wide] }]
";
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, rest)).await;
    let levels = async || {
        let level = async |name| gateway.limiter(name).await["level"].as_i64().expect("a level");
        (level("wide").await, level("narrow").await)
    };
    assert_eq!(levels().await, (10, 2));
    for _ in 0..2 {
        assert_eq!(gateway.get("/narrow").await.status, 200);
    }
    assert_eq!(levels().await, (8, 0));
    for _ in 0..3 {
        let refused = gateway.get("/narrow").await;
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["violated-policies"], json!(["narrow"]));
    }
    assert_eq!(levels().await, (8, 0), "a refusal by one takes nothing from the other");
    assert_eq!(gateway.get("/wide").await.status, 200);
    assert_eq!(levels().await, (7, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstreams_limiter_counts_the_calls_of_every_route() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"{}\", limiters: [account] }} }}
limiters: {{ account: 3/day }}
routes: [{{ suffix: /a }}, {{ suffix: /b, limiters: [account] }}]
",
        upstream.url()
    ))
    .await;
    let mut statuses = Vec::new();
    for target in ["/a", "/b", "/a", "/a", "/b"] {
        statuses.push(gateway.get(target).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
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
async fn keys_live_as_long_as_they_matter_and_carry_the_prefix() {
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
async fn nothing_that_waits_holds_up_what_need_not() {
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
    let gateway = Gateway::start(&format!(
        "upstream: {}\nlimiters: {{ shop: {{ rate: 1/hour, key: \"{{header.x-shop}}\" }} }}\n\
         routes: [{{ suffix: \"*\", limiters: [shop] }}]\n",
        upstream.url()
    ))
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
    let gateway = Gateway::start(&format!(
        "upstream: {}\nlimiters: {{ search: 1/hour }}\nroutes:\n\
         - {{ suffix: /search, limiters: [search] }}\n- {{ suffix: /public/health }}\n",
        upstream.url()
    ))
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
