//! The form of the gateway's own answers, by upstream and by route. `clients/sdks.rs` has what SDKs make of them.

use crate::{
    grpc,
    support::{Answer, Conn, Gateway, Upstream, get, reply, request, service_address},
};

/// Two upstreams, one of which answers as OpenAI, and a route of it that answers as GraphQL does. No route has a permit.
fn yaml(url: &str) -> String {
    format!(
        "services: {{ forward_auth: 127.0.0.1:0 }}
upstreams:
  plain: {url}
  model:
    url: {url}
    answers: openai
    headers: {{ own: {{ set: {{ access-control-allow-origin: \"*\" }} }} }}
limiters: {{ calls: {{ rate: 10/hour, burst: 10 }} }}
routes:
  - {{ name: plain, suffix: /plain, upstream: plain, limiters: [calls] }}
  - {{ name: chat, suffix: /chat, upstream: model, limiters: [calls], max_wait: 0 }}
  - {{ name: graph, suffix: /graph, upstream: model, limiters: [calls], answers: graphql, max_wait: 0 }}
  - {{ name: dear, suffix: /dear, upstream: model, limiters: [{{ limiter: calls, cost: \"{{header.x-cost}}\" }}] }}
"
    )
}

/// A gateway whose limiter has no permit left.
async fn exhausted(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(&yaml(&upstream.url())).await;
    let mut conn = gateway.ask("/dear", &[("X-Cost", "10")]).await;
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    gateway
}

fn is_openai(answer: &Answer) -> bool {
    answer.json()["error"]["code"] == "rate_limit_exceeded"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_has_the_form_of_its_upstream_unless_it_names_its_own() {
    let upstream = Upstream::ok().await;
    let gateway = exhausted(&upstream).await;
    let refused = gateway.get("/chat").await;
    assert_eq!((refused.status, is_openai(&refused)), (429, true), "{refused:?}");
    for field in ["retry-after", "ratelimit", "ratelimit-policy", "x-request-id"] {
        assert!(refused.field(field).is_some(), "{field} of {refused:?}");
    }
    // 10 an hour: the permit is minutes away, so the operator's rule and the advice are both there.
    assert_eq!(refused.field("x-should-retry"), Some("false"));
    assert_eq!(refused.field("access-control-allow-origin"), Some("*"));
    let millis: u64 = refused.field("retry-after-ms").expect("ms").parse().expect("a number");
    let seconds: u64 = refused.field("retry-after").expect("seconds").parse().expect("a number");
    assert_eq!(millis.div_ceil(1000), seconds);

    let graph = gateway.get("/graph").await;
    assert_eq!(graph.json()["errors"][0]["extensions"]["code"], "RATE_LIMITED", "{graph:?}");
    assert_eq!(gateway.get("/plain").await.problem(), "quota-exceeded");
    assert_eq!(gateway.get("/elsewhere").await.problem(), "no-route");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_that_no_limiter_gives_is_not_worth_another_try() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream.url())).await;
    let mut conn = gateway.ask("/dear", &[("X-Cost", "11")]).await;
    let refused = conn.answer().await.expect("an answer");
    assert_eq!(
        (refused.status, refused.field("x-should-retry")),
        (400, Some("false")),
        "{refused:?}"
    );
    assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
    assert!(upstream.arrivals().is_empty());
}

/// The client of another proxy gets the same answer through it.
#[tokio::test(flavor = "multi_thread")]
async fn forward_auth_answers_in_the_form_of_the_route() {
    let upstream = Upstream::ok().await;
    let gateway = exhausted(&upstream).await;
    let service = service_address(&gateway, "forward_auth");
    let mut conn = Conn::to(service).await.expect("connect");
    let fields = [("X-Forwarded-Uri", "/chat"), ("X-Forwarded-Method", "GET")];
    conn.send(request("GET", "/", &fields)).await.expect("send");
    let refused = conn.answer().await.expect("an answer");
    assert_eq!((refused.status, is_openai(&refused)), (429, true), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_calls_keep_their_own_form() {
    let upstream = Upstream::ok().await;
    let gateway = exhausted(&upstream).await;
    let refused = grpc::answer(&gateway, grpc::call("/chat")).await;
    assert_eq!(refused.headers()["grpc-status"], "8");
    assert!(!refused.headers().contains_key("x-should-retry"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstreams_own_refusal_passes_as_it_is() {
    let upstream =
        Upstream::start(|_| reply("429 Too Many Requests", &[("Retry-After", "7")], "slow")).await;
    let gateway = Gateway::start(&yaml(&upstream.url())).await;
    let refused = gateway.get("/chat").await;
    assert_eq!((refused.status, refused.text().as_str()), (429, "slow"));
    assert_eq!(refused.field("paceway-origin"), Some("upstream"));
    assert_eq!(refused.field("retry-after-ms"), None);
    // The pause that follows is the gateway's to explain.
    let paused = gateway.get("/chat").await;
    assert_eq!((paused.field("paceway-origin"), is_openai(&paused)), (Some("gateway"), true));
    assert_eq!(paused.field("x-should-retry"), Some("true"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_the_form() {
    let upstream = Upstream::ok().await;
    let gateway = exhausted(&upstream).await;
    gateway.rewrite(&yaml(&upstream.url()).replace("answers: openai", "answers: anthropic"));
    assert_eq!(gateway.reload().await.status, 200);
    let refused = get(gateway.listen, "/chat").await;
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error", "{refused:?}");
    assert_eq!(refused.json()["request_id"], refused.field("request-id").expect("an id"));
}
