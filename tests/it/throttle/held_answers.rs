//! Answers that are read before the client gets them: those whose body decides, and refusals of requests that may be sent
//! again.

use super::*;

const GRAPHQL: &str = "throttle: { when: [\"200 with json /errors/0/extensions/code=THROTTLED\"] }";
const THROTTLED: &str =
    "{\"errors\":[{\"message\":\"Throttled\",\"extensions\":{\"code\":\"THROTTLED\"}}]}";

fn json(body: &str) -> Reply {
    reply("200 OK", &[("Content-Type", "application/json")], body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_graphql_answer_is_a_refusal() {
    let fine = "{\"data\":{\"shop\":1}}";
    let upstream = scripted([json(THROTTLED), json(fine)]).await;
    let throttle =
        format!(", {}", GRAPHQL.replace("throttle: {", "throttle: { default_pause: 300ms,"));
    let gateway = gateway_on(None, &upstream, (&throttle, WIDE, WAITS)).await;
    let answer = post(&gateway, &[], b"{ shop }").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, fine));
    assert_eq!(answer.field("paceway-attempts"), Some("2"));
    assert!(gap(&upstream, 0) + ON_THE_WAY >= 300 * MS);
}

/// An answer that is inspected reaches the client unchanged, whatever its length; a stream is not held back at all.
#[tokio::test(flavor = "multi_thread")]
async fn an_inspected_answer_is_passed_on_unchanged() {
    let long = format!("{{\"data\":\"{}\"}}", "x".repeat(200_000));
    let body = long.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let body = body.clone();
        async move {
            while let Ok(Some((head, ..))) = conn.request().await {
                if head.start.contains("/chunks") {
                    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                                Transfer-Encoding: chunked\r\n\r\n";
                    conn.send(head).await.expect("send");
                    for piece in body.as_bytes().chunks(30_000) {
                        let size = format!("{:x}\r\n", piece.len());
                        conn.send([size.as_bytes(), piece, b"\r\n"].concat()).await.expect("send");
                    }
                    conn.send("0\r\n\r\n").await.expect("send");
                } else if head.start.contains("/stream") {
                    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
                    conn.send(format!("{head}data: 1\n\n")).await.expect("send");
                    // The rest never comes.
                    conn.rest().await;
                } else {
                    let bytes = json(&body).bytes;
                    conn.send(bytes).await.expect("send");
                }
            }
        }
    })
    .await;
    let throttle = format!(", {GRAPHQL}");
    let gateway = gateway_on(None, &upstream, (&throttle, WIDE, WAITS)).await;
    for target in ["/length", "/chunks"] {
        let answer = gateway.get(target).await;
        assert!(answer.text() == long, "{target}: {} bytes", answer.body.len());
    }
    let mut conn = gateway.ask("/stream", &[]).await;
    conn.until("data: 1\n\n").await.expect("the first event, although no end came");
}

/// A refusal in an error's body: Google's 403 with a reason, and a time in the body.
#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_answer_is_a_refusal_where_that_is_configured() {
    let upstream = scripted([refusal("403 Forbidden", "0.3")]).await;
    let throttle = ", throttle: { when: [\"403 with retry-after\"] }";
    let gateway = gateway_on(None, &upstream, (throttle, WIDE, WAITS)).await;
    assert_eq!(gateway.get("/a").await.status, 200);
    assert_eq!(upstream.calls().len(), 2);
}

/// A refusal that comes before the whole request was read, with a body that is longer than is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_refusal_is_passed_on() {
    let text = "y".repeat(300_000);
    let upstream = scripted([reply("429 Too Many Requests", &[("Retry-After", "1")], &text)]).await;
    let gateway = waiting(&upstream).await;
    let answer = post(&gateway, &[], b"body").await;
    assert_eq!(answer.status, 429);
    assert!(answer.text() == text, "{} bytes", answer.body.len());
    assert_eq!(retried(&gateway, "not_repeatable").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_during_the_upload_repeats_the_whole_request() {
    let bodies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let got = bodies.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let got = got.clone();
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            assert_eq!(head.get("content-length"), Some("20000"));
            if got.lock().is_empty() {
                // Nothing of the body is read.
                got.lock().push(Vec::new());
                conn.send(too_many("0.3").bytes).await.expect("send");
                conn.rest().await;
                return;
            }
            let body = conn.exactly(20_000).await.expect("the body");
            got.lock().push(body);
            conn.send(Reply::ok().bytes).await.expect("send");
        }
    })
    .await;
    let gateway = waiting(&upstream).await;
    let body = vec![b'z'; 20_000];
    let mut conn = gateway.connect().await;
    conn.send(request("POST", "/a", &[("Content-Length", "20000")])).await.expect("send");
    conn.send(&body[..5_000]).await.expect("send");
    gateway.until_waiting("all", 1).await;
    conn.send(&body[5_000..]).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert!(bodies.lock()[1] == body);
}
