//! Time-outs of one client connection. All of them share one timer, which requests that are served in time do not touch.

use super::{edge::ClientWait, phase::LINGER};
use crate::config::ClientLimits;
use std::{
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    task::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

/// A connection without a request gives its buffers back after 500 ms. They are most of what it costs, and little to make
/// again.
pub(super) const REST: Duration = Duration::from_millis(500);

/// Time-outs of one client connection.
pub(super) struct ClientTimer {
    limits: ClientLimits,
    /// The present wait of the connection, and a number that changes with each step forward.
    waits: (ClientWait, u32),
    /// The end of the wait; `None` where it has no limit.
    until: Option<Instant>,
    /// A timer that fires at `until` or earlier, and is set again then. It is made when it is first needed.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl ClientTimer ===

impl ClientTimer {
    pub(super) fn new(limits: ClientLimits) -> Self {
        Self { limits, waits: (ClientWait::Nothing, 0), until: None, timer: None }
    }

    /// Limits the idle time to 1 s from now on, since the connection is closing.
    pub(super) fn hurry(&mut self) {
        self.limits.idle_timeout = self.limits.idle_timeout.min(LINGER);
        // The next poll computes the end of the present wait again.
        self.waits = (ClientWait::Nothing, 0);
    }

    /// Ready with what the connection has waited for too long. To be polled after everything that happens on it.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        waits: (ClientWait, u32),
    ) -> Poll<ClientWait> {
        if waits != self.waits {
            self.waits = waits;
            self.until = self.limit(waits.0).map(|limit| Instant::now() + limit);
        }
        let Some(until) = self.until else { return Poll::Pending };
        let timer = match &mut self.timer {
            // This timer knows the task, and fires early enough to be set again.
            Some(timer) if timer.deadline() <= until && !timer.is_elapsed() => {
                return Poll::Pending;
            }
            Some(timer) => {
                timer.as_mut().reset(until);
                timer
            }
            none => none.insert(Box::pin(sleep_until(until))),
        };
        // A task that has used up tokio's budget would get Pending here without being registered at the timer.
        ready!(pin!(unconstrained(timer.as_mut())).poll(cx));
        Poll::Ready(waits.0)
    }

    fn limit(&self, wait: ClientWait) -> Option<Duration> {
        match wait {
            ClientWait::Nothing => None,
            ClientWait::Start | ClientWait::Head => Some(self.limits.header_timeout),
            ClientWait::Request => Some(self.limits.idle_timeout),
            ClientWait::Body => Some(self.limits.body_timeout.min(self.limits.idle_timeout)),
            ClientWait::Rest => Some(REST.min(self.limits.idle_timeout)),
            ClientWait::Write => Some(self.limits.body_timeout),
        }
    }
}
