//! The begins and the ends of pauses, for those who report them. A receiver that lags behind misses the oldest ones.

use super::Pauses;
use std::sync::{Arc, OnceLock};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{Instant, sleep_until},
};

/// Events that a receiver may lag behind.
const KEPT: usize = 1024;

/// A change of the pause of one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseEvent {
    /// A pause has begun, or was learned.
    Began {
        /// The name of the state.
        key: Arc<str>,
        /// The end of the pause.
        until: Instant,
        /// The status of the answer that caused it; 0 if it is not known yet.
        status: u16,
    },
    /// A pause ends later than was known.
    Grew {
        /// The name of the state.
        key: Arc<str>,
        /// The end of the pause.
        until: Instant,
        /// The status of the answer that caused it; 0 if it is not known yet.
        status: u16,
    },
    /// A pause is over, or an operator has ended it.
    Ended {
        /// The name of the state.
        key: Arc<str>,
        /// False if an operator has ended it.
        is_over: bool,
    },
}

// === impl PauseEvent ===

impl PauseEvent {
    /// The name of the state.
    pub fn key(&self) -> &Arc<str> {
        match self {
            Self::Began { key, .. } | Self::Grew { key, .. } | Self::Ended { key, .. } => key,
        }
    }
}

/// The channel of the events. It exists from the first receiver on.
#[derive(Debug, Default)]
pub(super) struct Events(OnceLock<broadcast::Sender<PauseEvent>>);

/// Receives the events of one table.
#[derive(Debug)]
pub struct PauseEvents {
    pauses: Arc<Pauses>,
    receiver: broadcast::Receiver<PauseEvent>,
}

// === impl Events ===

impl Events {
    pub(super) fn say(&self, event: PauseEvent) {
        if let Some(events) = self.0.get() {
            // An error says that no receiver is left.
            drop(events.send(event));
        }
    }
}

// === impl PauseEvents ===

impl PauseEvents {
    pub(super) fn new(pauses: &Arc<Pauses>) -> Self {
        let events = pauses.events.0.get_or_init(|| broadcast::channel(KEPT).0);
        Self { receiver: events.subscribe(), pauses: pauses.clone() }
    }

    /// The next event. It waits for the ends of the pauses itself, so that they are reported when they come.
    pub async fn next(&mut self) -> PauseEvent {
        loop {
            let end = self.pauses.first_end();
            tokio::select! {
                biased;
                event = self.receiver.recv() => match event {
                    Ok(event) => return event,
                    Err(RecvError::Lagged(_)) => {}
                    // The table, which this receiver keeps, has the sender.
                    Err(RecvError::Closed) => std::future::pending().await,
                },
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {
                    self.pauses.forget_ended();
                }
            }
        }
    }
}
