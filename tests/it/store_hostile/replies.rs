//! Replies that dribble, are cut, have no bounds, or answer a question of another caller.

use super::{Manner, Server, assert_recovers, decide};
use paceway::store::StoreError;
use rstest::rstest;
use std::sync::atomic::Ordering::SeqCst;

#[rstest]
#[case::nothing("", "unreachable")]
#[case::half_a_list("*8\r\n:1\r\n", "unreachable")]
#[case::half_of_bytes("$32\r\n12345678", "unreachable")]
#[case::half_a_number(":1", "unreachable")]
#[case::http("HTTP/1.1 400 Bad Request\r\n\r\n", "protocol")]
#[case::zeros("\0\0\0\0\0\0\0\0", "protocol")]
#[case::long_bytes("$99999999999\r\n", "protocol")]
#[case::long_list("*2147483647\r\n", "protocol")]
#[case::negative("$-7\r\n", "protocol")]
#[case::resp3("%1\r\n+a\r\n:1\r\n", "protocol")]
#[case::deep("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "protocol")]
#[tokio::test]
async fn a_malformed_reply_ends_the_connection(#[case] words: &'static str, #[case] kind: &str) {
    let server = Server::start(Manner::SaysAndCloses(words)).await;
    let store = server.store().await;
    let error = decide(&store).await.expect_err("no answer");
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(server.commands.load(SeqCst), 1, "sent twice");
    assert_recovers(&store).await;
    assert_eq!(server.connections.load(SeqCst), 2);
}

#[rstest]
#[case::number(":5\r\n")]
#[case::line("+OK\r\n")]
#[case::null("$-1\r\n")]
#[case::null_list("*-1\r\n")]
#[case::empty("$0\r\n\r\n")]
#[case::empty_list("*0\r\n")]
#[case::short_bytes("$3\r\nabc\r\n")]
#[case::too_few("$8\r\nabcdefgh\r\n")]
#[case::absurd("$32\r\nzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz\r\n")]
#[case::the_long_way_without_words("*1\r\n$0\r\n\r\n")]
#[case::no_integers("$32\r\n????????????????????????????????\r\n")]
#[case::numbers_alone("*2\r\n:1\r\n:2\r\n")]
#[tokio::test]
async fn a_reply_of_another_shape_is_an_error(#[case] words: &'static str) {
    let server = Server::start(Manner::Says(words)).await;
    let store = server.store().await;
    for _ in 0..3 {
        assert_eq!(decide(&store).await, Err(StoreError::Protocol));
    }
    assert_eq!(server.connections.load(SeqCst), 1, "it speaks as a server does");
}

#[tokio::test]
async fn a_reply_in_small_pieces_is_read() {
    let server = Server::start(Manner::Dribbles).await;
    let store = server.store().await;
    assert_eq!(decide(&store).await, Ok(true));
    assert_eq!(server.connections.load(SeqCst), 1);
}

#[tokio::test]
async fn an_unrequested_reply_is_dropped() {
    let server = Server::start(Manner::SaysTwice).await;
    let store = server.store().await;
    assert_eq!(decide(&store).await, Ok(true));
    assert_recovers(&store).await;
    assert!(server.connections.load(SeqCst) <= 2);
}

#[tokio::test]
async fn a_truncated_long_reply_is_an_error() {
    let server = Server::start(Manner::Promises(3_000_000)).await;
    let store = server.store().await;
    assert_eq!(decide(&store).await.map_err(|error| error.kind()), Err("unreachable"));
    assert_recovers(&store).await;
}

/// redis-rs would read any of these as far as they come; the connection ends before it has to.
#[rstest]
#[case::a_megabyte_of_nested_lists("*1\r\n", 250_000)]
#[case::bytes_of_400_megabytes("$419430400\r\n", 1)]
#[case::a_list_of_400_megabytes("*104857600\r\n:1\r\n", 1)]
#[case::lists_that_add_up("*4\r\n$2621440\r\n", 1_000_000)]
#[case::an_endless_line("-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 1_000_000)]
#[tokio::test]
async fn a_reply_without_bounds_ends_the_connection(
    #[case] bytes: &'static str,
    #[case] count: usize,
) {
    let server = Server::start(Manner::Repeats(bytes, count)).await;
    let store = server.store().await;
    assert_eq!(decide(&store).await, Err(StoreError::Protocol));
    assert_recovers(&store).await;
    assert_eq!((server.commands.load(SeqCst), server.connections.load(SeqCst)), (2, 2));
}

#[tokio::test]
async fn a_cancelled_call_takes_no_reply_of_another() {
    let server = Server::start(Manner::Works).await;
    let store = server.store().await;
    for _ in 0..20 {
        let left = tokio::spawn({
            let store = store.clone();
            async move { decide(&store).await }
        });
        tokio::task::yield_now().await;
        left.abort();
        assert_eq!(decide(&store).await, Ok(true));
    }
    assert_eq!(server.connections.load(SeqCst), 1);
}
