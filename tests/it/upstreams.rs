//! Answers of an upstream, byte by byte: which are passed on, which are refused, and that no client gets the answer of
//! another. When a request is sent once more, and when not.

mod again;
mod pool;
mod unasked;

use crate::support::{Gateway, PATIENCE, Upstream};
use Gets::{Broken, Refused, Whole};
use parking_lot::Mutex;
use rstest::rstest;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

/// One worker, so that idle connections are found again.
async fn before(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "workers: 1
upstreams: {{ vendor: {{ url: \"{}\", response_timeout: 10s }} }}
limiters: {{ day: 1000/day }}
routes: [{{ name: all, suffix: \"*\", limiters: [day] }}]
",
        upstream.url()
    ))
    .await
}

/// The end of an answer that a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    /// The client gets a 502 from the gateway, as from an upstream that is broken.
    Refused,
    /// The client gets a response that breaks off before its end.
    Broken,
    /// The client gets a whole response with this body.
    Whole(&'static str),
}

/// The targets that were asked for, each with the number of its connection.
type Log = Arc<Mutex<Vec<(usize, String)>>>;

/// Answers `/bad` with these bytes, and everything else with the target that was asked for.
async fn saying(bad: Vec<u8>, close: bool) -> (Upstream, Log) {
    let log = Log::default();
    let (said, count) = (log.clone(), Arc::new(AtomicUsize::new(0)));
    let upstream = Upstream::raw(move |mut conn| {
        let (bad, said, number) = (bad.clone(), said.clone(), count.fetch_add(1, Relaxed));
        async move {
            while let Ok(Some(head)) = conn.head().await {
                let target = head.start.split(' ').nth(1).unwrap_or_default().to_owned();
                said.lock().push((number, target.clone()));
                let is_bad = target == "/bad";
                let sent = match is_bad {
                    true => conn.send(&bad).await,
                    false => conn.send(own(&target)).await,
                };
                if sent.is_err() || (is_bad && close) {
                    return;
                }
            }
        }
    })
    .await;
    (upstream, log)
}

fn own(target: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{target}", target.len())
}

async fn gets(gateway: &Gateway, target: &str) -> Gets {
    let mut conn = gateway.ask(target, &[]).await;
    match conn.answer().await {
        Err(_) => Gets::Broken,
        Ok(answer) if answer.status == 502 => {
            assert_eq!(answer.problem(), "upstream-broken");
            Gets::Refused
        }
        Ok(answer) => Gets::Whole(String::leak(answer.text())),
    }
}

fn ok(fields: &str, rest: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n{rest}")
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[rstest]
#[case::two_lengths(ok("Content-Length: 2\r\nContent-Length: 3\r\n", "okk"), Refused)]
#[case::one_length_in_two_texts(ok("Content-Length: 2\r\nContent-Length: 02\r\n", "ok"), Refused)]
#[case::two_lengths_in_one(ok("Content-Length: 2, 3\r\n", "okk"), Refused)]
#[case::one_length_twice_in_one(ok("Content-Length: 2, 2\r\n", "ok"), Refused)]
#[case::negative(ok("Content-Length: -2\r\n", "ok"), Refused)]
#[case::with_a_plus(ok("Content-Length: +2\r\n", "ok"), Refused)]
#[case::hexadecimal(ok("Content-Length: 0x2\r\n", "ok"), Refused)]
#[case::no_length(ok("Content-Length:\r\n", "ok"), Refused)]
#[case::a_length_with_a_unit(ok("Content-Length: 2 bytes\r\n", "ok"), Refused)]
#[case::a_fraction(ok("Content-Length: 2.0\r\n", "ok"), Refused)]
#[case::beyond_64_bits(ok("Content-Length: 18446744073709551617\r\n", "ok"), Refused)]
#[case::length_and_chunks(
    ok("Content-Length: 12\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n"),
    Refused
)]
#[case::chunks_and_length(
    ok("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", "2\r\nok\r\n0\r\n\r\n"),
    Refused
)]
#[case::gzip(ok("Transfer-Encoding: gzip\r\n", "ok"), Refused)]
#[case::gzip_in_chunks(ok("Transfer-Encoding: gzip, chunked\r\n", "2\r\nok\r\n0\r\n\r\n"), Refused)]
#[case::gzip_in_chunks_in_two_fields(
    ok("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n"),
    Refused
)]
#[case::chunks_in_gzip(ok("Transfer-Encoding: chunked, gzip\r\n", "2\r\nok\r\n0\r\n\r\n"), Refused)]
#[case::chunked_twice(
    ok("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n"),
    Refused
)]
#[case::chunked_with_a_parameter(
    ok("Transfer-Encoding: chunked;q=1\r\n", "2\r\nok\r\n0\r\n\r\n"),
    Refused
)]
#[case::quoted_coding(ok("Transfer-Encoding: \"chunked\"\r\n", "2\r\nok\r\n0\r\n\r\n"), Refused)]
#[case::identity(ok("Transfer-Encoding: identity\r\n", "ok"), Refused)]
#[case::no_coding(ok("Transfer-Encoding:\r\n", "ok"), Refused)]
#[case::unknown_coding(ok("Transfer-Encoding: xchunked\r\n", "2\r\nok\r\n0\r\n\r\n"), Refused)]
#[case::chunks_of_http_1_0("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".into(), Refused)]
#[case::no_size_of_a_chunk(ok(CHUNKED, "zz\r\nok\r\n0\r\n\r\n"), Broken)]
#[case::a_negative_chunk(ok(CHUNKED, "-2\r\nok\r\n0\r\n\r\n"), Broken)]
#[case::a_chunk_in_c(ok(CHUNKED, "0x2\r\nok\r\n0\r\n\r\n"), Broken)]
#[case::a_chunk_beyond_64_bits(ok(CHUNKED, "10000000000000002\r\nok\r\n0\r\n\r\n"), Broken)]
#[case::a_chunk_that_is_longer(ok(CHUNKED, "2\r\nokk\r\n0\r\n\r\n"), Broken)]
#[case::a_chunk_without_its_end(ok(CHUNKED, "2\r\nok0\r\n\r\n"), Broken)]
#[case::a_bare_line_feed_behind_a_size(ok(CHUNKED, "2\nok\r\n0\r\n\r\n"), Broken)]
#[case::a_bad_second_chunk(ok(CHUNKED, "2\r\nok\r\n;\r\nok\r\n0\r\n\r\n"), Broken)]
#[case::bad_trailers(ok(CHUNKED, "2\r\nok\r\n0\r\nno field\r\n\r\n"), Broken)]
#[case::endless_trailers(ok(CHUNKED, &format!("2\r\nok\r\n0\r\n{}\r\n", "a: b\r\n".repeat(20_000))), Broken)]
#[case::an_unasked_upgrade("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad".into(), Refused)]
#[case::an_upgrade_with_a_length("HTTP/1.1 101 Switching Protocols\r\nContent-Length: 3\r\n\r\nbad".into(), Refused)]
#[case::an_old_http("HTTP/0.9 200 OK\r\n\r\nbad".into(), Refused)]
#[case::another_http("HTTP/2.0 200 OK\r\nContent-Length: 3\r\n\r\nbad".into(), Refused)]
#[case::small_letters("http/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad".into(), Refused)]
#[case::another_protocol("220 smtp.example ready\r\n".into(), Refused)]
#[case::a_status_of_two_digits("HTTP/1.1 20 OK\r\nContent-Length: 3\r\n\r\nbad".into(), Refused)]
#[case::a_status_of_four_digits("HTTP/1.1 2000 OK\r\nContent-Length: 3\r\n\r\nbad".into(), Refused)]
#[case::a_status_below_100("HTTP/1.1 099 OK\r\nContent-Length: 3\r\n\r\nbad".into(), Refused)]
#[case::a_large_head(ok(&format!("X: {}\r\nContent-Length: 3\r\n", "a".repeat(70_000)), "bad"), Refused)]
#[case::a_head_without_end(ok(&"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(20_000), ""), Refused)]
#[case::many_fields(ok(&format!("{}Content-Length: 3\r\n", "X: a\r\n".repeat(200)), "bad"), Refused)]
#[case::a_folded_line(ok("X: a\r\n b\r\nContent-Length: 3\r\n", "bad"), Refused)]
#[case::a_folded_length(ok("Content-Length:\r\n 3\r\n", "bad"), Refused)]
#[case::a_space_before_the_colon(ok("Content-Length : 3\r\n", "bad"), Refused)]
#[case::a_name_with_a_space(ok("X Y: 3\r\nContent-Length: 3\r\n", "bad"), Refused)]
#[case::no_name(ok(": 3\r\nContent-Length: 3\r\n", "bad"), Refused)]
#[case::no_colon(ok("X\r\nContent-Length: 3\r\n", "bad"), Refused)]
#[case::a_nul(ok("X: a\0b\r\nContent-Length: 3\r\n", "bad"), Refused)]
#[case::a_bare_carriage_return(
    ok("X: a\rContent-Length: 9\r\nContent-Length: 3\r\n", "bad"),
    Refused
)]
#[case::interim_responses_without_end("HTTP/1.1 100 Continue\r\n\r\n".repeat(100_000), Refused)]
#[case::octets_behind_a_length(ok("Content-Length: 2\r\n", "ok and more"), Whole("ok"))]
#[case::octets_behind_the_last_chunk(ok(CHUNKED, "2\r\nok\r\n0\r\n\r\nmore"), Whole("ok"))]
#[case::a_second_response(ok("Content-Length: 2\r\n", &["ok", &ok("Content-Length: 3\r\n", "bad")].concat()), Whole("ok"))]
#[case::a_second_response_behind_nothing(ok("Content-Length: 0\r\n", &ok("Content-Length: 3\r\n", "bad")), Whole(""))]
#[case::a_body_where_none_can_be("HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nbad".into(), Whole(""))]
#[case::chunks_where_none_can_be("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n".into(), Whole(""))]
#[case::a_body_of_the_same("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\nbad".into(), Whole(""))]
#[case::an_old_connection_that_stays("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok".into(), Whole("ok"))]
#[case::the_last_on_its_connection(
    ok("Connection: close\r\nContent-Length: 2\r\n", "ok"),
    Whole("ok")
)]
#[case::the_last_in_spite_of_itself(
    ok("Connection: close\r\nConnection: keep-alive\r\nContent-Length: 2\r\n", "ok"),
    Whole("ok")
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_an_odd_answer_serves_no_other_request(
    #[case] bytes: String,
    #[case] expected: Gets,
) {
    let (upstream, log) = saying(bytes.into(), false).await;
    let gateway = before(&upstream).await;
    for _ in 0..3 {
        assert_eq!(gets(&gateway, "/bad").await, expected);
        assert_eq!(gets(&gateway, "/next").await, Whole("/next"));
    }
    let log = log.lock();
    let bad = log.iter().enumerate().filter(|(_, (_, target))| target == "/bad");
    for (i, (connection, _)) in bad {
        assert!(!log[i + 1..].iter().any(|(later, _)| later == connection), "{log:?}");
    }
    assert_eq!(log.len(), 6, "nothing is asked twice: {log:?}");
}

