//! Callers who try to pay less: they reserve nothing, or leave before the answer says the cost.

use super::{BODY_COST, JSON, gateway, left, model, post, settled};
use crate::support::{Gateway, Reply, Upstream, eventually, request, store};
use rstest::rstest;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Waits until the connections of all clients are closed.
async fn until_left(gateway: &Gateway) {
    eventually("the gateway sees that the client left", async || {
        let open = gateway.metric("paceway_connections", &[("protocol", "http1")]).await;
        (open == 0.0).then_some(())
    })
    .await;
}

/// A caller who reserves nothing owes the true cost like all others, and waits for it.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_of_zero_is_settled_as_a_debt(
    #[values("0", "\"0\"", "1e-400")] reserve: &str,
    #[values(false, true)] is_redis: bool,
) {
    let upstream = model().await;
    let (_redis, store) = store(is_redis);
    let gateway = gateway(&upstream, &store, BODY_COST).await;
    let body = format!("{{\"max_tokens\":{reserve}}}");
    for expected in [600, 200] {
        assert_eq!(post(&gateway, &[JSON, ("X-True", "400")], &body).await.status, 200);
        left(&gateway, expected).await;
    }
    assert_eq!(post(&gateway, &[JSON, ("X-True", "400")], &body).await.status, 200);
    left(&gateway, 0).await;
    assert_eq!(post(&gateway, &[JSON, ("X-True", "400")], &body).await.status, 429);
}

/// The rest of the answer is read on, to the event that says the cost or the end of a document.
#[rstest]
#[case::stream("text/event-stream", ["data: {\"text\":\"a\"}\n\n", "data: {\"usage\":{\"total_tokens\":700}}\n\n"])]
#[case::document("application/json", ["{\"usage\":", "{\"total_tokens\":700}}"])]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_early_pays_the_later_cost(
    #[case] of: &'static str,
    #[case] pieces: [&'static str; 2],
    #[values(false, true)] is_redis: bool,
) {
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let gate = opened.clone();
        async move {
            let Ok(Some(_)) = conn.request().await else { return };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {of}\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            let [first, last] = pieces.map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len()));
            conn.send(head + &first).await.expect("send");
            gate.acquire().await.expect("open").forget();
            conn.send(last + "0\r\n\r\n").await.expect("the gateway still reads");
        }
    })
    .await;
    let (_redis, store) = store(is_redis);
    let gateway = gateway(&upstream, &store, BODY_COST).await;
    let mut conn = gateway.connect().await;
    let (fields, sent) = ([JSON, ("Content-Length", "16")], "{\"max_tokens\":1}");
    conn.send(request("POST", "/", &fields) + sent).await.expect("send");
    conn.until(pieces[0]).await.expect("the first piece");
    drop(conn);
    until_left(&gateway).await;
    left(&gateway, 999).await;
    gate.add_permits(1);
    left(&gateway, 300).await;
    assert_eq!(settled(&gateway, "debt").await, 699.0);
}

/// The upstream breaks off after the client has left: what has passed is paid, at least one permit for each event.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_pays_the_passed_events_without_a_cost() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let gate = opened.clone();
        async move {
            let Ok(Some(_)) = conn.request().await else { return };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
            let events = "data: {\"text\":\"a\"}\n\n".repeat(50);
            let events = format!("{:x}\r\n{events}\r\n", events.len());
            conn.send(format!("{head}{events}")).await.expect("send");
            gate.acquire().await.expect("open").forget();
        }
    })
    .await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    let mut conn = gateway.connect().await;
    let (fields, sent) = ([JSON, ("Content-Length", "16")], "{\"max_tokens\":1}");
    conn.send(request("POST", "/", &fields) + sent).await.expect("send");
    conn.until("\n\n").await.expect("an event");
    drop(conn);
    until_left(&gateway).await;
    gate.add_permits(1);
    left(&gateway, 950).await;
}

/// A client that stayed to the end paid 10, and one that left before it 50,000.
#[rstest]
#[case::last_event("text/event-stream", "data: {\"usage\":{\"total_tokens\":700}}\n\n", "", 700.0)]
#[case::then_others(
    "text/event-stream",
    "data: {\"usage\":{\"total_tokens\":77}}\n\n",
    "data: {}\n\n",
    77.0
)]
#[case::more_events(
    "text/event-stream",
    "data: {\"usage\":{\"total_tokens\":7}}\n\n",
    "data: {}\n\n",
    21.0
)]
#[case::document("application/json", "{\"usage\":{\"total_tokens\":700}}", "", 700.0)]
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_answer_pays_its_named_cost(
    #[case] of: &str,
    #[case] said: &str,
    #[case] then: &str,
    #[case] cost: f64,
) {
    let body = format!("{said}{}", then.repeat(20));
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {of}\r\nTransfer-Encoding: chunked");
    let answer = format!("{head}\r\n\r\n{:x}\r\n{body}\r\n", body.len());
    let upstream = Upstream::start(move |_| Reply::raw(&answer)).await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    let mut conn = gateway.connect().await;
    let fields = [JSON, ("Content-Length", "17"), ("Connection", "close")];
    conn.send(request("POST", "/", &fields) + "{\"max_tokens\":10}").await.expect("send");
    conn.rest().await;
    eventually("the answer is settled", async || {
        (settled(&gateway, "debt").await == cost - 10.0).then_some(())
    })
    .await;
}
