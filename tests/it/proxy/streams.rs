//! Bodies on their way: they stream, arrive unchanged, and leave the connection in step.

use super::{before, closed};
use crate::support::{PATIENCE, Reply, Upstream, reached, reply, request};

#[tokio::test(flavor = "multi_thread")]
async fn a_response_streams() {
    let go_on = closed();
    let gate = go_on.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let gate = gate.clone();
        async move {
            conn.head().await.expect("a request");
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
            conn.send(head).await.expect("send");
            reached(&gate, "the client has seen the first piece").await;
            conn.send("6\r\nsecond\r\n0\r\n\r\n").await.expect("send");
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.ask("/", &[]).await;
    conn.until("first").await.expect("the first piece, while the second is not sent");
    go_on.add_permits(1);
    let rest = conn.until("0\r\n\r\n").await.expect("the rest");
    assert!(rest.contains("second"), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_streams() {
    let arrived = closed();
    let seen = arrived.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let seen = seen.clone();
        async move {
            conn.until("first").await.expect("the first piece, while the second is not sent");
            seen.add_permits(1);
            conn.until("second").await.expect("the second piece");
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("send");
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    conn.send(request("POST", "/", &[("Transfer-Encoding", "chunked")])).await.expect("send");
    conn.send("5\r\nfirst\r\n").await.expect("send");
    reached(&arrived, "the upstream has the first piece").await;
    conn.send("6\r\nsecond\r\n0\r\n\r\n").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_both_ways_unchanged() {
    let upstream = Upstream::start(|call| {
        let mut reply = reply("200 OK", &[], "");
        let length = call.body.len();
        reply.bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        reply.bytes.extend(&call.body);
        reply
    })
    .await;
    let gateway = before(&upstream).await;
    // No two pieces of it are alike.
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()
    };
    let body: Vec<u8> = (0..5 << 20).flat_map(|_| next()).collect();
    assert_eq!(body.len(), 20 << 20);
    // A client that shares nothing with the rest of these tests.
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
    let answer = client.post(format!("http://{}/", gateway.listen)).body(body.clone());
    let answer = answer.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let echoed = answer.bytes().await.expect("a whole body");
    assert!(echoed == body, "{} bytes came back and differ", echoed.len());
    assert!(upstream.calls()[0].body == body);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_without_a_body_leave_the_connection_in_step() {
    let upstream = Upstream::start(|call| match (call.method.as_str(), call.target.as_str()) {
        ("HEAD", _) => Reply {
            bytes: b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n".to_vec(),
            ..Reply::default()
        },
        (_, "/204") => {
            Reply { bytes: b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), ..Reply::default() }
        }
        (_, "/304") => Reply {
            bytes: b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nETag: \"x\"\r\n\r\n"
                .to_vec(),
            ..Reply::default()
        },
        _ => Reply::ok(),
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    for (method, target, status, body) in [
        ("HEAD", "/", 200, ""),
        ("GET", "/204", 204, ""),
        ("GET", "/304", 304, ""),
        ("GET", "/", 200, "ok"),
        ("HEAD", "/", 200, ""),
        ("GET", "/", 200, "ok"),
    ] {
        conn.send(request(method, target, &[])).await.expect("send");
        let answer = conn.answer_to(method).await.expect("a whole answer");
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{method} {target}");
        if method == "HEAD" {
            assert_eq!(answer.field("content-length"), Some("1234"));
        }
        if status == 304 {
            assert_eq!(answer.field("etag"), Some("\"x\""));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_with_its_connection_is_complete() {
    let upstream = Upstream::start(|_| Reply::raw("HTTP/1.1 200 OK\r\n\r\nall of it")).await;
    let gateway = before(&upstream).await;
    assert_eq!(gateway.get("/").await.text(), "all of it");
}