#[rstest]
#[case::of_a_length(ok("Content-Length: 9\r\n", "some"), Broken)]
#[case::of_a_length_of_which_nothing_came(ok("Content-Length: 9\r\n", ""), Broken)]
#[case::within_a_chunk(ok(CHUNKED, "9\r\nsome"), Broken)]
#[case::behind_a_chunk(ok(CHUNKED, "4\r\nsome\r\n"), Broken)]
#[case::before_the_first_chunk(ok(CHUNKED, ""), Broken)]
#[case::within_the_last_chunk(ok(CHUNKED, "4\r\nsome\r\n0\r\n"), Broken)]
#[case::within_trailers(ok(CHUNKED, "4\r\nsome\r\n0\r\nX: y\r\n"), Broken)]
#[case::within_the_status("HTTP/1.1 2".into(), Refused)]
#[case::within_the_head("HTTP/1.1 200 OK\r\nContent-Le".into(), Refused)]
#[case::before_the_end_of_the_head("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n".into(), Refused)]
#[case::behind_an_interim_response("HTTP/1.1 100 Continue\r\n\r\n".into(), Refused)]
#[case::text_alone("hello\n".into(), Refused)]
#[case::of_what_only_the_end_ends(ok("", "all"), Whole("all"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_answer_never_looks_complete(#[case] bytes: String, #[case] expected: Gets) {
    let (upstream, log) = saying(bytes.into(), true).await;
    let gateway = before(&upstream).await;
    for _ in 0..3 {
        assert_eq!(gets(&gateway, "/bad").await, expected);
        assert_eq!(gets(&gateway, "/next").await, Whole("/next"));
    }
    assert_eq!(log.lock().len(), 6, "nothing is asked twice: {log:?}");
}

