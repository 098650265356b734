//! The bodies of shared answers: up to 1 MiB, and no reader waits for another one.

use super::{Scene, ask, one_at_a_time};
use crate::support::{Call, Conn, Gateway, Reply, Upstream, closed, eventually, reply};
use rstest::rstest;
use std::sync::Arc;
use tokio::sync::Semaphore;

const MIB: usize = 1 << 20;

fn body(length: usize) -> String {
    (0..length).map(|i| char::from(b'a' + (i % 23) as u8)).collect()
}

fn chunked(body: &str) -> Reply {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = body.as_bytes().chunks(100_000).flat_map(|chunk| {
        [format!("{:x}\r\n", chunk.len()).into_bytes(), chunk.to_vec(), b"\r\n".to_vec()].concat()
    });
    let bytes = head.bytes().chain(chunks).chain(*b"0\r\n\r\n").collect();
    Reply { bytes, ..Reply::default() }
}

#[rstest]
#[case::the_largest(MIB, 1)]
#[case::too_large(MIB + 1, 3)]
#[tokio::test(flavor = "multi_thread")]
async fn bodies_up_to_1_mib_are_shared(
    #[case] length: usize,
    #[case] made: usize,
    #[values(false, true)] is_chunked: bool,
) {
    let whole = body(length);
    let sent = whole.clone();
    let answer =
        move |_: &Call| if is_chunked { chunked(&sent) } else { reply("200 OK", &[], &sent) };
    let scene = Scene::start(&one_at_a_time("", "on"), answer).await;
    let mut conns = scene.wait_together(3).await;
    scene.open();
    for conn in &mut conns {
        let answer = conn.answer().await.expect("an answer");
        assert!(answer.status == 200 && answer.text() == whole, "{} bytes", answer.body.len());
    }
    assert_eq!(scene.calls(), made);
}

/// Neither the first nor another one that does not read delays one that does.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_delays_no_other() {
    let whole = body(MIB - 7);
    let sent = whole.clone();
    let scene = Scene::start(&one_at_a_time("", "on"), move |_| chunked(&sent)).await;
    let mut conns = scene.wait_together(3).await;
    scene.open();
    for i in [2, 1, 0] {
        assert_eq!(conns[i].answer().await.expect("an answer").text(), whole);
    }
    assert_eq!(scene.calls(), 1);
}

/// An upstream whose bodies break off or continue when the gate says so.
async fn halting(gate: &Arc<Semaphore>, is_whole: bool) -> Upstream {
    let gate = gate.clone();
    Upstream::raw(move |mut conn: Conn| {
        let gate = gate.clone();
        async move {
            while let Ok(Some((head, ..))) = conn.request().await {
                let text = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n";
                if head.start.starts_with("GET /first ") {
                    gate.acquire().await.expect("open").forget();
                    conn.send(format!("{text}12345678")).await.expect("send");
                    continue;
                }
                conn.send(format!("{text}1234")).await.expect("send");
                gate.acquire().await.expect("open").forget();
                if !is_whole {
                    return;
                }
                conn.send("5678").await.expect("send");
            }
        }
    })
    .await
}

/// The first one leaves within the body, and the others get all of it. If it breaks off, they ask again.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_goes_on_without_the_first(#[values(false, true)] is_whole: bool) {
    let gate = closed();
    let upstream = halting(&gate, is_whole).await;
    let gateway = Gateway::before(&upstream, &one_at_a_time("", "on")).await;
    let _first = ask(&gateway, "GET", "/first", &[]).await;
    eventually("a connection", async || (upstream.connections() == 1).then_some(())).await;
    let mut leader = ask(&gateway, "GET", "/same", &[]).await;
    gateway.until_waiting("all", 1).await;
    let mut follower = ask(&gateway, "GET", "/same", &[]).await;
    gateway.until_waiting("all", 2).await;
    gate.add_permits(1);
    let head = leader.head().await.expect("a head").expect("a head");
    assert_eq!(head.get("content-length"), Some("8"));
    assert_eq!(leader.exactly(4).await.expect("a half"), b"1234");
    drop(leader);
    gate.add_permits(1);
    if is_whole {
        assert_eq!(follower.answer().await.expect("an answer").text(), "12345678");
    } else {
        // The follower makes its own call, which breaks off, too.
        assert!(follower.head().await.expect("a head").is_some());
        gate.add_permits(1);
        assert_eq!(follower.rest().await, b"1234");
    }
}
