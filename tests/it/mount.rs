//! The proxy in another program's axum router, in-process, with a real upstream and the limiters of a configuration.

use crate::support::{Reply, Upstream, closed, eventually};
use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use paceway::{Config, Proxy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;
use tower::ServiceExt;

/// Routes with one token for a day, and with none.
async fn proxy(upstream: &Upstream) -> Proxy {
    let text = format!(
        "upstream: {}\nlimiters:\n  day: {{ rate: 1/d, burst: 1 }}\nroutes:\n\
         - {{ suffix: /once, limiters: [day] }}\n- {{ suffix: \"*\" }}\n",
        upstream.url()
    );
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a configuration");
    Proxy::open(config).await.expect("a proxy")
}

async fn get_from(program: &Router, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).header("host", "api.example").body(Body::empty());
    send(program, request.expect("a request")).await
}

async fn send(program: &Router, request: Request<Body>) -> (StatusCode, String) {
    let response = program.clone().oneshot(request).await.expect("infallible");
    let status = response.status();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn a_fallback_proxy_serves_the_other_paths() {
    let upstream = Upstream::ok().await;
    let program =
        Router::new().route("/hello", get(async || "own")).fallback_service(proxy(&upstream).await);
    assert_eq!(get_from(&program, "/hello").await, (StatusCode::OK, "own".to_owned()));
    assert_eq!(get_from(&program, "/a").await.0, StatusCode::OK);
    assert_eq!(get_from(&program, "/once").await.0, StatusCode::OK);
    let (status, problem) = get_from(&program, "/once").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{problem}");
    assert_eq!(upstream.arrivals().len(), 2);
}

#[tokio::test]
async fn a_nested_proxy_sees_the_path_below_its_prefix() {
    let upstream = Upstream::ok().await;
    let program = Router::new().nest_service("/paced", proxy(&upstream).await);
    assert_eq!(get_from(&program, "/paced/once").await.0, StatusCode::OK);
    assert_eq!(get_from(&program, "/paced/once").await.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get_from(&program, "/once").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_body_of_the_program_reaches_the_upstream_whole() {
    let upstream = Upstream::ok().await;
    let program = Router::new().fallback_service(proxy(&upstream).await);
    let body = "x".repeat(100_000);
    let request = Request::post("/echo").header("host", "api.example").body(Body::from(body));
    let (status, _) = send(&program, request.expect("a request")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(upstream.calls()[0].body.len(), 100_000);
}

#[tokio::test]
async fn the_proxy_does_not_raise_the_limit_of_open_files() {
    let before = getrlimit(Resource::Nofile);
    let lower = before.maximum.map(|most| most - 1);
    setrlimit(Resource::Nofile, Rlimit { current: lower, ..before }).expect("a lower limit");
    proxy(&Upstream::ok().await).await;
    let after = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, before).expect("the limit as it was");
    assert_eq!(after.current, lower);
}

/// Lets the other tasks run until they wait: there is one thread, and a store in memory answers at once.
async fn run_others() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// A server drops the future of a request whose client leaves. The call is made for the others, at its place in the line.
#[tokio::test]
async fn a_dropped_read_keeps_its_place_for_those_that_wait_with_it() {
    let gate = closed();
    let behind = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/first" => Reply::ok().behind(&behind),
        _ => Reply::ok(),
    })
    .await;
    let text = format!(
        "upstream: {}\nlimiters: {{ one: {{ algorithm: concurrency, max: 1 }} }}\n\
         routes: [{{ suffix: \"*\", max_wait: 120s, share: on, limiters: [one] }}]\n",
        upstream.url()
    );
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a configuration");
    let program = Router::new().fallback_service(Proxy::open(config).await.expect("a proxy"));
    let begin = |path: &'static str| {
        let program = program.clone();
        tokio::spawn(async move { get_from(&program, path).await.0 })
    };
    let first = begin("/first");
    eventually("the first call", async || (upstream.calls().len() == 1).then_some(())).await;
    let leader = begin("/same");
    run_others().await;
    let other = begin("/other");
    run_others().await;
    let follower = begin("/same");
    run_others().await;
    leader.abort();
    assert!(leader.await.is_err());
    gate.add_permits(1);
    for task in [first, other, follower] {
        assert_eq!(task.await.expect("an answer"), StatusCode::OK);
    }
    let targets: Vec<_> = upstream.calls().iter().map(|call| call.target.clone()).collect();
    assert_eq!(targets, ["/first", "/same", "/other"]);
}
