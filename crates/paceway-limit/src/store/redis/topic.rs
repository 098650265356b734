//! The channels of a store that a gateway listens on, and the meaning of their messages. A message that is not understood
//! changes nothing: another version may have sent it.

use crate::{
    algorithm::{MAX_BUDGET, Micros},
    store::{Opening, Pauses, calls::Calls},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The first part of all channels, whatever the prefix of the keys is.
pub(super) const CHANNEL: &str = "paceway:call:";

/// One channel, with what its messages change.
#[derive(Debug, Clone)]
pub(super) enum Topic {
    /// Tickets of this connection whose requests get a concurrency permit. The channel has the number of the connection.
    Calls(Arc<Calls>),
    /// News that concern all gateways: the pauses of limiters, and slots that have become free. Other deployments may use
    /// the server, so only keys that begin with this prefix are meant, and each database has a channel. A channel with the
    /// `id` of this process shows the others that it lives; its messages mean nothing.
    News { prefix: Arc<str>, database: u8, pauses: Arc<Pauses>, id: Arc<str> },
}

/// The end of the channel of pauses in a database: subscribers receive those of all databases of a server.
pub(super) fn channel_end(database: u8) -> String {
    if database == 0 { String::new() } else { format!(":{database}") }
}

// === impl Topic ===

impl Topic {
    /// The names of the channels; the first one has the messages.
    pub(super) fn channels(&self) -> Vec<String> {
        match self {
            Self::Calls(calls) => vec![format!("{CHANNEL}{}", calls.gateway())],
            Self::News { database, id, .. } => {
                vec![format!("{CHANNEL}pauses{}", channel_end(*database)), format!("{CHANNEL}{id}")]
            }
        }
    }

    /// The subject of its messages, for the log.
    pub(super) fn news(&self) -> &'static str {
        match self {
            Self::Calls(_) => "concurrency permits that become free",
            Self::News { .. } => "pauses and free slots of other gateways",
        }
    }

    /// The subscription begins. Messages before it may be lost.
    pub(super) fn begins(&self) {
        match self {
            // Every waiting request asks again.
            Self::Calls(calls) => calls.call_all(),
            // The next reply about a paused limiter says so. Waiting calls keep the slots that they have.
            Self::News { pauses, .. } => pauses.set_hears(true),
        }
    }

    /// The subscription has ended. Messages from now on are lost.
    pub(super) fn ends(&self) {
        if let Self::News { pauses, .. } = self {
            pauses.set_hears(false);
        }
    }

    /// A message has come.
    pub(super) fn comes(&self, message: &[u8]) {
        let Ok(message) = str::from_utf8(message) else { return };
        match self {
            Self::Calls(calls) => {
                if let Ok(number) = message.parse() {
                    calls.call(number);
                }
            }
            Self::News { prefix, pauses, .. } => {
                hear(prefix, pauses, message);
            }
        }
    }
}

/// Reads `KEY MICROS_LEFT STATUS`, which is about a pause (with nothing left, it has been ended; with `-` after the status it
/// lowers the rate); `KEY MICROS_LEFT =0`, which is about the rest of a quota; or `KEY MICROS_LEFT free`, which is about a slot that has become free
/// before others.
fn hear(prefix: &str, pauses: &Pauses, message: &str) -> Option<()> {
    let mut words = message.rsplitn(3, ' ');
    let status = words.next()?;
    let left: Micros = words.next()?.parse().ok()?;
    let key = words.next()?;
    key.strip_prefix(prefix)?.strip_prefix(':')?;
    if status == "free" {
        let left = Duration::from_micros(left.clamp(0, MAX_BUDGET).unsigned_abs());
        pauses.openings().opened(key, Opening::new(Instant::now() + left));
        return Some(());
    }
    if status.starts_with('=') {
        pauses.learn_count(key, left);
        return Some(());
    }
    let fell = status.strip_suffix('-');
    let status = fell.unwrap_or(status).parse().ok()?;
    match left {
        ..=0 => pauses.end(key),
        _ if fell.is_some() => pauses.learn_fall(key, left, status),
        _ => pauses.learn(key, left, status),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn news(prefix: &str, pauses: &Arc<Pauses>) -> Topic {
        Topic::News { prefix: prefix.into(), database: 0, pauses: pauses.clone(), id: "f00".into() }
    }

    #[rstest]
    #[case::a_pause("paceway:{a}:T:a 6000000 429", Some(429))]
    #[case::a_key_with_spaces("paceway:{a}:T:a k y 6000000 429", None)]
    #[case::of_another_deployment("paceway2:{a}:T:a 6000000 429", None)]
    #[case::the_trial_of_a_new_subscription("0", None)]
    #[case::no_number("paceway:{a}:T:a soon 429", None)]
    #[case::no_status("paceway:{a}:T:a 6000000 99999", None)]
    #[case::of_another_version("pause=paceway:{a}:T:a", None)]
    #[tokio::test]
    async fn a_message_names_the_paused_state(#[case] message: &str, #[case] status: Option<u16>) {
        let pauses = Arc::new(Pauses::default());
        let topic = news("paceway", &pauses);
        topic.comes(message.as_bytes());
        assert_eq!(pauses.get("paceway:{a}:T:a").map(|known| known.status), status);
    }

    #[tokio::test]
    async fn a_message_with_no_time_left_ends_a_pause() {
        let pauses = Arc::new(Pauses::default());
        let topic = news("p", &pauses);
        topic.comes(b"p:a b 6000000 429");
        assert!(pauses.get("p:a b").is_some());
        topic.comes(b"p:a b 0 429");
        assert!(pauses.is_empty());
    }
}
