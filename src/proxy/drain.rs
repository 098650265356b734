//! Tells waiting requests when the drain of a gateway that stops ends. Requests that do not wait never look at it, so
//! they do not pay for it.

use std::{future::pending, sync::OnceLock, time::Duration};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// How long before the end of the drain a request that waits for a concurrency permit is answered at the latest:
/// writing the answer takes some time. It is at most a quarter of the drain.
const LAST_CALL: Duration = Duration::from_millis(500);

/// The drain of one worker, which begins at most once.
#[derive(Debug, Default)]
pub(super) struct Drain {
    times: OnceLock<DrainTimes>,
    begins: Notify,
}

#[derive(Debug, Clone, Copy)]
struct DrainTimes {
    /// The instant at which the remaining connections are closed.
    end: Instant,
    /// The instant at which requests that wait for a concurrency permit are answered.
    last_call: Instant,
}

// === impl Drain ===

impl Drain {
    /// Begins the drain, which lasts until `end`, and wakes the requests that wait.
    pub(super) fn begin(&self, end: Instant) {
        let left = end.saturating_duration_since(Instant::now());
        let last_call = end - LAST_CALL.min(left / 4);
        // Later calls change nothing: a drain begins once.
        let _ = self.times.set(DrainTimes { end, last_call });
        self.begins.notify_waiters();
    }

    async fn times(&self) -> DrainTimes {
        // Created before the check: a drain that begins after the check wakes it.
        let begins = self.begins.notified();
        if let Some(times) = self.times.get() {
            return *times;
        }
        begins.await;
        match self.times.get() {
            Some(times) => *times,
            None => pending().await,
        }
    }

    /// Resolves when the gateway drains and its drain ends before a slot `at` this instant. Never resolves for a slot
    /// that comes in time.
    pub(super) async fn ends_before(&self, at: Instant) {
        if self.times().await.end > at {
            pending().await
        }
    }

    /// Resolves when a request that still waits for a concurrency permit has to be answered, because the drain is about
    /// to end.
    pub(super) async fn last_call(&self) {
        sleep_until(self.times().await.last_call).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::time::{sleep, timeout};

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_only_waits_beyond_its_end_at_once() {
        let (drain, start) = (Arc::new(Drain::default()), Instant::now());
        let end = start + SECOND * 11;
        let waits = [end, end + DAY].map(|at| {
            let drain = drain.clone();
            tokio::spawn(async move {
                drain.ends_before(at).await;
                Instant::now()
            })
        });
        let in_time = timeout(DAY, drain.ends_before(end - Duration::from_micros(1)));
        let begin = async {
            sleep(SECOND).await;
            drain.begin(end);
        };
        assert!(tokio::join!(in_time, begin).0.is_err());
        for wait in waits {
            assert_eq!(wait.await.expect("a task"), start + SECOND);
        }
        // A request that arrives during the drain learns of it, too.
        assert!(timeout(Duration::ZERO, drain.ends_before(end)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_call_is_sent_before_the_drain_ends() {
        for (length, before) in [(SECOND * 30, LAST_CALL), (SECOND, SECOND / 4)] {
            let (drain, start) = (Drain::default(), Instant::now());
            drain.begin(start + length);
            drain.last_call().await;
            assert_eq!(start.elapsed(), length - before);
        }
    }
}
