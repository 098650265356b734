//! Large bodies need no memory: they go through as fast as they are taken, whatever their size.

use crate::support::{Conn, Gateway, Upstream, request};
use rstest::rstest;
use std::fs;

/// The bytes that pass through. They may take hardly more memory than a small body.
const SIZE: usize = 1 << 30;
const MOST: u64 = 8 << 20;
const PIECE: usize = 1 << 18;

/// Takes a body and answers with one of the same size.
async fn mirror() -> Upstream {
    Upstream::raw(|mut conn| async move {
        while let Ok(Some(head)) = conn.head().await {
            let size: usize =
                head.get("content-length").and_then(|size| size.parse().ok()).unwrap_or(0);
            conn.skip(size).await.expect("the body");
            let asked = head.start.split(' ').nth(1).and_then(|target| target[1..].parse().ok());
            respond(&mut conn, asked.unwrap_or(0)).await;
        }
    })
    .await
}

async fn respond(conn: &mut Conn, size: usize) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
    conn.send(head).await.expect("send");
    pour(conn, size).await;
}

async fn pour(conn: &mut Conn, size: usize) {
    let piece = vec![b'x'; PIECE];
    let mut left = size;
    while left > 0 {
        let now = left.min(PIECE);
        conn.send(&piece[..now]).await.expect("send");
        left -= now;
    }
}

/// Sends a body of `up` bytes and takes one of `down`.
async fn exchange(gateway: &Gateway, up: usize, down: usize) {
    let mut conn = gateway.connect().await;
    let length = up.to_string();
    let head = request("POST", &format!("/{down}"), &[("Content-Length", &length)]);
    conn.send(head).await.expect("send");
    pour(&mut conn, up).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert!(head.start.contains(" 200 "), "{head:?}");
    conn.skip(down).await.expect("the whole body");
}

/// The most memory that the process ever had, bytes.
fn peak(gateway: &Gateway) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid())).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[rstest]
#[case::up(SIZE, 0)]
#[case::down(0, SIZE)]
#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_needs_no_more_than_a_small_one(#[case] up: usize, #[case] down: usize) {
    let upstream = mirror().await;
    let yaml = format!("workers: 1\nupstream: {}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.url());
    let gateway = Gateway::start(&yaml).await;
    exchange(&gateway, 1 << 20, 1 << 20).await;
    let small = peak(&gateway);
    exchange(&gateway, up, down).await;
    let large = peak(&gateway);
    // The kernel counts it roughly: it may even be a little less.
    let more = large.saturating_sub(small);
    assert!(more <= MOST, "{} KiB more", more >> 10);
}
