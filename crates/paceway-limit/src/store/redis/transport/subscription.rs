//! A subscription to some channels of one server, by redis-rs. Its connection carries nothing else: a server without RESP3
//! (Redis 5) takes no other commands on it.

use super::{
    bounded::{BoundedStream, Replies, Traffic},
    messages::words,
    session::{UNRESPONSIVE, silent_start},
    stream::{RedisStream, closed},
};
use crate::store::redis::reason::is_passing;
use futures_util::StreamExt;
use redis::{
    RedisError, ServerError,
    aio::{PubSub, PubSubSink},
};
use std::{io, sync::Arc};
use tokio::time::{sleep, timeout};

/// Why a subscription has ended.
#[derive(Debug)]
pub(in crate::store::redis) enum Unsubscribed {
    /// The server does not allow it; its words.
    Refused(String),
    /// The connection is lost, or the server takes no commands for a while.
    Lost(io::Error),
}

// === impl Unsubscribed ===

impl Unsubscribed {
    /// The end of a subscription that the server answers with an error. A server that executes a long script, loads its data
    /// or waits for its master refuses every command, and a later attempt succeeds without a change of rights.
    pub(in crate::store::redis) fn by(words: String) -> Self {
        if is_passing(&words) { Self::Lost(io::Error::other(words)) } else { Self::Refused(words) }
    }
}

/// Subscribes to `channels` and hands on the text of each message, until the connection ends; calls `confirmed` once, when
/// the server has confirmed the subscription and no later message can be missed.
pub(in crate::store::redis) async fn subscribe(
    stream: RedisStream,
    channels: &[String],
    confirmed: impl FnOnce(),
    mut message: impl FnMut(&[u8]),
) -> Unsubscribed {
    let (stream, traffic) = BoundedStream::new(stream, Replies::Pushed);
    let pubsub = match PubSub::new(&silent_start(), stream).await {
        Ok(pubsub) => pubsub,
        Err(error) => return ended(error, &traffic),
    };
    let (sink, mut messages) = pubsub.split();
    let receive = async {
        while let Some(came) = messages.next().await {
            traffic.took();
            message(came.get_payload_bytes());
        }
    };
    tokio::select! {
        error = confirm(sink, channels, &traffic, confirmed) => error,
        () = receive => Unsubscribed::Lost(traffic.error().unwrap_or_else(closed)),
    }
}

/// Subscribes once a second: again changes nothing, and each confirmation shows that the server is there.
async fn confirm(
    mut sink: PubSubSink,
    channels: &[String],
    traffic: &Arc<Traffic>,
    confirmed: impl FnOnce(),
) -> Unsubscribed {
    let mut confirmed = Some(confirmed);
    loop {
        for channel in channels {
            match timeout(UNRESPONSIVE * 2, sink.subscribe(channel)).await {
                Ok(Ok(())) => traffic.took(),
                Ok(Err(error)) => return ended(error, traffic),
                Err(_) => {
                    let silent = io::Error::new(io::ErrorKind::TimedOut, "it is silent");
                    return Unsubscribed::Lost(silent);
                }
            }
        }
        if let Some(confirmed) = confirmed.take() {
            confirmed();
        }
        sleep(UNRESPONSIVE / 2).await;
    }
}

fn ended(error: RedisError, traffic: &Traffic) -> Unsubscribed {
    match ServerError::try_from(error) {
        Ok(error) => Unsubscribed::by(words(&error)),
        Err(error) => {
            Unsubscribed::Lost(traffic.error().unwrap_or_else(|| io::Error::other(error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Whether the log says that a right is missing.
    #[rstest]
    #[case::a_long_script(
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
        false
    )]
    #[case::a_start("LOADING Redis is loading the dataset in memory", false)]
    #[case::a_lost_master("MASTERDOWN Link with MASTER is down", false)]
    #[case::a_failover("CLUSTERDOWN The cluster is down", false)]
    #[case::a_right("NOPERM No permissions to access a channel", true)]
    #[case::a_login("NOAUTH Authentication required.", true)]
    fn only_a_missing_right_refuses_messages(#[case] words: &str, #[case] refuses: bool) {
        let ended = Unsubscribed::by(words.to_owned());
        assert_eq!(matches!(ended, Unsubscribed::Refused(_)), refuses, "{ended:?}");
    }
}
