//! Receives what a server publishes on one channel, on a connection of its own to that server. Decides nothing: the topic
//! says what a message means, and how messages are made up for that were lost while there was no connection.

use super::{
    reason::{ConnectError, refusal},
    topic::Topic,
    transport::{
        Access, Destination, RECONNECT, UNRESPONSIVE, Unsubscribed, ask, subscribe, words,
    },
};
use crate::log::{Permit, Throttle};
use redis::Value;
use std::{io, sync::Arc};
use tokio::{
    task::AbortHandle,
    time::{sleep, timeout},
};

/// A server may refuse each subscription in other words.
static REFUSED: Throttle = Throttle::new();

/// A task that receives the messages of one topic from one server until it is dropped.
pub(super) struct Subscriber(AbortHandle);

// === impl Subscriber ===

impl Subscriber {
    pub(super) fn open(access: Arc<Access>, destination: Destination, topic: Topic) -> Self {
        Self(tokio::spawn(keep(access, destination, topic)).abort_handle())
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Subscribes, and again 200 ms after each loss of the connection.
async fn keep(access: Arc<Access>, destination: Destination, topic: Topic) {
    let channels = topic.channels();
    let channel = &channels[0];
    let mut reported = None;
    loop {
        let connected = timeout(UNRESPONSIVE, destination.connect(&access)).await;
        if let Ok(Ok((mut stream, endpoint))) = connected {
            // A script needs the right to publish, too; without it the log says so now and not at the first message. No
            // topic has a message `0`.
            let publish = [b"PUBLISH".as_slice(), channel.as_bytes(), b"0"];
            let published = timeout(UNRESPONSIVE, ask(&mut stream, &endpoint, &publish)).await;
            let ended = match published {
                Ok(Ok(Value::ServerError(error))) => Unsubscribed::by(words(&error)),
                Ok(Ok(_)) => {
                    tokio::select! {
                        ended = subscribe(stream, &channels, || topic.begins(), |message| topic.comes(message)) => ended,
                        () = destination.has_left(&access, &endpoint) => {
                            Unsubscribed::Lost(io::Error::other("the Sentinels name another server"))
                        }
                    }
                }
                Ok(Err(error)) => Unsubscribed::Lost(io::Error::other(error)),
                Err(late) => Unsubscribed::Lost(late.into()),
            };
            topic.ends();
            match ended {
                // Logged once for each reason, because it is tried again.
                Unsubscribed::Refused(words) if reported.as_ref() != Some(&words) => {
                    let (ConnectError::Refused(error) | ConnectError::Unreachable(error)) =
                        refusal(&endpoint, &access.login, &words);
                    if let Some(Permit { suppressed }) = REFUSED.permit() {
                        tracing::warn!(
                            channel,
                            error,
                            suppressed,
                            "the store does not allow messages about {}",
                            topic.news()
                        );
                    }
                    reported = Some(words);
                }
                Unsubscribed::Refused(_) => {}
                Unsubscribed::Lost(error) => {
                    tracing::debug!(%error, server = %endpoint, channel, "messages are not received");
                }
            }
        }
        sleep(RECONNECT).await;
    }
}
