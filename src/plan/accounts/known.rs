//! The knowledge about one account, besides the pauses of its states. Plans that follow each other share it. Asks no store.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// The knowledge about an account.
#[derive(Debug, Default)]
pub(super) struct KnownAccount {
    /// It was parked, and no call has succeeded since.
    is_doubtful: AtomicBool,
    /// The account of its name has other credentials by now: only calls of former plans have these.
    is_former: AtomicBool,
    /// Until then another call tries it.
    pub(super) tried: Interval,
    /// Until then its address counts as one that cannot be reached.
    pub(super) gone: Interval,
    /// Notified when it is parked.
    pub(super) closes: Notify,
}

/// A time that begins now and then. Each request looks at it.
#[derive(Debug)]
pub(super) struct Interval {
    since: Instant,
    /// Its end, in µs after `since`; 0 before it has begun.
    end: AtomicU64,
}

// === impl KnownAccount ===

impl KnownAccount {
    /// Notes that the account was parked. Returns whether that is new to those who read of the account.
    pub(super) fn doubt(&self) -> bool {
        !self.is_doubtful.swap(true, Relaxed) && !self.is_former.load(Relaxed)
    }

    /// Notes that a call with the account has succeeded. Returns whether that concerns those who read of the account.
    pub(super) fn trust(&self) -> bool {
        self.is_doubtful.store(false, Relaxed);
        self.tried.end();
        !self.is_former.load(Relaxed)
    }

    /// Notes that the account of its name has other credentials from now on.
    pub(super) fn replace(&self) {
        self.is_former.store(true, Relaxed);
    }

    /// Whether the account may have been parked.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(Relaxed)
    }
}

// === impl Interval ===

impl Default for Interval {
    fn default() -> Self {
        Self { since: Instant::now(), end: AtomicU64::new(0) }
    }
}

impl Interval {
    /// Begins it, or makes it end this much after now.
    pub(super) fn begin(&self, length: Duration) {
        self.end.store(micros(self.since.elapsed() + length), Relaxed);
    }

    fn end(&self) {
        self.end.store(0, Relaxed);
    }

    /// Whether it lasts.
    pub(super) fn lasts(&self) -> bool {
        let end = self.end.load(Relaxed);
        end > 0 && micros(self.since.elapsed()) < end
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
