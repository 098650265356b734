//! Several limits in one limiter, with keys and costs, through calls and both layers.

use super::*;
use rstest::rstest;
use std::convert::Infallible;

const DAY: Duration = Duration::from_secs(86_400);

fn daily(name: &str, count: u64) -> Limit {
    Limit::fixed_window(name, Rate::new(count, DAY))
}

async fn refused(call: LimitedCall<'_>) -> Arc<str> {
    match call.try_acquire().await {
        Err(AcquireError::Refused { limit, .. }) => limit,
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case::token_bucket(Limit::token_bucket("a", Rate::per_minute(1), 1))]
#[case::leaky_bucket(Limit::leaky_bucket("a", Rate::per_minute(1)))]
#[case::sliding_window(Limit::sliding_window("a", Rate::per_minute(1)))]
#[case::fixed_window(daily("a", 1))]
#[case::warm_up(Limit::warm_up("a", Rate::per_minute(1), DAY / 24, 2.0))]
#[case::concurrency(Limit::concurrency("a", 1))]
#[tokio::test(start_paused = true)]
async fn each_algorithm_grants_one_call_and_refuses_the_next(#[case] limit: Limit) {
    let limiter = Limiter::new(limit.clone(), memory()).expect("a rule");
    let first = limiter.try_acquire(1).await.expect("permits");
    assert_eq!(&*refused(limiter.call()).await, "a");
    drop(first);
    // An observing limit counts and refuses nothing.
    let limiter = Limiter::new(limit.observe(), memory()).expect("a rule");
    for _ in 0..3 {
        limiter.try_acquire(1).await.expect("observed only");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_all_limits_or_none() {
    let limits = [daily("wide", 3), daily("narrow", 1)];
    let limiter = Limiter::all("group", limits, memory()).expect("rules");
    limiter.try_acquire(1).await.expect("permits");
    for _ in 0..5 {
        assert_eq!(&*refused(limiter.call()).await, "narrow");
    }
    // The refusals took nothing of the wide limit.
    let wide = || limiter.call().cost("narrow", 0);
    wide().cost("wide", 2).try_acquire().await.expect("two are left");
    assert_eq!(&*refused(wide()).await, "wide");
}

#[tokio::test(start_paused = true)]
async fn limits_with_one_name_and_group_are_one_and_each_key_is_another() {
    let store = memory();
    let limiter = || Limiter::all("group", [daily("tenant", 1)], store.clone()).expect("a rule");
    let (here, there) = (limiter(), limiter());
    let acme = || here.call().key("tenant", "acme");
    acme().try_acquire().await.expect("permits");
    assert_eq!(&*refused(there.call().key("tenant", "acme")).await, "tenant");
    there.call().key("tenant", "zenith").try_acquire().await.expect("permits");
    here.try_acquire(1).await.expect("the state of calls without a key");
    let first = Limiter::new(daily("tenant", 1), store).expect("a rule");
    first.try_acquire(1).await.expect("another group");
}

#[tokio::test(start_paused = true)]
async fn an_unused_call_is_refunded() {
    let limiter = Limiter::new(daily("a", 1), memory()).expect("a rule");
    limiter.try_acquire(1).await.expect("permits").refund();
    limiter.try_acquire(1).await.expect("refunded");
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_permit_is_held_longer_than_its_lease_and_handed_to_the_next() {
    let limit = Limit::concurrency("a", 1).lease(Duration::from_secs(3));
    let limiter = Limiter::new(limit, memory()).expect("a rule");
    let first = limiter.acquire(1).await.expect("a permit");
    let second = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await.map(|acquired| acquired.waited()) }
    });
    sleep(Duration::from_secs(20)).await;
    assert!(!second.is_finished());
    drop(first);
    let waited = second.await.expect("a task").expect("a permit");
    assert!(waited < Duration::from_secs(21), "{waited:?}");
}

#[tokio::test]
async fn mistakes_are_errors_and_name_the_limit() {
    let limiter =
        Limiter::all("g", [daily("a", 5), Limit::leaky_bucket("b", Rate::per_second(9))], memory());
    let limiter = limiter.expect("rules");
    let wrong = async |call: LimitedCall<'_>| call.acquire().await.expect_err("a mistake");
    assert_eq!(wrong(limiter.call().key("c", "x")).await, AcquireError::Unknown("c".into()));
    assert_eq!(
        wrong(limiter.call().key("a", "x".repeat(513))).await,
        AcquireError::LongKey("a".into())
    );
    let impossible =
        |limit: &str, asked, most| AcquireError::Impossible { limit: limit.into(), asked, most };
    assert_eq!(wrong(limiter.call().cost("a", 6)).await, impossible("a", 6, 5));
    assert_eq!(wrong(limiter.call().cost("b", 2)).await, impossible("b", 2, 1));
    assert_eq!(wrong(limiter.call().cost("a", 0).cost("b", 0)).await, impossible("a", 0, 5));
}

#[rstest]
#[case::no_rate(vec![Limit::token_bucket("x", Rate::per_second(0), 1)], "a rate")]
#[case::no_burst(vec![Limit::token_bucket("x", Rate::per_second(1), 0)], "a rate")]
#[case::too_long_a_period(vec![Limit::fixed_window("x", Rate::new(1, 400 * DAY))], "1 to")]
#[case::no_concurrency(vec![Limit::concurrency("x", 0)], "at least one call")]
#[case::too_hot(vec![Limit::warm_up("x", Rate::per_second(1), DAY, 2.0)], "a rate")]
#[case::twice(vec![daily("x", 1), daily("x", 2)], "a name")]
#[case::none(vec![], "at least one limit")]
#[case::many((0..17).map(|i| daily(&i.to_string(), 1)).collect(), "at most 16")]
fn refuses_numbers_that_make_no_rule(#[case] limits: Vec<Limit>, #[case] why: &str) {
    let error = Limiter::all("x", limits, memory()).expect_err("no rule");
    assert!(error.why.starts_with(why), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_layer_reads_key_and_cost_of_requests_of_any_type() {
    let limiter = Limiter::all("g", [daily("tenant", 3), Limit::concurrency("one", 1)], memory());
    let layer = PaceLayer::new(limiter.expect("rules"))
        .key("tenant", |(tenant, _): &(&str, u32)| Some((*tenant).to_owned()))
        .cost("tenant", |(_, cost)| *cost);
    let mut service = layer.layer(service_fn(async |request: (&'static str, u32)| {
        sleep(Duration::from_secs(1)).await;
        Ok::<_, Infallible>(request.1)
    }));
    let limit_of = |error| match error {
        PaceError::Limited(AcquireError::Refused { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    let (first, second) = (service.call(("acme", 2)), service.call(("zenith", 1)));
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.expect("permits"), 2);
    // The first call was not over.
    assert_eq!(&*limit_of(second.expect_err("refused")), "one");
    assert_eq!(&*limit_of(service.call(("acme", 2)).await.expect_err("refused")), "tenant");
    assert_eq!(service.call(("zenith", 3)).await.expect("permits"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_program_pauses_the_limits_and_keys_of_a_call() {
    let second = Duration::from_secs(1);
    let bucket = |name| Limit::token_bucket(name, Rate::per_second(2), 1);
    let limits = [bucket("account"), bucket("tenant")];
    let limiter = Limiter::all("vendor", limits, memory()).expect("rules");
    let of_tenant = |name: &str| limiter.call().cost("account", 0).key("tenant", name);
    let started = Instant::now();
    limiter.acquire(1).await.expect("permits");
    // It waits for a slot half a second away, which the pause covers.
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await.map(|_| Instant::now()) }
    });
    tokio::task::yield_now().await;
    limiter.pause(10 * second).await.expect("a pause");
    // A shorter pause changes nothing.
    limiter.pause(second).await.expect("a pause");
    assert_eq!(&*refused(limiter.call().cost("tenant", 0)).await, "account");
    let granted = waiting.await.expect("a task").expect("permits") - started;
    assert!(granted >= 10 * second && granted < 11 * second, "{granted:?}");

    of_tenant("acme").pause(10 * second).await.expect("a pause");
    assert_eq!(&*refused(of_tenant("acme")).await, "tenant");
    of_tenant("zenith").try_acquire().await.expect("another tenant");
    limiter.call().cost("tenant", 0).acquire_within(second).await.expect("the account");
    assert!(matches!(
        limiter.call().key("nothing", "acme").pause(second).await,
        Err(AcquireError::Unknown(name)) if &*name == "nothing"
    ));
}