#[rstest]
#[case::a_length("Content-Length: 2\r\n\r\nok")]
#[case::one_length_twice("Content-Length: 2\r\nContent-Length: 2\r\n\r\nok")]
#[case::chunks("Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")]
#[case::chunks_in_capitals("TRANSFER-ENCODING: CHUNKED\r\n\r\n2\r\nok\r\n0\r\n\r\n")]
#[case::chunks_with_extensions("Transfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0;c\r\n\r\n")]
#[case::interim_responses_before_it("\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_answer_passes_and_its_connection_is_used_again(#[case] rest: &str) {
    let bytes = match rest {
        "\r\n" => format!(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{}",
            own("ok")
        ),
        rest => format!("HTTP/1.1 200 OK\r\n{rest}"),
    };
    let (upstream, _log) = saying(bytes.into(), false).await;
    let gateway = before(&upstream).await;
    for _ in 0..20 {
        assert_eq!(gets(&gateway, "/bad").await, Whole("ok"));
        assert_eq!(gets(&gateway, "/next").await, Whole("/next"));
    }
    // Few more where a request came before the last one's connection was back.
    let made = upstream.connections();
    assert!(made <= 10, "{made} connections for 40 requests");
}

// ---------------------------------------------------------------------------------------- once more

// ----------------------------------------------------------------------------------------- the pool

#[rstest]
#[case::before_the_response("")]
#[case::in_the_middle_of_it("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst")]
#[case::in_the_middle_of_chunks(
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_upstream_call_within_100_ms(#[case] sent: &'static str) {
    let (asked, ended) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (has_asked, has_ended) = (asked.clone(), ended.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (asked, ended) = (has_asked.clone(), has_ended.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            conn.send(sent).await.expect("send");
            asked.add_permits(1);
            conn.rest().await;
            ended.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream).await;
    // The best of some: a busy machine adds to it, and takes nothing away.
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let mut conn = gateway.ask("/", &[]).await;
        asked.acquire().await.expect("open").forget();
        if !sent.is_empty() {
            conn.until("first").await.expect("the first piece");
        }
        drop(conn);
        let left = Instant::now();
        let permit = timeout(PATIENCE, ended.acquire()).await;
        permit.expect("the gateway closes it").expect("open").forget();
        best = best.min(left.elapsed());
    }
    assert!(best < Duration::from_millis(100), "{best:?}");
}
