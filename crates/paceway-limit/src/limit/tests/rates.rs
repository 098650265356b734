//! Rates of keys, rates that change while calls are made, and handles, in virtual time over the memory store.

use super::*;
use rstest::rstest;

const MINUTE: Duration = Duration::from_secs(60);

fn calls() -> Limit {
    Limit::token_bucket("calls", Rate::per_second(1), 4)
}

/// Makes calls with `key` until one is refused.
async fn count_calls(limiter: &Limiter, key: &str) -> u32 {
    let mut granted = 0;
    while limiter.call().key("calls", key).try_acquire().await.is_ok() {
        granted += 1;
    }
    granted
}

#[tokio::test(start_paused = true)]
async fn a_key_has_a_rate_of_its_own() {
    let rates = |key: &str| (key == "gold").then_some(Rate::per_second(10));
    let limiter = Limiter::new(calls().rates(rates), memory()).expect("a rule");
    assert_eq!([count_calls(&limiter, "gold").await, count_calls(&limiter, "iron").await], [4, 4]);
    sleep(Duration::from_millis(2050)).await;
    // The burst is the same, the rate is not.
    assert_eq!([count_calls(&limiter, "gold").await, count_calls(&limiter, "iron").await], [4, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_a_key_that_is_no_rule_is_an_error() {
    let limiter = Limiter::new(calls().rates(|_| Some(Rate::per_second(0))), memory());
    let limiter = limiter.expect("a rule");
    let error = limiter.call().key("calls", "gold").acquire().await.expect_err("no rule");
    let text = error.to_string();
    assert!(
        text.starts_with("the limit `calls` is no rule: it needs a rate of at least"),
        "{text}"
    );
    limiter.acquire(1).await.expect("calls without a key have the rate of the limit");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_rate_of_the_key() {
    let window = Limit::fixed_window("calls", Rate::per_minute(1));
    let window = window.rates(|key| (key == "gold").then_some(Rate::per_minute(2)));
    let limiter = Limiter::new(window, memory()).expect("a rule");
    let layer = LimitLayer::new(limiter.clone())
        .key("calls", |parts| Some(parts.headers.get("plan")?.to_str().ok()?.to_owned()));
    let mut service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(bytes::Bytes::new()))
    }));
    for (plan, calls) in [("gold", 2), ("iron", 1)] {
        assert_eq!(count_calls(&limiter, plan).await, calls);
        let request = Request::builder().header("plan", plan).body(()).expect("a request");
        let refused = service.call(request).await.expect("an answer");
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let policy = refused.headers()["ratelimit-policy"].to_str().expect("text").to_owned();
        assert_eq!(policy, format!("\"calls\";q={calls};w=60"));
    }
}

/// Each limit grants 10 calls at first. Then it is set to 20 in the same period: the 10 that were used still count.
#[rstest]
#[case::fixed_window(Limit::fixed_window("calls", Rate::per_minute(10)))]
#[case::sliding_window(Limit::sliding_window("calls", Rate::per_minute(10)))]
#[tokio::test(start_paused = true)]
async fn a_limit_keeps_its_level_when_its_rate_is_set(#[case] limit: Limit) {
    let limiter = Limiter::new(limit, memory()).expect("a rule");
    let clone = limiter.clone();
    assert_eq!(count_calls(&limiter, "acme").await, 10);
    clone.set_rate("calls", Rate::per_minute(20)).expect("a rule");
    assert_eq!(count_calls(&limiter, "acme").await, 10);
    assert_eq!(count_calls(&limiter, "zenith").await, 20);
    clone.set_rate("calls", Rate::per_minute(5)).expect("a rule");
    assert_eq!(count_calls(&limiter, "acme").await, 0);
    sleep(2 * MINUTE).await;
    assert_eq!(count_calls(&limiter, "acme").await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_beyond_max_wait_asks_by_the_rate_that_was_set() {
    let limit = Limit::leaky_bucket("calls", Rate::per_minute(1));
    let limiter = Limiter::new(limit, memory()).expect("a rule").max_wait(MINUTE / 2);
    let started = Instant::now();
    limiter.acquire(1).await.expect("permits");
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await.map(|_| started.elapsed()) }
    });
    sleep(Duration::from_secs(1)).await;
    limiter.set_rate("calls", Rate::per_hour(1)).expect("a rule");
    // When it asks again, after half a minute, half of a permit is missing.
    let granted = waiting.await.expect("a task").expect("permits");
    assert_eq!(granted.as_secs(), 30 * 60);
}

#[test]
fn a_rate_that_cannot_be_set_is_refused() {
    let limits = [calls(), Limit::concurrency("parallel", 2)];
    let limiter = Limiter::all("vendor", limits, memory()).expect("rules");
    let why = |limit, rate| limiter.set_rate(limit, rate).expect_err("refused").why;
    assert!(why("calls", Rate::per_second(0)).starts_with("a rate of at least one permit"));
    assert_eq!(why("parallel", Rate::per_second(1)), "a rate, and it counts calls at a time");
    assert_eq!(why("call", Rate::per_second(1)), "a limit that the limiter has");
}

#[tokio::test(start_paused = true)]
async fn a_handle_names_its_limit_in_each_limiter_that_has_it() {
    let all = |limits: Vec<Limit>| Limiter::all("vendor", limits, memory()).expect("rules");
    let first = Limit::token_bucket("first", Rate::per_second(1), 4);
    let (here, there, none) =
        (all(vec![calls(), first.clone()]), all(vec![first.clone(), calls()]), all(vec![first]));
    let (key, cost) = (here.key("calls").expect("a limit"), here.cost("calls").expect("a rate"));
    for limiter in [&here, &there] {
        let call = || limiter.call().key(&key, "acme").cost("first", 0);
        let mut acquired = call().cost(&cost, 4).try_acquire().await.expect("the burst");
        assert!(call().try_acquire().await.is_err());
        assert_eq!(acquired.settle(&cost, 1), Settled::Refunded(3));
        call().cost(&cost, 3).try_acquire().await.expect("the permits that were refunded");
    }
    assert!(matches!(
        none.call().key(&key, "acme").try_acquire().await,
        Err(AcquireError::Unknown(name)) if &*name == "calls"
    ));
}

#[test]
fn a_handle_of_a_wrong_limit_is_an_error_that_names_the_cure() {
    let limits = [calls(), Limit::concurrency("parallel", 2)];
    let limiter = Limiter::all("vendor", limits, memory()).expect("rules");
    let error = limiter.key("call").expect_err("no limit").to_string();
    assert_eq!(error, "the limiter has no limit `call`; it has `calls`, `parallel`");
    limiter.key("parallel").expect("a key of calls at a time");
    let error = limiter.cost("parallel").expect_err("no cost").to_string();
    assert!(error.contains("use the handle of a rate"), "{error}");
}
