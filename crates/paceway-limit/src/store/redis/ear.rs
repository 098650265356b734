//! Hears who is called to a place, on a connection of its own to one server. Calls that were lost while there was none
//! are made up for: whoever waits asks again when there is one.

use super::{
    ConnectError,
    connect::{Access, Target, ask, no_redis},
    link::{RECONNECT, UNRESPONSIVE},
    reader::Reader,
    reason::refusal,
    resp::{self, Value},
    stream::{Incoming, Outgoing},
};
use crate::{
    log::{Permit, Throttle},
    store::calls::Calls,
};
use std::{future::poll_fn, io, sync::Arc, task::Poll};
use tokio::{
    task::AbortHandle,
    time::{Instant, interval, sleep, timeout},
};

/// Before a gateway's number: where the script calls its tickets.
const CHANNEL: &str = "paceway:call:";
/// A server may refuse each subscription in other words.
static REFUSED: Throttle = Throttle::new();

/// A task that hears. Dropped, it ends.
pub(super) struct Ear(AbortHandle);

// === impl Ear ===

impl Ear {
    pub(super) fn open(access: Arc<Access>, target: Target, calls: Arc<Calls>) -> Self {
        Self(tokio::spawn(keep(access, target, calls)).abort_handle())
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Listens, and again when the connection is lost.
async fn keep(access: Arc<Access>, target: Target, calls: Arc<Calls>) {
    let channel = format!("{CHANNEL}{}", calls.gateway());
    let mut told = None;
    loop {
        let connected = timeout(UNRESPONSIVE, target.connect(&access)).await;
        if let Ok(Ok((mut stream, place))) = connected {
            // The script calls by the same right. No ticket has this number.
            let words = [b"PUBLISH".as_slice(), channel.as_bytes(), b"0"];
            let called = timeout(UNRESPONSIVE, ask(&mut stream, &place, &words)).await;
            let heard = match called {
                Ok(Ok(Value::Error(words))) => Heard::Refused(words),
                Ok(Ok(_)) => {
                    let (mut from, mut to) = stream.into_split();
                    tokio::select! {
                        heard = listen(&mut from, &mut to, &channel, &calls) => heard,
                        () = target.has_left(&access, &place) => {
                            Heard::Lost(io::Error::other("the Sentinels name another server"))
                        }
                    }
                }
                Ok(Err(error)) => Heard::Lost(io::Error::other(error)),
                Err(late) => Heard::Lost(late.into()),
            };
            match heard {
                // Once for each reason: it is tried again.
                Heard::Refused(words) if told.as_ref() != Some(&words) => {
                    let (ConnectError::Refused(error) | ConnectError::Unreachable(error)) =
                        refusal(&place, &access.login, &words);
                    if let Some(Permit { suppressed }) = REFUSED.permit() {
                        tracing::warn!(
                            channel,
                            error,
                            suppressed,
                            "who waits for a place cannot be called"
                        );
                    }
                    told = Some(words);
                }
                Heard::Refused(_) => {}
                Heard::Lost(error) => {
                    tracing::debug!(%error, server = %place, "calls to places are not heard");
                }
            }
        }
        sleep(RECONNECT).await;
    }
}

/// Why nothing is heard any more.
enum Heard {
    Refused(String),
    Lost(io::Error),
}

/// Until the connection ends.
async fn listen(from: &mut Incoming, to: &mut Outgoing, channel: &str, calls: &Calls) -> Heard {
    let subscribe = resp::command(&[b"SUBSCRIBE", channel.as_bytes()]);
    let mut unsent = Vec::new();
    let mut reader = Reader::new();
    let (mut subscribed, mut refused) = (false, None);
    let mut last = Instant::now();
    // Subscribing anew changes nothing, and its answer shows that the server is there.
    let mut ask = interval(UNRESPONSIVE / 2);
    let lost = poll_fn(|cx| {
        while ask.poll_tick(cx).is_ready() {
            if last.elapsed() >= UNRESPONSIVE * 2 {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "it is silent"));
            }
            if unsent.is_empty() {
                unsent.extend_from_slice(&subscribe);
            }
        }
        while !unsent.is_empty() {
            match to.poll_write(cx, &unsent) {
                Poll::Ready(Ok(sent)) => drop(unsent.drain(..sent)),
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => break,
            }
        }
        if let Poll::Ready(Err(error)) = to.poll_flush(cx) {
            return Poll::Ready(error);
        }
        reader.poll(from, cx, |value| {
            last = Instant::now();
            match event(value)? {
                Event::Subscribed if !subscribed => {
                    subscribed = true;
                    calls.call_all();
                }
                Event::Subscribed => {}
                Event::Call(number) => calls.call(number),
                Event::Refused(words) => {
                    refused = Some(words);
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
            }
            Ok(())
        })
    })
    .await;
    match refused {
        Some(words) => Heard::Refused(words),
        None => Heard::Lost(lost),
    }
}

enum Event {
    Subscribed,
    /// The ticket with this number.
    Call(i64),
    Refused(String),
}

fn event(value: Value) -> io::Result<Event> {
    let parts = match value {
        Value::Error(words) => return Ok(Event::Refused(words)),
        Value::List(parts) => parts,
        _ => return Err(no_redis()),
    };
    match &parts[..] {
        [Value::Bytes(kind), _, Value::Bytes(number)] if kind == b"message" => {
            // No ticket has the number 0.
            let number = str::from_utf8(number).ok().and_then(|number| number.parse().ok());
            Ok(Event::Call(number.unwrap_or(0)))
        }
        [Value::Bytes(kind), ..] if kind == b"subscribe" => Ok(Event::Subscribed),
        _ => Err(no_redis()),
    }
}
