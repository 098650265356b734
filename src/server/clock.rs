//! How long a connection may wait for its client. One timer a connection, which requests that are served in time do not
//! touch.

use super::{LINGER, edge::Wait};
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

/// A connection that has had no request for so long gives its buffers back: most of what it costs, and little to make
/// anew.
pub(super) const REST: Duration = Duration::from_millis(500);

/// How long a connection may wait for its client.
pub(super) struct Clock {
    limits: ClientLimits,
    /// What it waits for, and a number that changes with each step forward.
    waits: (Wait, u32),
    /// When it has waited long enough.
    until: Option<Instant>,
    /// Made when first needed. Rings at that time or before, then it is set again.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl Clock ===

impl Clock {
    pub(super) fn new(limits: ClientLimits) -> Self {
        Self { limits, waits: (Wait::Nothing, 0), until: None, timer: None }
    }

    /// From now on nobody may take long to say that nothing more comes.
    pub(super) fn hurry(&mut self) {
        self.limits.idle_timeout = self.limits.idle_timeout.min(LINGER);
        // What is waited for now has to be asked anew.
        self.waits = (Wait::Nothing, 0);
    }

    /// Ready with what has been waited for too long. To be polled after everything that happens.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, waits: (Wait, u32)) -> Poll<Wait> {
        if waits != self.waits {
            self.waits = waits;
            self.until = self.limit(waits.0).map(|limit| Instant::now() + limit);
        }
        let Some(until) = self.until else { return Poll::Pending };
        let timer = match &mut self.timer {
            // Registered with this task, and early enough to be set again then.
            Some(timer) if timer.deadline() <= until && !timer.is_elapsed() => {
                return Poll::Pending;
            }
            Some(timer) => {
                timer.as_mut().reset(until);
                timer
            }
            none => none.insert(Box::pin(sleep_until(until))),
        };
        // Without a budget: it has to hear of this task, whatever else this has done.
        ready!(pin!(unconstrained(timer.as_mut())).poll(cx));
        Poll::Ready(waits.0)
    }

    fn limit(&self, wait: Wait) -> Option<Duration> {
        match wait {
            Wait::Nothing => None,
            Wait::Start | Wait::Head => Some(self.limits.header_timeout),
            Wait::Request => Some(self.limits.idle_timeout),
            Wait::Rest => Some(REST.min(self.limits.idle_timeout)),
            Wait::Write => Some(self.limits.body_timeout),
        }
    }
}
