//! Layers that read responses, for pauses and true costs, and refuse in a program's own words, in virtual time.

use super::*;

/// A response: how long to stay away, and what the request has cost.
#[derive(Debug, Clone, Copy)]
struct Said {
    pause: Option<Duration>,
    cost: Option<u32>,
}

const SECOND: Duration = Duration::from_secs(1);
const QUIET: Said = Said { pause: None, cost: None };

/// A request of a key, with the response that the vendor gives to it.
type Asking = (&'static str, Said);

async fn answer((_, said): Asking) -> Result<Said, Infallible> {
    Ok(said)
}

fn limiter() -> Limiter {
    let limits = [
        Limit::token_bucket("tokens", Rate::per_second(1), 100),
        Limit::concurrency("parallel", 1),
    ];
    Limiter::all("vendor", limits, memory()).expect("rules")
}

#[tokio::test(start_paused = true)]
async fn a_response_pauses_the_key_of_its_request() {
    let layer = PaceLayer::new(limiter())
        .max_wait(20 * SECOND)
        .key("tokens", |(key, _): &Asking| Some((*key).to_owned()))
        .key("parallel", |(key, _): &Asking| Some((*key).to_owned()))
        .pause_when(|said: &Said| said.pause);
    let mut service = layer.layer(service_fn(answer));
    let paused = Said { pause: Some(10 * SECOND), ..QUIET };
    service.call(("acme", paused)).await.expect("a response");
    let started = Instant::now();
    service.call(("zenith", QUIET)).await.expect("another key");
    assert_eq!(started.elapsed(), Duration::ZERO);
    service.call(("acme", QUIET)).await.expect("a response");
    assert!(started.elapsed() >= 10 * SECOND, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_response_settles_the_cost_of_its_request() {
    let limiter = limiter();
    let tokens = limiter.cost("tokens").expect("a rate");
    let layer = PaceLayer::new(limiter.clone())
        .cost(&tokens, |_: &Asking| 100)
        .settle(&tokens, |said: &Said| said.cost)
        .pause_when(|said| said.pause);
    let mut service = layer.layer(service_fn(answer));
    for cost in [30, 0, 70] {
        // It reserves all 100, of which the ones before have used some.
        sleep(100 * SECOND).await;
        let said = Said { cost: Some(cost), ..QUIET };
        service.call(("acme", said)).await.expect("a response");
        let left = 100 - cost;
        limiter.call().cost(&tokens, left).try_acquire().await.expect("the tokens that are left");
        assert!(limiter.try_acquire(1).await.is_err());
    }
    sleep(200 * SECOND).await;
    service.call(("acme", QUIET)).await.expect("a response");
    assert!(limiter.try_acquire(1).await.is_err(), "the reserved tokens count as the cost");
    sleep(100 * SECOND).await;
    let costly = Said { cost: Some(150), ..QUIET };
    service.call(("acme", costly)).await.expect("a response");
    sleep(50 * SECOND).await;
    assert!(limiter.try_acquire(1).await.is_err(), "50 tokens are owed");
    sleep(2 * SECOND).await;
    limiter.try_acquire(1).await.expect("the debt is paid");
}

#[tokio::test(start_paused = true)]
async fn a_layer_for_a_limit_that_does_not_exist_refuses_each_request() {
    let layer = PaceLayer::new(limiter()).settle("token", |said: &Said| said.cost).max_wait(SECOND);
    let mut service = layer.layer(service_fn(answer));
    let error = service.call(("acme", QUIET)).await.expect_err("no such limit");
    assert_eq!(error.to_string(), "the limiter has no limit `token`");
}

#[tokio::test(start_paused = true)]
async fn a_program_words_its_refusals_itself() {
    let limiter = Limiter::new(Limit::concurrency("parallel", 1), memory()).expect("a rule");
    let layer = LimitLayer::new(limiter.clone())
        .key("parallel", |parts| Some(parts.uri.path().to_owned()))
        .refusal(|error, response| response.map(|_| format!("no: {error}").into()));
    let mut service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(bytes::Bytes::from_static(b"an answer")))
    }));
    let request = |path: &str| Request::builder().uri(path).body(()).expect("a request");
    let _held = limiter.call().key("parallel", "/a").acquire().await.expect("a permit");
    let refused = service.call(request("/a")).await.expect("a response");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    assert!(refused.body().starts_with(b"no: the limit `parallel` has no permits"), "{refused:?}");
    let wrong = service.call(request(&format!("/{}", "a".repeat(600)))).await.expect("a response");
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    assert!(wrong.body().starts_with(b"no: a key for the limit"), "{wrong:?}");
    let passed = service.call(request("/b")).await.expect("a response");
    assert_eq!(passed.body(), "an answer");
}
