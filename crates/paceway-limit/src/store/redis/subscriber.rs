//! Receives the tickets that a server calls when a concurrency permit is free, on a connection of its own to that server.
//! Calls that are lost while there is no connection are made up for: after each new one every waiting request asks again.

use super::{
    reason::{ConnectError, refusal},
    transport::{
        Access, Destination, RECONNECT, UNRESPONSIVE, Unsubscribed, ask, subscribe, words,
    },
};
use crate::{
    log::{Permit, Throttle},
    store::calls::Calls,
};
use redis::Value;
use std::{io, sync::Arc};
use tokio::{
    task::AbortHandle,
    time::{sleep, timeout},
};

/// The channel on which the script calls tickets is this and the number of the gateway that has them.
const CHANNEL: &str = "paceway:call:";
/// A server may refuse each subscription in other words.
static REFUSED: Throttle = Throttle::new();

/// A task that receives calls from one server until it is dropped.
pub(super) struct Subscriber(AbortHandle);

// === impl Subscriber ===

impl Subscriber {
    pub(super) fn open(access: Arc<Access>, destination: Destination, calls: Arc<Calls>) -> Self {
        Self(tokio::spawn(keep(access, destination, calls)).abort_handle())
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Subscribes, and again 200 ms after each loss of the connection.
async fn keep(access: Arc<Access>, destination: Destination, calls: Arc<Calls>) {
    let channel = format!("{CHANNEL}{}", calls.gateway());
    let mut reported = None;
    loop {
        let connected = timeout(UNRESPONSIVE, destination.connect(&access)).await;
        if let Ok(Ok((mut stream, place))) = connected {
            // A script needs the right to publish, too; without it the log says so now and not at the first call. No
            // ticket has the number 0.
            let publish = [b"PUBLISH".as_slice(), channel.as_bytes(), b"0"];
            let published = timeout(UNRESPONSIVE, ask(&mut stream, &place, &publish)).await;
            let ended = match published {
                Ok(Ok(Value::ServerError(error))) => Unsubscribed::Refused(words(&error)),
                Ok(Ok(_)) => {
                    tokio::select! {
                        ended = subscribe(stream, &channel, || calls.call_all(), |number| call(&calls, number)) => ended,
                        () = destination.has_left(&access, &place) => {
                            Unsubscribed::Lost(io::Error::other("the Sentinels name another server"))
                        }
                    }
                }
                Ok(Err(error)) => Unsubscribed::Lost(io::Error::other(error)),
                Err(late) => Unsubscribed::Lost(late.into()),
            };
            match ended {
                // Logged once for each reason, because it is tried again.
                Unsubscribed::Refused(words) if reported.as_ref() != Some(&words) => {
                    let (ConnectError::Refused(error) | ConnectError::Unreachable(error)) =
                        refusal(&place, &access.login, &words);
                    if let Some(Permit { suppressed }) = REFUSED.permit() {
                        tracing::warn!(
                            channel,
                            error,
                            suppressed,
                            "requests that wait for a place cannot be called"
                        );
                    }
                    reported = Some(words);
                }
                Unsubscribed::Refused(_) => {}
                Unsubscribed::Lost(error) => {
                    tracing::debug!(%error, server = %place, "calls to places are not received");
                }
            }
        }
        sleep(RECONNECT).await;
    }
}

/// Wakes the request whose ticket has the number that is the text of a message; none has another text.
fn call(calls: &Calls, number: &[u8]) {
    if let Some(number) = str::from_utf8(number).ok().and_then(|number| number.parse().ok()) {
        calls.call(number);
    }
}
